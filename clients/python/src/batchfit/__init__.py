"""Finds the largest batch that fits a GPU: batchfit for Python.

`import batchfit` is quick and needs no PyTorch: what needs it is imported when it is first used.
"""

from __future__ import annotations

import importlib

# As type checkers know it; importing `typing` takes milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .asking import Answer as Answer
    from .asking import FitError as FitError
    from .asking import fit as fit
    from .export.errors import ExportError as ExportError
    from .export.exporting import Exported as Exported
    from .export.exporting import export as export
    from .outcomes import outcome as outcome
    from .out_of_memory import record_oom as record_oom
    from .plan import Plan as Plan
    from .plan import Run as Run
    from .recording import Recording as Recording
    from .tuning import tune as tune

# What can be used as `batchfit.NAME`, and the module that has it. `export` is a module that can be called.
_MODULES = {
    "Answer": ".asking",
    "FitError": ".asking",
    "ExportError": ".export.errors",
    "Exported": ".export.exporting",
    "Plan": ".plan",
    "Recording": ".recording",
    "Run": ".plan",
    "fit": ".asking",
    "outcome": ".outcomes",
    "record_oom": ".out_of_memory",
    "tune": ".tuning",
}
_SUBMODULES = ("accelerate", "binary", "export", "hf", "lightning")

__all__ = [
    "Answer", "ExportError", "Exported", "FitError", "Plan", "Recording", "Run", "export", "fit", "outcome", "record_oom", "tune"
]


# The extras that bring what may be missing.
_PACKAGES = ("torch", "transformers", "lightning", "accelerate")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        value: object = getattr(_imported(name, _MODULES[name]), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return _imported(name, f".{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _imported(name: str, module: str) -> object:
    try:
        return importlib.import_module(module, __name__)
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        advice = f"batchfit.{name} needs {error.name}, which is not installed; install it by `pip install {error.name}`"
        raise ModuleNotFoundError(advice, name=error.name) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_SUBMODULES})
