"""The command line: `batchfit export`, which is `python -m batchfit.export`."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

from .errors import ExportError
from .requirements import check_torch

_DTYPES = ("f32", "bf16", "f16")
_ALIASES = {"fp32": "f32", "float32": "f32", "bfloat16": "bf16", "fp16": "f16", "float16": "f16"}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Exports as the arguments say; gives the exit status: 0 done, 2 bad input."""
    options = _parser().parse_args(arguments)
    try:
        _export(options)
    except ExportError as error:
        print(f"batchfit: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="batchfit export",
        description="Writes a model's forward pass with its loss as a graph, without weights and without a GPU.",
        epilog='example: batchfit export my_module:build --batch "x=f32[B,3,224,224]" "y=i64[B]" --loss cross_entropy '
        "-o model.json.gz",
    )
    parser.add_argument("model", nargs="?", metavar="MODULE:BUILD", help="the function or class that builds the model, or the model itself: my_module:build or my.py:build")
    parser.add_argument("--hf", metavar="CONFIG", help="a Hugging Face config.json, or its directory, in place of MODULE:BUILD")
    parser.add_argument(
        "--batch",
        nargs="+",
        metavar="NAME=TENSOR",
        help="tensors of a batch in the order of the model's arguments, the target last; B is the batch, "
        "4*B four times that, labels=input_ids is one tensor under two names, and lengths=i64[B]=100 is 100 everywhere",
    )
    parser.add_argument(
        "--loss",
        metavar="LOSS",
        help="cross_entropy, mse, bce_with_logits, model (it returns its own loss, called with the batch by name), or "
        "MODULE:FUNCTION, called with the model and the batch's tensors",
    )
    parser.add_argument("--seq-len", type=_length, metavar="N", help="with --hf: tokens of a sample, or numbers of a sound, 16,000 a second")
    parser.add_argument("--target-len", type=_length, metavar="N", help="with --hf: tokens of the target of an encoder-decoder, letters of a transcript (CTC)")
    parser.add_argument("--image-size", type=_length, metavar="N", help="with --hf: height and width of images, where the config does not say")
    parser.add_argument("--dtype", metavar="DTYPE", help=f"parameters and floating-point inputs: {', '.join(_DTYPES)}; default f32")
    parser.add_argument(
        "--max-batch",
        type=_length,
        metavar="N",
        help="the largest batch for which the graph must hold, where the model's code takes another path beyond it",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="the graph, compressed if it ends in .gz; default MODULE.json.gz")
    parser.add_argument("--quiet", action="store_true", help="do not print where the graph was written")
    return parser


def _length(text: str) -> int:
    length = int(text)
    if length < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return length


def _export(options: argparse.Namespace) -> None:
    check_torch()
    # Importing torch takes seconds: not for --help.
    from .batches import DTYPES, parse_batch
    from .building import load
    from .exporting import export_built
    from .huggingface import Sizes, described, from_config
    from .losses import NAMES, named

    if (options.model is None) == (options.hf is None):
        raise ExportError("give either MODULE:BUILD or --hf CONFIG")
    dtype = None
    if options.dtype is not None:
        name = _ALIASES.get(options.dtype, options.dtype)
        if name not in _DTYPES:
            raise ExportError(f"unknown dtype {options.dtype!r}; known are {', '.join(_DTYPES)}")
        dtype = DTYPES[name]
    if options.hf is not None:
        if options.batch or options.loss:
            raise ExportError("--hf knows batch and loss by the model's class; leave out --batch and --loss")
        sizes = Sizes(options.seq_len, options.target_len, options.image_size)
        builder: Any
        builder, batch = from_config(options.hf, sizes)
        loss: Any = "model"
    else:
        named_loss = named(options.loss) if options.loss else None
        if named_loss is not None and named_loss not in NAMES and ":" not in named_loss:
            raise ExportError(f"unknown loss {options.loss!r}; known are {', '.join(NAMES)} and MODULE:FUNCTION")
        builder = load(options.model)
        if options.batch and named_loss:
            batch = parse_batch(options.batch)
            loss = load(named_loss) if ":" in named_loss else named_loss
        else:
            sizes = Sizes(options.seq_len, options.target_len, options.image_size)
            flags = {"--batch x=f32[B,3,224,224] y=i64[B]": options.batch, "--loss cross_entropy": named_loss}
            builder, batch, loss = described(builder, sizes, [flag for flag, given in flags.items() if not given])
    with _progress() as progress:
        exported = export_built(builder, batch, loss, dtype, options.max_batch, progress)
    module = options.model.partition(":")[0] if options.model else "model"
    output = options.output or f"{Path(module).stem if module.endswith('.py') else module.rpartition('.')[2]}.json.gz"
    exported.save(output)
    if not options.quiet:
        operators = len(exported.document["graph_module"]["graph"]["nodes"])
        print(f"batchfit: wrote {output} ({operators} operators); next: batchfit fit {output} --on rtx4090", file=sys.stderr)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """Says on stderr how far an export is that takes its time: on one line of a terminal, else now and then."""
    begin = shown = time.monotonic()
    rewrites = sys.stderr.isatty()

    def progress(operators: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= (1 if rewrites else 10):
            shown = now
            text = f"batchfit: traced {operators} operators in {now - begin:.0f} s"
            print(f"\r{text}" if rewrites else text, end="" if rewrites else "\n", file=sys.stderr, flush=True)

    try:
        yield progress
    finally:
        if rewrites and shown > begin:
            print(file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
