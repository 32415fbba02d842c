"""Optimizers, scalers and wrappers as tuning needs them: no step skipped, and micro-steps that only add up gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.amp.grad_scaler

from .state import State


def never_skip(state: State) -> None:
    """Gives scalers a scale that overflows nothing. Putting the state back undoes it."""
    for scaler in state.scalers:
        if scaler.is_enabled():
            scaler._init_scale = 1.0
            if scaler._scale is not None:
                scaler._scale.fill_(1.0)


@contextlib.contextmanager
def steps_are_taken() -> Iterator[None]:
    """Within it, scalers take each step whatever the gradients are: a step that is skipped makes no optimizer state.

    Those too that are not in `state`.
    """
    scaler: Any = torch.amp.grad_scaler.GradScaler
    before = scaler._maybe_opt_step
    scaler._maybe_opt_step = _take_step
    try:
        yield
    finally:
        scaler._maybe_opt_step = before


def _take_step(_scaler: Any, optimizer: Any, _state: Any, *arguments: Any, **named: Any) -> Any:
    return optimizer.step(*arguments, **named)


def accumulate(state: State, step: Callable[[int], object], batch: int, micro_steps: int) -> None:
    """One optimizer step of several calls of `step`, each of which would be a whole one.

    Optimizers step in the last alone. Gradients are let go of before the first or after the last, whether `step` does that at
    its beginning or at its end: what is asked for before an optimizer steps counts as its beginning.
    """
    for index in range(micro_steps):
        is_first, is_last = index == 0, index == micro_steps - 1
        if is_first and is_last:
            step(batch)
            return
        with _micro_step(state, is_first=is_first, is_last=is_last):
            step(batch)


@contextlib.contextmanager
def _micro_step(state: State, *, is_first: bool, is_last: bool) -> Iterator[None]:
    stepped: set[int] = set()

    def step_of(optimizer: Any) -> Callable[..., Any]:
        original = optimizer.step

        def step(closure: Any = None, *arguments: Any, **named: Any) -> Any:
            stepped.add(id(optimizer))
            if not is_last:
                # An optimizer that runs forward and backward itself.
                return closure() if callable(closure) else None
            return original(*(() if closure is None else (closure,)), *arguments, **named)

        # What schedulers look for, to warn where an optimizer's step is no longer the one that they count.
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        return step

    def zero_grad_of(thing: Any, has_stepped: Callable[[], bool]) -> Callable[..., Any]:
        original = thing.zero_grad

        def zero_grad(*arguments: Any, **named: Any) -> Any:
            if is_last if has_stepped() else is_first:
                return original(*arguments, **named)
            return None

        return zero_grad

    def step_of_scaler(optimizer: Any, *_arguments: Any, **_named: Any) -> None:
        stepped.add(id(optimizer))

    with contextlib.ExitStack() as stack:
        for optimizer in state.optimizers:
            stack.enter_context(_replaced(optimizer, "step", step_of(optimizer)))
            stepping = _is_in(stepped, id(optimizer))
            stack.enter_context(_replaced(optimizer, "zero_grad", zero_grad_of(optimizer, stepping)))
        for module in state.modules:
            stack.enter_context(_replaced(module, "zero_grad", zero_grad_of(module, lambda: bool(stepped))))
            # DistributedDataParallel and FullyShardedDataParallel: gradients are exchanged in the last micro-step.
            if not is_last and type(module).__name__ in ("DistributedDataParallel", "FullyShardedDataParallel"):
                stack.enter_context(module.no_sync())  # type: ignore[operator]
        if not is_last:
            for scheduler in state.schedulers:
                stack.enter_context(_replaced(scheduler, "step", _nothing))
            for scaler in state.scalers:
                stack.enter_context(_replaced(scaler, "step", step_of_scaler))
                stack.enter_context(_replaced(scaler, "update", _nothing))
                stack.enter_context(_replaced(scaler, "unscale_", _nothing))
        yield


def _is_in(numbers: set[int], number: int) -> Callable[[], bool]:
    return lambda: number in numbers


def _nothing(*_arguments: Any, **_named: Any) -> None:
    return None


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
