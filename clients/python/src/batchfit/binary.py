"""Where the Rust binary is, which does the work."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_NAME = "batchfit.exe" if os.name == "nt" else "batchfit"


def find() -> Path:
    """The binary that `BATCHFIT_BINARY` names, that came with this package, or that is on the path."""
    named = os.environ.get("BATCHFIT_BINARY")
    if named:
        path = Path(named)
        if not _is_binary(path):
            raise FileNotFoundError(f"BATCHFIT_BINARY names {named}, which is no program that can be run")
        return path
    for folder in _folders():
        path = folder / _NAME
        if _is_binary(path):
            return path
    raise FileNotFoundError(
        "the batchfit binary is neither in this Python's folder of scripts nor on the path; "
        "install it by `pip install ./clients/python` in batchfit's repository, or name it in BATCHFIT_BINARY"
    )


def _folders() -> Iterator[Path]:
    yield Path(sysconfig.get_path("scripts"))
    # `pip install --user` and `pip install --target`.
    yield Path(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    yield Path(__file__).resolve().parents[1] / "bin"
    for folder in os.get_exec_path():
        yield Path(folder)


def _is_binary(path: Path) -> bool:
    """Whether this can be run and is no script: earlier releases installed a script of the same name."""
    try:
        if not os.access(path, os.X_OK):
            return False
        with path.open("rb") as file:
            return file.read(2) != b"#!"
    except OSError:
        return False
