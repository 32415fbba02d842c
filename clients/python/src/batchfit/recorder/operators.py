"""Which operators of a graph are called, and how they are found.

An operator has to be registered with PyTorch in one of a few namespaces, and what it takes and gives has to be tensors, numbers
and the like. What touches files, streams, storages or the host's memory is refused by name.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any, Optional

import torch

from .errors import RecorderError

# Namespaces that exports of models have: PyTorch's own, and those of libraries that register theirs when they are imported.
NAMESPACES = ("aten", "torchvision", "torchaudio", "torch_scatter", "torch_sparse", "torch_cluster")

_NAME = re.compile(r"^torch\.ops\.([a-z_]+)\.([A-Za-z_][A-Za-z0-9_]*)\.([A-Za-z_][A-Za-z0-9_]*)$")

# Types of arguments and results, as schemas write them, without `?`, `[]` and alias marks.
_TYPES = frozenset(
    ("Tensor", "int", "SymInt", "float", "bool", "str", "number", "Scalar", "ScalarType", "Layout", "Device", "MemoryFormat")
)

# Operators of these names are never called.
_REFUSED = frozenset(
    (
        "from_file", "_from_file", "set_", "set", "resize_", "resize", "resize_as_", "_resize_output_", "_print", "record_stream", "pin_memory",
        "_pin_memory", "is_pinned", "data", "set_data", "requires_grad_", "retain_grad", "_backward", "output_nr", "_version",
        "_cudnn_init_dropout_state", "_cufft_set_plan_cache_max_size", "_cufft_clear_plan_cache", "_has_same_storage_numel",
        "_nested_tensor_from_mask", "rename", "rename_", "refine_names", "align_to", "_use_cudnn_ctc_loss", "swapdims_", "_lazy_clone",
        "_resize_output", "_cslt_compress", "sparse_resize_", "sparse_resize_and_clear_", "_dimI", "_dimV", "_foobar", "_thnn_fused_gru_cell",
    )
)  # fmt: skip

# Checks that tracing leaves: they compute nothing that a step needs. The list of `crates/models/src/exported/lower.rs`.
IGNORED = frozenset(
    f"torch.ops.aten.{name}"
    for name in (
        "_assert_tensor_metadata.default", "_assert_scalar.default", "_assert_async.default", "_assert_async.msg",
        "_functional_assert_async.msg", "_linalg_check_errors.default", "_print.default", "promote_types.default",
        "sym_constrain_range.default", "sym_constrain_range_for_size.default",
    )
)  # fmt: skip

_MOST_BITS = 63


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers whose result has at most 63 bits."""

    def compute(*numbers: Any) -> Any:
        if not all(isinstance(number, (bool, int, float)) for number in numbers):
            raise RecorderError("an operator of numbers has an argument that is none")
        try:
            result = function(*numbers)
        except (ArithmeticError, ValueError) as error:
            raise RecorderError(str(error)) from None
        if isinstance(result, int) and result.bit_length() > _MOST_BITS:
            raise RecorderError(f"a number of more than {_MOST_BITS} bits")
        if not isinstance(result, (bool, int, float)):
            raise RecorderError("an operator of numbers gives none")
        return result

    return compute


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and not 0 <= exponent <= _MOST_BITS:
        return float(base) ** exponent
    return base**exponent


