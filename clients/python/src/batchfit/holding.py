"""Optimizers, scalers and wrappers as tuning needs them: no step skipped, and micro-steps that only add up gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from .state import State


def never_skip(state: State) -> None:
    """Has scalers skip no step: a skipped one makes no optimizer state. Putting the state back undoes it."""
    for scaler in state.scalers:
        if not scaler.is_enabled():
            continue
        # A scale that overflows nothing, and a step that is taken whatever the gradients are.
        scaler._init_scale = 1.0
        if scaler._scale is not None:
            scaler._scale.fill_(1.0)
        scaler._maybe_opt_step = _take_step


def _take_step(optimizer: Any, _state: Any, *arguments: Any, **named: Any) -> Any:
    return optimizer.step(*arguments, **named)


@contextlib.contextmanager
def only_gradients(state: State) -> Iterator[None]:
    """Within it, a step only adds up gradients: optimizers and scalers do nothing, and gradients stay."""
    with contextlib.ExitStack() as stack:
        for optimizer in state.optimizers:
            stack.enter_context(_replaced(optimizer, "step", _step_of_closure))
            stack.enter_context(_replaced(optimizer, "zero_grad", _nothing))
        for module in state.modules:
            stack.enter_context(_replaced(module, "zero_grad", _nothing))
            # DistributedDataParallel and FullyShardedDataParallel: gradients are exchanged in the last micro-step.
            no_sync = getattr(type(module), "no_sync", None)
            if callable(no_sync) and type(module).__name__ in ("DistributedDataParallel", "FullyShardedDataParallel"):
                stack.enter_context(module.no_sync())  # type: ignore[operator]
        for scaler in state.scalers:
            stack.enter_context(_replaced(scaler, "step", _nothing))
            stack.enter_context(_replaced(scaler, "update", _nothing))
            stack.enter_context(_replaced(scaler, "unscale_", _nothing))
        yield


def _nothing(*_arguments: Any, **_named: Any) -> None:
    return None


def _step_of_closure(closure: Any = None, *_arguments: Any, **_named: Any) -> Any:
    # An optimizer that runs forward and backward itself.
    return closure() if callable(closure) else None


@contextlib.contextmanager
def _replaced(thing: Any, name: str, value: Callable[..., Any]) -> Iterator[None]:
    """Gives an object a method of its own."""
    attributes = vars(thing)
    had = name in attributes
    before = attributes.get(name)
    attributes[name] = value
    try:
        yield
    finally:
        if had:
            attributes[name] = before
        else:
            attributes.pop(name, None)
