"""What the exporter needs, checked before anything of it is imported."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from .errors import ExportError

# The oldest PyTorch that exports. With 2.8, `torch.export.export` has no `prefer_deferred_runtime_asserts_over_guards`; with 2.6
# and older, `torch.export._trace` has none of what eager.py stands in for. 2.9 and 2.10 export 28 of 30 models of tests/record to
# the very operators that 2.11 exports, and two with default arguments left out.
OLDEST = (2, 9)


def check_torch() -> None:
    """An error that says what to install, unless there is a PyTorch that is new enough."""
    if find_spec("torch") is None:
        raise ExportError(
            f"exporting a model needs PyTorch, which {sys.executable} does not have; install it by `pip install torch`, "
            "or name another Python that has PyTorch and batchfit in BATCHFIT_PYTHON"
        )
    try:
        found = version("torch")
    except PackageNotFoundError:
        # Built by its developers, and run where it was built.
        return
    if _release(found) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ExportError(
            f"exporting a model needs PyTorch {oldest} or newer, and {sys.executable} has {found}; "
            f"install it by `pip install 'torch>={oldest}'`, perhaps in an environment of its own: the graph serves any"
        )


def _release(text: str) -> tuple[int, ...]:
    """The first two numbers of a version, such as `2.11.0+cu130`."""
    numbers = []
    for part in text.split(".")[: len(OLDEST)]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        numbers.append(int(digits or 0))
    return tuple(numbers)
