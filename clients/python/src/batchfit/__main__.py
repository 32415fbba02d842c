"""`python -m batchfit ...` is the batchfit binary."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Optional

from . import binary


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the binary with these arguments; gives its exit status, where it does not take this process's place."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        command = [os.fspath(binary.find()), *arguments]
    except FileNotFoundError as error:
        print(f"batchfit: {error}", file=sys.stderr)
        return 2
    # What the binary hands on to Python is for this interpreter, which has the package.
    os.environ.setdefault("BATCHFIT_PYTHON", sys.executable)
    if os.name != "posix":
        return subprocess.run(command, check=False).returncode
    # Signals and the exit status are then the binary's.
    os.execv(command[0], command)


if __name__ == "__main__":
    sys.exit(main())
