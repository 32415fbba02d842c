"""Notes which parts of a forward pass the model's own code checkpoints, while it is traced.

`torch.utils.checkpoint` is what `gradient_checkpointing_enable()` of transformers, `enable_gradient_checkpointing()` of diffusers
and most code of its own call. It leaves no mark in a graph: `document.py` puts each call into the stack of modules of what it runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint

from .errors import ExportError
from .failures import place, user_frame
from .lifetimes import Lifetimes
from .replacing import replaced

# The number of the value made last before each call, and of the last one made in it, and whether it is reentrant.
Checkpoints = list[tuple[int, int, bool]]


@contextlib.contextmanager
def noting_checkpoints(lifetimes: Lifetimes) -> Iterator[Checkpoints]:
    """Inside, calls of `torch.utils.checkpoint.checkpoint` are noted, under whatever name the code knows it."""
    found: Checkpoints = []
    module: Any = torch.utils.checkpoint
    depth = 0

    def noted(reentrant: bool) -> Iterator[None]:
        nonlocal depth
        before, depth = lifetimes.made, depth + 1
        yield
        depth -= 1
        # What is inside of another call is computed again with that.
        if depth == 0 and torch.is_grad_enabled() and lifetimes.made > before:
            found.append((before, lifetimes.made, reentrant))

    def not_reentrant(_: Any, __: bool, context_fn: Any, *___: Any, **____: Any) -> Iterator[None]:
        if context_fn is not module.noop_context_fn:
            raise ExportError(
                "the model checkpoints selectively (context_fn of torch.utils.checkpoint), and which tensors that keeps is not followed"
                f"{_where()}\nexport it without context_fn, which keeps less and so takes less memory, and once without checkpoints, "
                "which takes more"
            )
        return noted(False)

    class Reentrant:
        @staticmethod
        def apply(function: Callable[..., Any], _: bool, *args: Any) -> Any:
            call = noted(True)
            next(call)
            result = function(*args)
            next(call, None)
            return result

    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(module, "_checkpoint_without_reentrant_generator", not_reentrant))
        stack.enter_context(replaced(module, "CheckpointFunction", Reentrant))
        stack.enter_context(replaced(torch.autograd.graph.saved_tensors_hooks, "__enter__", _hooked))
        yield found


def _hooked(_: object) -> None:
    raise ExportError(
        "the model has hooks put what autograd saves elsewhere (saved_tensors_hooks, save_on_cpu), and what they keep is not followed"
        f"{_where()}\nexport it without them; the answer is then for all of that on the GPU, which takes more memory"
    )


def _where() -> str:
    frame = user_frame()
    return "" if frame is None else f"\n  at {place(frame, frame.f_lineno)}"
