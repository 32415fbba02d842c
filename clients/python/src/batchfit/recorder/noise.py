"""Dtypes of tensors that code makes for another one: the rules of `crates/torch/src/compile/random_inputs.rs`.

Stochastic depth multiplies by noise of a tensor's own dtype, `torch.rand(shape, dtype=x.dtype)`, and message passing adds messages into
zeros of theirs. An export names the dtype that `x` had then; under another precision it is that of `x` again.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from .graphs import DType, Graph, Operator, Ref
from .lifetimes import read_by, slots_of

_NOISE = ("rand", "empty")
_WRITTEN = ("zeros", "ones", "full", "empty")
_PRODUCTS = ("mul", "mul_", "div", "div_")
_ADDS = ("index_add", "index_add_", "index_put", "index_put_", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_")


def _name(operator: Operator) -> str:
    parts = operator.target.split(".")
    return parts[3] if len(parts) == 5 and parts[2] == "aten" else ""


class Noise:
    """For operators that make tensors by their numbers alone: the tensor that each is made for."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._maker = {slot: index for index, operator in enumerate(graph.operators) for slot in slots_of(operator.outputs)}
        first_reader: dict[int, Operator] = {}
        for operator in graph.operators:
            for slot in read_by(operator):
                first_reader.setdefault(slot, operator)
        self._made_for: dict[int, int] = {}
        for index, operator in enumerate(graph.operators):
            made = slots_of(operator.outputs)
            names_dtype = any(isinstance(given, DType) for _, given in operator.arguments)
            if not made or not names_dtype or _tensors(operator):
                continue
            partner: Optional[int] = None
            if _name(operator) in _NOISE:
                partner = _multiplied(made[0], first_reader)
            if partner is None and _name(operator) in _WRITTEN:
                partner = _added(made[0], first_reader)
            if partner is not None:
                self._made_for[index] = partner

    def dtype(self, index: int, environment: dict[int, Any]) -> Optional[torch.dtype]:
        """The dtype of what operator `index` makes something for, as it is now: of the tensor itself, or of what that will be made from."""
        slot = self._made_for.get(index)
        for _ in range(64):
            if slot is None or slot in environment:
                break
            maker = self._maker.get(slot)
            tensors = [] if maker is None else _tensors(self._graph.operators[maker])
            slot = tensors[0] if tensors else None
        tensor = None if slot is None else environment.get(slot)
        return tensor.dtype if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() else None


def _tensors(operator: Operator) -> list[int]:
    """The operands of an operator, sizes left out."""
    return [given.slot for _, given in operator.arguments if isinstance(given, Ref)]


def _multiplied(slot: int, first_reader: dict[int, Operator]) -> Optional[int]:
    """The other factor of the product that a value ends in, through operators on it alone."""
    for _ in range(64):
        reader = first_reader.get(slot)
        if reader is None:
            return None
        operands = _tensors(reader)
        if len(operands) == 2 and _name(reader) in _PRODUCTS:
            return operands[1] if operands[0] == slot else operands[0]
        made = slots_of(reader.outputs)
        if len(operands) != 1 or not made:
            return None
        slot = made[0]
    return None


def _added(slot: int, first_reader: dict[int, Operator]) -> Optional[int]:
    """What is added into a value at looked-up places, where that is the first thing done with it."""
    reader = first_reader.get(slot)
    operands = [] if reader is None or _name(reader) not in _ADDS else read_by(reader)
    return operands[-1] if len(operands) > 2 and operands[0] == slot and operands[-1] != slot else None
