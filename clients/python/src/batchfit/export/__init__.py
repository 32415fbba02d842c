"""Exports PyTorch models for batchfit: the forward pass with its loss, without weights and without a GPU.

`batchfit.export(model, batch, loss)` is a function to its users, and this package that function's home. So the module can be
called: importing one of its submodules anywhere sets `batchfit.export` to the module.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """The module, which does what `exporting.export` does when it is called."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        from .requirements import check_torch

        check_torch()
        # PyTorch takes seconds to import.
        from .exporting import export

        return export(*arguments, **named)


sys.modules[__name__].__class__ = _Callable
