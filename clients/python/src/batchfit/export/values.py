"""Values of tensors that are the same everywhere, known without data.

A model's Python code sometimes asks for values: whether a mask masks anything, whether a random number skips a layer, how
long the longest sample is. While a model is traced there are none. Most of what is asked for follows from tensors that are
filled with one number (`torch.ones` for a mask that nobody gave, a buffer with a stride, lengths that the caller says are
all 100), and that number is followed here through the operators such code uses.

Code that checks its input and raises an error is taken to find nothing wrong.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Optional, Union

import torch
import torch.fx.experimental.proxy_tensor as tracing
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from .branches import raises_unless
from .failures import asking_frame, origins

aten = torch.ops.aten

# A random number that decides in Python, such as `torch.rand([]) < self.layerdrop`: nothing is skipped.
NEVER_SKIPS = 1.0 - 2.0**-24

Number = Union[int, float, bool]

_FILLED: dict[Any, Callable[..., Any]] = {
    aten.ones: lambda *_, **__: 1,
    aten.ones_like: lambda *_, **__: 1,
    aten.new_ones: lambda *_, **__: 1,
    aten.zeros: lambda *_, **__: 0,
    aten.zeros_like: lambda *_, **__: 0,
    aten.new_zeros: lambda *_, **__: 0,
    aten.full: lambda size, value, **_: value,
    # Training goes on with finite numbers.
    aten.isfinite: lambda tensor: True,
    aten.isinf: lambda tensor: False,
    aten.isnan: lambda tensor: False,
    aten.full_like: lambda like, value, **_: value,
    aten.new_full: lambda like, size, value, **_: value,
}

# Filled in place.
_FILLS: dict[Any, Callable[..., Any]] = {
    aten.fill_: lambda tensor, value: value,
    aten.zero_: lambda tensor: 0,
    aten.uniform_: lambda tensor, low=0.0, high=1.0, **_: low + (high - low) * NEVER_SKIPS,
}

# What leaves every element as it is.
_KEEPS = {
    aten.alias, aten.clone, aten.contiguous, aten.detach, aten.expand, aten.flatten, aten.permute, aten.repeat,
    aten.reshape, aten.select, aten.slice, aten.squeeze, aten.t, aten.transpose, aten.unsqueeze, aten.view,
    aten.amax, aten.amin, aten.max, aten.min, aten.mean, aten.median, aten.unbind, aten.split, aten.chunk, aten.view_as,
    aten.cpu, aten.cuda, aten.lift_fresh_copy, aten.lift_fresh, aten.expand_as, aten.sort, aten.index_select, aten.index, aten.upsample_nearest1d,
    aten.upsample_nearest2d, aten.upsample_nearest3d, aten.adaptive_avg_pool2d, aten.concat, aten.cat, aten.stack,
}  # fmt: skip

_BINARY: dict[Any, Callable[[Any, Any], Any]] = {
    aten.add: operator.add, aten.sub: operator.sub, aten.mul: operator.mul, aten.eq: operator.eq, aten.ne: operator.ne,
    aten.lt: operator.lt, aten.le: operator.le, aten.gt: operator.gt, aten.ge: operator.ge,
    aten.logical_and: lambda a, b: bool(a) and bool(b), aten.logical_or: lambda a, b: bool(a) or bool(b),
    aten.bitwise_and: operator.and_, aten.bitwise_or: operator.or_,
    aten.maximum: max, aten.minimum: min, aten.rsub: lambda a, b: b - a, aten.true_divide: operator.truediv,
    aten.div: operator.truediv, aten.floor_divide: operator.floordiv, aten.remainder: operator.mod, aten.pow: operator.pow,
}

_UNARY: dict[Any, Callable[[Any], Any]] = {
    aten.neg: operator.neg, aten.abs: abs, aten.ceil: math.ceil, aten.floor: math.floor, aten.round: round,
    aten.exp: math.exp, aten.sqrt: math.sqrt,
}  # fmt: skip

_DIVISIONS: dict[Optional[str], Callable[[Any, Any], Any]] = {
    None: operator.truediv, "floor": operator.floordiv, "trunc": lambda a, b: math.trunc(a / b),
}  # fmt: skip

# What makes tensors of numbers alone.
_MAKES = {
    aten.arange, aten.linspace, aten.scalar_tensor, aten.full, aten.eye, aten.tril_indices, aten.triu_indices, aten.zeros,
    aten.ones,
}  # fmt: skip
_CONSTANT_ELEMENTS = 1024

_READS = {aten.item, aten.is_nonzero, aten._local_scalar_dense}


class KnownValues:
    """Which tensors hold one number everywhere, and which."""

    def __init__(self, given: Mapping[str, Number], buffers: Mapping[str, Number]) -> None:
        """`given` are numbers of the batch's tensors, `buffers` of the model's, by name and path."""
        self._given, self._buffers = given, buffers
        self._values: Any = WeakTensorKeyDictionary()
        # Small tensors that the code makes of numbers alone, as `torch.arange(2, 5)`.
        self._constants: Any = WeakTensorKeyDictionary()
        # The inputs of the graph, and the node whose value was asked for last and is not known.
        self._inputs: dict[torch.fx.Node, str] = {}
        self._asked: Optional[torch.fx.Node] = None

    def begin(self, batch: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]) -> None:
        """The tensors that tracing has put in the place of the batch's and of the model's buffers."""
        for numbers, tensors in ((self._given, batch), (self._buffers, buffers)):
            for name, tensor in tensors.items():
                if name in numbers:
                    self._values[tensor] = numbers[name]
                node = _node_of(tensor, tracing.get_proxy_mode())
                if node is not None:
                    self._inputs[node] = name

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether the elements of a tensor are known to be one number."""
        return tensor in self._values

    def asked(self) -> Optional[list[str]]:
        """The inputs behind the value that was asked for last and is not known."""
        return None if self._asked is None else origins(self._asked, self._inputs)

    def read(self, op: torch._ops.OpOverload, args: tuple[Any, ...], mode: Any) -> Optional[Any]:
        """The number that `op` reads from a tensor, if it reads one and the number is known."""
        if op.overloadpacket not in _READS:
            return None
        constant = self._constants.get(args[0])
        if constant is not None and constant.numel() == 1:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                return constant.item()
        if not self._known(args[0]):
            self._asked = _node_of(args[0], mode)
            frame = asking_frame() if args[0].dtype == torch.bool else None
            return None if frame is None else raises_unless(frame)
        value = self._value(args[0])
        return bool(value) if op.overloadpacket is aten.is_nonzero else value

    def follow(self, op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        """Notes what is known of the result of `op`."""
        items = result if isinstance(result, (tuple, list)) else [result]
        results = [item for item in items if isinstance(item, torch.Tensor)]
        if not results:
            return
        self._follow_constant(op, args, kwargs, results)
        if op._schema.is_mutable:
            fill = _FILLS.get(op.overloadpacket)
            self._values.pop(results[0], None)
            if fill is not None and not any(map(_is_tensor, args[1:])):
                self._values[results[0]] = fill(*args, **kwargs)
            return
        value = self._result(op.overloadpacket, args, kwargs, results[0])
        if value is not None:
            # Of `max` over a dimension and the like only the first result is a value.
            for each in results if op.overloadpacket in (aten.unbind, aten.split, aten.chunk) else results[:1]:
                self._values[each] = value

    def _follow_constant(self, op: torch._ops.OpOverload, args: Any, kwargs: Any, results: list[torch.Tensor]) -> None:
        if op._schema.is_mutable:
            # A view of it would not know.
            self._constants.pop(results[0], None)
            return
        if op.overloadpacket is aten.nonzero and all(isinstance(n, int) for n in results[0].shape):
            # As `rules.py` has it: every element is taken to be hit.
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                self._constants[results[0]] = torch.ones(args[0].shape, device="cpu").nonzero()
            return
        operands = [operand for operand in pytree.tree_leaves((args, kwargs)) if _is_tensor(operand)]
        constants = {operand: self._constant(operand) for operand in operands}
        if any(constant is None for constant in constants.values()) or not (operands or op.overloadpacket in _MAKES):
            return
        if any(not isinstance(n, int) for result in results for n in result.shape):
            return
        if any(result.numel() > _CONSTANT_ELEMENTS for result in results):
            return
        args, kwargs = pytree.tree_map(lambda leaf: constants[leaf] if _is_tensor(leaf) else leaf, (args, kwargs))
        kwargs = {**kwargs, "device": torch.device("cpu")} if "device" in kwargs else kwargs
        try:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                computed = op(*args, **kwargs)
        except (RuntimeError, TypeError, NotImplementedError):
            return
        computed = list(computed) if isinstance(computed, (tuple, list)) else [computed]
        for result, value in zip(results, computed):
            self._constants[result] = value

    def _constant(self, tensor: torch.Tensor) -> Optional[torch.Tensor]:
        """A tensor with its values, where they are known: those that `torch.tensor([...])` makes have them."""
        if type(tensor) is torch.Tensor and tensor.device.type == "cpu" and tensor.numel() <= _CONSTANT_ELEMENTS:
            return tensor
        constant: Optional[torch.Tensor] = self._constants.get(tensor)
        return constant

    def _result(self, op: object, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Optional[Any]:
        if op in _FILLED:
            value = _FILLED[op](*args, **kwargs)
            return bool(value) if result.dtype == torch.bool else value
        if op in (aten.rand, aten.rand_like):
            return NEVER_SKIPS
        if not args or not isinstance(args[0], torch.Tensor) or not all(self._known(a) for a in args if _is_tensor(a)):
            return None
        first = self._value(args[0])
        if op in _KEEPS:
            return first
        if op in (aten.to, aten._to_copy):
            return _cast(first, result.dtype)
        if op in (aten.all, aten.any, aten._is_all_true, aten._is_any_true):
            return bool(first)
        if op in (aten.logical_not, aten.bitwise_not) and args[0].dtype == torch.bool:
            return not first
        if op is aten.sum:
            return (int(first) if isinstance(first, bool) else first) * _ratio(args[0], result)
        if op in _UNARY and len(args) == 1 and not isinstance(first, torch.SymInt):
            return _finite(_UNARY[op], first)
        if op is aten.div and "rounding_mode" in kwargs and len(args) == 2:
            return _finite(_DIVISIONS[kwargs["rounding_mode"]], first, self._value(args[1]))
        if op in _BINARY and len(args) == 2:
            second = self._value(args[1])
            # Comparing sizes that contain the batch is free where they are the same expression; else it would guard.
            if isinstance(first, torch.SymInt) or isinstance(second, torch.SymInt):
                same = str(first) == str(second)
                return True if same and op is aten.eq else None
            return _finite(_BINARY[op], first, second)
        return None

    def _known(self, operand: object) -> bool:
        return not _is_tensor(operand) or operand in self._values

    def _value(self, operand: Any) -> Any:
        return self._values[operand] if _is_tensor(operand) else operand


def _is_tensor(operand: object) -> bool:
    return isinstance(operand, torch.Tensor)


def _node_of(tensor: torch.Tensor, mode: Any) -> Optional[torch.fx.Node]:
    """The node of a tensor in the graph that a mode traces."""
    known = None if mode is None else mode.tracer.tensor_tracker.get(tensor)
    return None if known is None else known.proxy.node


def _finite(function: Callable[..., Any], *numbers: Any) -> Optional[Number]:
    """What a function gives, if that is a number."""
    try:
        value: Number = function(*numbers)
    except (ArithmeticError, ValueError, TypeError):
        return None
    return value if not isinstance(value, float) or math.isfinite(value) else None


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return bool(value)
    return value if dtype.is_floating_point or isinstance(value, torch.SymInt) else int(value)


def _ratio(tensor: torch.Tensor, reduced: torch.Tensor) -> Any:
    """How many elements of a tensor come together in each of the reduced one."""
    if reduced.dim() == 0:
        return tensor.numel()
    fixed = [length for length in (*tensor.shape, *reduced.shape) if isinstance(length, int)]
    if len(fixed) == tensor.dim() + reduced.dim():
        return tensor.numel() // max(reduced.numel(), 1)
    # Lengths that depend on the batch are not reduced, or the result would have none.
    ours = math.prod(length for length in tensor.shape if isinstance(length, int))
    theirs = math.prod(length for length in reduced.shape if isinstance(length, int))
    symbolic = [sum(not isinstance(length, int) for length in t.shape) for t in (tensor, reduced)]
    return ours // max(theirs, 1) if symbolic[0] == symbolic[1] else math.nan
