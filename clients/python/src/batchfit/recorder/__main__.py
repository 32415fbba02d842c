"""`python -m batchfit.recorder`: records graphs, or one module, for whoever started it. See protocol.py."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Optional


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m batchfit.recorder", description="Started by `batchfit fit --recorder PYTHON`.")
    parser.add_argument("--module", metavar="MODULE:BUILD", help="what makes a module of your own, in place of a graph")
    parser.add_argument("--batch", action="append", default=[], metavar="NAME=TENSOR", help="a tensor of its batch, as batchfit export reads it")
    parser.add_argument("--loss", metavar="LOSS", help="its loss, as batchfit export reads it")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        print(f"batchfit: recording needs PyTorch: {error}; pip install torch", file=sys.stderr)
        return 2
    from .child import Child
    from .modules import Named

    named = None
    if options.module is not None:
        if not options.batch or options.loss is None:
            print('batchfit: give the batch and the loss, as in --batch "x=f32[B,3,224,224]" --batch "y=i64[B]" --loss cross_entropy', file=sys.stderr)
            return 2
        named = Named(options.module, options.batch, options.loss)
    return Child(named, options.device).run()


if __name__ == "__main__":
    sys.exit(main())
