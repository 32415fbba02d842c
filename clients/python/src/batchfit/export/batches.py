"""Batches without data: what the training loop would hand to the model, on the meta device."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

import sympy  # type: ignore[import-untyped]
import torch

from .errors import ExportError

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "bool": torch.bool,
}

# The same by PyTorch's and NumPy's names.
_ALIASES = {str(dtype).removeprefix("torch."): name for name, dtype in DTYPES.items()} | {
    "float": "f32", "double": "f64", "half": "f16", "long": "i64", "int": "i32", "fp32": "f32", "fp16": "f16"
}

# The batch that stands for all others while a model is traced. Not 0 or 1, which tracing would take for constants, and
# even, for models that halve their batch.
EXAMPLE_BATCH = 4

Number = Union[int, float, bool]

# The largest batch that a graph is asked to hold for, unless the caller names one.
MAX_BATCH = 1 << 20

_SAME = re.compile(r"^(?P<name>[A-Za-z_]\w*)=(?P<other>[A-Za-z_]\w*)$")
_SPEC = re.compile(r"^(?P<name>[A-Za-z_]\w*)=(?P<dtype>\w+)\[(?P<shape>[^\]]*)\](?:=(?P<value>[^=]+))?$")
_LENGTH = re.compile(r"^(?:(?P<factor>[1-9]\d*)\*)?B$")


@dataclass(frozen=True)
class Batch:
    """Tensors of a batch by name, in the order in which the training loop makes them.

    `batched` tells for each tensor which of its dimensions grow with the batch, and how many times as long as the batch
    each is; all others are fixed.
    """

    tensors: Mapping[str, torch.Tensor]
    batched: Mapping[str, Mapping[int, int]]
    # What all elements of a tensor are, where that is known: lengths, masks.
    values: Mapping[str, Number] = field(default_factory=dict)

    def dynamic_shapes(self, min_batch: int = 1, max_batch: int = MAX_BATCH) -> dict[str, dict[int, Any]]:
        """Which dimensions are symbolic, as `torch.export` wants to know it."""
        batch = torch.export.Dim("B", min=min_batch, max=max_batch)
        return {
            name: {
                dim: batch if factor == 1 else factor * batch for dim, factor in self.batched.get(name, {}).items()
            }
            for name in self.tensors
        }

    def make_one(self, traced: Mapping[str, torch.Tensor]) -> None:
        """Tells PyTorch that the batch is the same in all traced tensors; else it gives each a symbol until they meet."""
        symbolic: list[tuple[Any, int]] = []
        for name, dims in self.batched.items():
            for dim, factor in dims.items():
                length: Any = traced[name].shape[dim]
                if isinstance(length, torch.SymInt):
                    symbolic.append((length.node, factor))
        for node, factor in symbolic[1:]:
            first, of_first = symbolic[0]
            node.shape_env.evaluate_expr(sympy.Eq(node.expr * of_first, first.expr * factor))

    def shape(self, name: str, size: int) -> list[int]:
        """The shape of a tensor where the batch has `size` samples."""
        grows = self.batched.get(name, {})
        return [size * grows[dim] if dim in grows else length for dim, length in enumerate(self.tensors[name].shape)]

    def whole(self) -> list[str]:
        """The names of tensors of whole numbers: lengths, masks, labels."""
        return [name for name, tensor in self.tensors.items() if not tensor.is_floating_point()]

    def to_dtype(self, dtype: torch.dtype) -> Batch:
        """The same batch with its floating-point tensors in `dtype`."""
        cast = {
            id(tensor): tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in self.tensors.values()
        }
        return replace(self, tensors={name: cast[id(tensor)] for name, tensor in self.tensors.items()})


def parse_batch(specs: Sequence[str]) -> Batch:
    """Reads tensors such as `x=f32[B,3,224,224]`, where `B` is the batch, and `4*B` four times that; `labels=input_ids`
    is one tensor twice, and `lengths=i64[B]=100` is 100 everywhere."""
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Number] = {}
    batched: dict[str, Mapping[int, int]] = {}
    # `x=f32[B,3],y=i64[B]` are two.
    for spec in (one for text in specs for one in re.split(r",(?=[A-Za-z_]\w*=)", text)):
        same = _SAME.match(spec)
        if same is not None and same["other"] in tensors:
            tensors[same["name"]] = tensors[same["other"]]
            batched[same["name"]] = batched[same["other"]]
            if same["other"] in values:
                values[same["name"]] = values[same["other"]]
            continue
        match = _SPEC.match(spec.replace(" ", ""))
        if match is None:
            raise ExportError(f"cannot read the batch tensor {spec!r}; write it as in x=f32[B,3,224,224]")
        name, dtype = match["name"], _ALIASES.get(match["dtype"], match["dtype"])
        if dtype not in DTYPES:
            raise ExportError(f"unknown dtype {dtype!r} in {spec!r}; known are {', '.join(DTYPES)}")
        if name in tensors:
            raise ExportError(f"the batch has two tensors named {name!r}")
        lengths = [length for length in match["shape"].split(",") if length]
        shape, grows = [], {}
        for position, length in enumerate(lengths):
            batch = _LENGTH.match(length)
            if batch is not None:
                grows[position] = int(batch["factor"] or 1)
                shape.append(EXAMPLE_BATCH * grows[position])
            elif length.isdecimal():
                shape.append(int(length))
            else:
                raise ExportError(
                    f"cannot read the length {length!r} in {spec!r}; lengths are numbers, B, the batch, and multiples "
                    "of it such as 4*B"
                )
        batched[name] = grows
        if match["value"] is not None:
            values[name] = _number(match["value"], DTYPES[dtype], spec)
        tensors[name] = torch.empty(shape, dtype=DTYPES[dtype], device="meta")
    if not any(batched.values()):
        raise ExportError("no tensor has a batch; write B for one of its lengths, as in x=f32[B,3,224,224]")
    return Batch(tensors, batched, values)


def _number(text: str, dtype: torch.dtype, spec: str) -> Number:
    try:
        number = float(text) if dtype.is_floating_point else int(text)
    except ValueError:
        raise ExportError(f"cannot read the value {text!r} in {spec!r}; give a number of that dtype, as in lengths=i64[B]=100") from None
    return bool(number) if dtype == torch.bool else number


def as_batch(example: Batch | Mapping[str, torch.Tensor] | Sequence[torch.Tensor] | torch.Tensor, values: Mapping[str, Number]) -> Batch:
    """Takes a real batch as an example: only names, shapes and dtypes count, and the numbers in `values`.

    The first dimension of the first tensor is the batch, and so is that of every other tensor where it is as long.
    """
    if isinstance(example, Batch):
        return example
    if isinstance(example, torch.Tensor):
        example = (example,)
    if not isinstance(example, Mapping):
        example = {f"x{index}": tensor for index, tensor in enumerate(example)}
    if not example or not all(isinstance(tensor, torch.Tensor) for tensor in example.values()):
        raise ExportError("the example batch must be a tensor, or a list, tuple or dict of tensors")
    first = next(iter(example.values()))
    if first.dim() == 0:
        raise ExportError("the first tensor of the example batch has no dimension that could be the batch")
    size = first.shape[0]
    batched = {name: {0: 1} if tensor.dim() > 0 and tensor.shape[0] == size else {} for name, tensor in example.items()}
    # A tensor that the batch has twice stays one.
    made: dict[int, torch.Tensor] = {}
    for name, tensor in example.items():
        shape = (EXAMPLE_BATCH, *tensor.shape[1:]) if batched[name] else tensor.shape
        made.setdefault(id(tensor), torch.empty(shape, dtype=tensor.dtype, device="meta"))
    unknown = [name for name in values if name not in example]
    if unknown:
        raise ExportError(f"values are given for {', '.join(unknown)}, which the example batch does not have")
    return Batch({name: made[id(tensor)] for name, tensor in example.items()}, batched, values)