# Functions of numbers, which tracing leaves as they are in Python.
_OF_NUMBERS: dict[str, Callable[..., Any]] = {
    "_operator.add": operator.add, "_operator.sub": operator.sub, "_operator.mul": operator.mul,
    "_operator.floordiv": operator.floordiv, "_operator.truediv": operator.truediv, "_operator.mod": operator.mod,
    "_operator.pow": _power, "_operator.neg": operator.neg, "_operator.pos": operator.pos, "_operator.eq": operator.eq,
    "_operator.ne": operator.ne, "_operator.lt": operator.lt, "_operator.le": operator.le, "_operator.gt": operator.gt,
    "_operator.ge": operator.ge, "_operator.and_": operator.and_, "_operator.or_": operator.or_,
    "torch.sym_float": float, "torch.sym_int": int, "torch.sym_max": max, "torch.sym_min": min,
    "torch.sym_not": operator.not_, "torch.sym_ite": lambda test, yes, no: yes if test else no,
    "torch._sym_sqrt": math.sqrt, "math.ceil": math.ceil, "math.floor": math.floor, "math.trunc": math.trunc, "builtins.round": round,
    "torch.ops.aten.add.int": operator.add, "torch.ops.aten.mul.int": operator.mul,
}  # fmt: skip


def _size(tensor: torch.Tensor, dim: int) -> int:
    return tensor.size(dim)


_OF_SHAPES: dict[str, Callable[..., Any]] = {
    "torch.ops.aten.sym_size.int": _size,
    "torch.ops.aten.sym_numel.default": lambda tensor: tensor.numel(),
    "torch.ops.aten.sym_stride.int": lambda tensor, dim: tensor.stride(dim),
    "torch.ops.aten.sym_storage_offset.default": lambda tensor: tensor.storage_offset(),
}


class Called:
    """What a node's target names."""

    def __init__(self, function: Callable[..., Any], schema: Optional[Any], makes_list: bool) -> None:
        self.function, self.schema, self.makes_list = function, schema, makes_list

    def has(self, name: str) -> bool:
        return self.schema is None or any(argument.name == name for argument in self.schema.arguments)


class Operators:
    """Looks up targets."""

    def __init__(self) -> None:
        self._known: dict[str, Called] = {}
        self._registered: Optional[frozenset[str]] = None

    def find(self, target: str) -> Called:
        known = self._known.get(target)
        if known is None:
            known = self._known[target] = self._look_up(target)
        return known

    def _look_up(self, target: str) -> Called:
        if target in _OF_NUMBERS:
            return Called(_bounded(_OF_NUMBERS[target]), None, False)
        if target in _OF_SHAPES:
            return Called(_OF_SHAPES[target], None, False)
        match = _NAME.match(target)
        if match is None or match[1] not in NAMESPACES:
            raise RecorderError(
                f"the operator {target[:120]!r} is not called; known are those of {', '.join(NAMESPACES)} and functions of numbers"
            )
        namespace, name, overload = match.groups()
        if self._registered is None:
            self._registered = frozenset(torch._C._dispatch_get_all_op_names())
        full = f"{namespace}::{name}" + ("" if overload == "default" else f".{overload}")
        if full not in self._registered:
            library = "" if namespace == "aten" else f"; {namespace} has to be installed and is then imported"
            raise RecorderError(f"PyTorch {torch.__version__} has no operator {full}{library}")
        if name in _REFUSED:
            raise RecorderError(f"the operator {full} is not called: it does more than compute tensors of tensors")
        packet = getattr(getattr(torch.ops, namespace), name)
        found = getattr(packet, overload)
        schema = found._schema
        types = [argument.type for argument in schema.arguments] + [result.type for result in schema.returns]
        for kind in types:
            if not _is_allowed(kind):
                raise RecorderError(f"the operator {full} is not called: it takes or gives a {kind}")
        makes_list = any("[]" in str(result.type) or "List" in str(result.type) for result in schema.returns)
        return Called(found, schema, makes_list)


def _is_allowed(kind: Any) -> bool:
    text = str(kind)
    for wrapper in ("Optional[", "List["):
        text = text.replace(wrapper, "")
    text = text.replace("]", "").replace("[", "").replace("?", "")
    # A generator may be left out; a graph has none to give.
    return text in _TYPES or text == "Generator"


def import_namespaces(names: set[str]) -> None:
    """Imports the libraries whose operators a graph has, where they are installed: they register them as they are imported."""
    for name in NAMESPACES[1:]:
        if name in names:
            try:
                __import__(name)
            except ImportError:
                continue
