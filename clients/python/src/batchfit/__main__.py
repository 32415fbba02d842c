"""`python -m batchfit ...` is the batchfit binary."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Optional

from . import binary


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the binary with these arguments; gives its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] == "export":
        from .export.__main__ import main as export

        return export(arguments[1:])
    try:
        found = binary.find()
    except FileNotFoundError as error:
        print(f"batchfit: {error}", file=sys.stderr)
        return 2
    return subprocess.run([found, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
