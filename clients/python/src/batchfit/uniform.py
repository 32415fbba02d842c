"""Values of tensors that are the same everywhere, known without data.

A model's Python code sometimes asks for values: whether a mask masks anything, whether a random number skips a layer.
While a model is traced there are none. Most of what is asked for follows from tensors that are filled with one number
(`torch.ones` for a mask that nobody gave), and that number is followed here through the operators such code uses.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch.utils.weak import WeakTensorKeyDictionary

aten = torch.ops.aten

# A random number that decides in Python, such as `torch.rand([]) < self.layerdrop`: nothing is skipped.
_NEVER_SKIPS = 1.0 - 2.0**-24

_FILLED: dict[Any, Callable[..., Any]] = {
    aten.ones: lambda *_, **__: 1,
    aten.ones_like: lambda *_, **__: 1,
    aten.new_ones: lambda *_, **__: 1,
    aten.zeros: lambda *_, **__: 0,
    aten.zeros_like: lambda *_, **__: 0,
    aten.new_zeros: lambda *_, **__: 0,
    aten.full: lambda size, value, **_: value,
    aten.full_like: lambda like, value, **_: value,
    aten.new_full: lambda like, size, value, **_: value,
}

# What leaves every element as it is.
_KEEPS = {
    aten.alias, aten.clone, aten.contiguous, aten.detach, aten.expand, aten.flatten, aten.permute, aten.repeat,
    aten.reshape, aten.select, aten.slice, aten.squeeze, aten.t, aten.transpose, aten.unsqueeze, aten.view,
    aten.amax, aten.amin, aten.max, aten.min, aten.mean,
}  # fmt: skip

_BINARY: dict[Any, Callable[[Any, Any], Any]] = {
    aten.add: operator.add, aten.sub: operator.sub, aten.mul: operator.mul, aten.eq: operator.eq, aten.ne: operator.ne,
    aten.lt: operator.lt, aten.le: operator.le, aten.gt: operator.gt, aten.ge: operator.ge,
    aten.logical_and: lambda a, b: bool(a) and bool(b), aten.logical_or: lambda a, b: bool(a) or bool(b),
    aten.bitwise_and: operator.and_, aten.bitwise_or: operator.or_,
}  # fmt: skip

_READS = {aten.item, aten.is_nonzero, aten._local_scalar_dense}


class UniformValues:
    """Which tensors hold one number everywhere, and which."""

    def __init__(self) -> None:
        self._values: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def read(self, op: torch._ops.OpOverload, args: tuple[Any, ...]) -> Optional[Any]:
        """The number that `op` reads from a tensor, if it reads one and the number is known."""
        if op.overloadpacket not in _READS or not self._known(args[0]):
            return None
        value = self._value(args[0])
        return bool(value) if op.overloadpacket is aten.is_nonzero else value

    def follow(self, op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        """Notes what is known of the result of `op`."""
        if not isinstance(result, torch.Tensor):
            return
        if op._schema.is_mutable:
            self._values.pop(result, None)
            return
        value = self._result(op.overloadpacket, args, kwargs, result)
        if value is not None:
            self._values[result] = value

    def _result(self, op: object, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Optional[Any]:
        if op in _FILLED:
            value = _FILLED[op](*args, **kwargs)
            return bool(value) if result.dtype == torch.bool else value
        if op is aten.rand and result.dim() == 0:
            return _NEVER_SKIPS
        if not args or not isinstance(args[0], torch.Tensor) or not all(self._known(a) for a in args if _is_tensor(a)):
            return None
        first = self._value(args[0])
        if op in _KEEPS:
            return first
        if op in (aten.to, aten._to_copy):
            return bool(first) if result.dtype == torch.bool else first
        if op in (aten.all, aten.any):
            return bool(first)
        if op in (aten.logical_not, aten.bitwise_not) and args[0].dtype == torch.bool:
            return not first
        if op is aten.sum and result.dim() == 0:
            return (int(first) if isinstance(first, bool) else first) * args[0].numel()
        if op in _BINARY and len(args) == 2:
            second = self._value(args[1])
            # Comparing sizes that contain the batch is free where they are the same expression; else it would guard.
            if isinstance(first, torch.SymInt) or isinstance(second, torch.SymInt):
                same = str(first) == str(second)
                return True if same and op is aten.eq else None
            value = _BINARY[op](first, second)
            return value if not isinstance(value, float) or math.isfinite(value) else None
        return None

    def _known(self, operand: object) -> bool:
        return not _is_tensor(operand) or operand in self._values

    def _value(self, operand: Any) -> Any:
        return self._values[operand] if _is_tensor(operand) else operand


def _is_tensor(operand: object) -> bool:
    return isinstance(operand, torch.Tensor)
