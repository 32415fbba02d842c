"""What a graph takes: parameters made by their shapes, and batches filled as probes fill them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from .errors import RecorderError
from .graphs import Graph, Held, Ref, Tensor
from .lifetimes import slots_of

# Scalar types as PyTorch numbers them in a graph.
DTYPES: dict[int, torch.dtype] = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16, 7: torch.float32,
    8: torch.float64, 10: torch.complex64, 11: torch.complex128, 12: torch.bool, 13: torch.bfloat16,
}  # fmt: skip
_HALF = (torch.float16, torch.bfloat16)

# Operators that only rearrange what they are given, by the names of their packets: indices keep their bounds.
_ARRANGES = frozenset(
    (
        "view", "reshape", "_unsafe_view", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "expand_as", "slice", "select",
        "split", "split_with_sizes", "chunk", "unbind", "alias", "detach", "contiguous", "clone", "to", "_to_copy", "pad", "constant_pad_nd",
        "flatten", "lift_fresh_copy", "view_as", "narrow", "unflatten",
    )
)  # fmt: skip
_LOSSES = ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "nll_loss_forward", "multi_margin_loss")


def dtype_of(number: int, where: str) -> torch.dtype:
    dtype = DTYPES.get(number)
    if dtype is None:
        raise RecorderError(f"at {where}: the scalar type {number} is not known")
    return dtype


class Stored:
    """What tensors of a graph are stored in under a precision."""

    def __init__(self, precision: str) -> None:
        self.autocast = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}.get(precision)
        # What parameters of a float32 graph are stored in.
        self.parameters = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)

    def __call__(self, exported: torch.dtype) -> torch.dtype:
        if not exported.is_floating_point or (self.autocast is not None and exported in _HALF):
            return exported
        return self.parameters


def construction_order(held: list[Held]) -> list[Held]:
    """The order of `module.to(device)`: children first, then a module's own parameters, then its buffers."""
    root: dict[str, Any] = {}
    for each in held:
        level = root
        for part in each.path.split(".")[:-1]:
            level = level.setdefault("children", {}).setdefault(part, {})
        level.setdefault("parameters" if each.is_parameter else "buffers", []).append(each)
    ordered: list[Held] = []
    # Paths have at most 256 parts.
    stack: list[tuple[dict[str, Any], bool]] = [(root, False)]
    while stack:
        level, done = stack.pop()
        if done:
            ordered += [*level.get("parameters", []), *level.get("buffers", [])]
            continue
        stack.append((level, True))
        stack += [(child, False) for child in reversed(list(level.get("children", {}).values()))]
    return ordered


def bytes_of(tensor: Tensor, batch: int, dtype: torch.dtype) -> int:
    return math.prod(tensor.shape(batch)) * dtype.itemsize


def make(each: Held, stored: Stored, device: torch.device) -> torch.Tensor:
    """A parameter or buffer, with numbers that training goes well with."""
    dtype = dtype_of(each.tensor.dtype, each.path)
    if each.is_constant and each.tensor.device == "cpu":
        # Code has written it on the host, whose memory is not counted.
        device = torch.device("cpu")
    shape = each.tensor.shape(1)
    tensor = torch.empty(shape, dtype=stored(dtype), device=device)
    name = each.path.rpartition(".")[2]
    with torch.no_grad():
        if each.is_parameter and len(shape) > 1 and tensor.is_floating_point():
            bound = math.sqrt(3.0 / max(1, math.prod(shape[1:])))
            tensor.uniform_(-bound, bound)
        else:
            is_one = name == "running_var" or (each.is_parameter and name == "weight")
            tensor.fill_(1 if is_one else 0)
    if each.is_parameter:
        trained = each.tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
        return torch.nn.Parameter(tensor, requires_grad=trained)
    return tensor


def bounds(graph: Graph) -> dict[int, tuple[str, int]]:
    """For tensors of the batch by slot: what looks something up with their numbers, as the slot of a table or of scores, and the
    dimension of that which bounds them."""
    origin: dict[int, int] = {}
    found: dict[int, tuple[str, int]] = {}
    inputs = {each.slot for each in graph.inputs}
    for operator in graph.operators:
        name = operator.target.split(".")[-2] if "." in operator.target else ""
        given = [value.slot for _, value in operator.arguments if isinstance(value, Ref)]
        if name in _ARRANGES and given:
            origin.update(dict.fromkeys(slots_of(operator.outputs), origin.get(given[0], given[0])))
        if len(given) > 1 and (name in ("embedding", "embedding_bag", "_embedding_bag") or name in _LOSSES):
            of = origin.get(given[1], given[1])
            if of in inputs:
                found.setdefault(of, ("table" if "embedding" in name else "scores", given[0]))
    return found


class Batches:
    """Makes the batch of a micro-step."""

    def __init__(self, graph: Graph, stored: Stored, device: torch.device, classes: dict[int, int]) -> None:
        """`classes` are the numbers below which tensors of whole numbers stay, by slot; others are zeros."""
        self._graph, self._stored, self._device, self._classes = graph, stored, device, classes

    def make(self, batch: int) -> list[torch.Tensor]:
        made: list[torch.Tensor] = []
        for each in self._graph.inputs:
            dtype = self._stored(dtype_of(each.tensor.dtype, each.name))
            shape = each.tensor.shape(batch)
            if dtype.is_floating_point or dtype.is_complex:
                made.append(torch.randn(shape, dtype=dtype, device=self._device))
            else:
                high = self._classes.get(each.slot, 1)
                if dtype == torch.bool or high < 2:
                    made.append(torch.zeros(shape, dtype=dtype, device=self._device))
                else:
                    made.append(torch.randint(high, shape, dtype=dtype, device=self._device))
        return made


def classes_of(graph: Graph) -> dict[int, int]:
    """The least bound of what each tensor of the batch looks up, from what the graph says of shapes."""
    found: dict[int, int] = {}
    for slot, (kind, of) in bounds(graph).items():
        shape = graph.shapes.get(of)
        length = shape[0 if kind == "table" or len(shape) == 1 else 1] if shape else None
        if length is not None:
            found[slot] = min(length, found.get(slot, length))
    return found


# Recurrent nets, with the numbers that cuDNN knows them by.
_RECURRENT = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}


@dataclass(frozen=True)
class Recurrent:
    """The weights of a recurrent net, which `torch.nn.RNNBase.flatten_parameters` moves into one buffer as they come to the card."""

    weights: tuple[int, ...]
    mode: int
    layers: int
    bidirectional: bool
    batch_first: bool

    def flatten(self, held: dict[int, torch.Tensor]) -> None:
        # The parameters themselves: they become views of the buffer.
        weights = [held[slot] for slot in self.weights]
        is_acceptable: Any = torch.backends.cudnn.is_acceptable
        if not is_acceptable(weights[0]) or len({weight.dtype for weight in weights}) > 1:
            return
        per_layer = len(weights) // (self.layers * (2 if self.bidirectional else 1))
        # With biases there are four weights of a layer, or five with a projection; without there are two, or three.
        projected = weights[-1].size(0) if per_layer in (3, 5) else 0
        hidden = weights[0].size(0) // 4 if projected else weights[1].size(1)
        flat: Any = torch._cudnn_rnn_flatten_weight
        with torch.no_grad():
            flat(weights, per_layer, weights[0].size(1), self.mode, hidden, projected, self.layers, self.batch_first, self.bidirectional)


def recurrent(graph: Graph) -> list[Recurrent]:
    """The recurrent nets of a graph whose weights are all parameters; each of these is in one."""
    parameters = {each.slot for each in graph.held if each.is_parameter}
    found = []
    for operator in graph.operators:
        name = operator.target.removeprefix("torch.ops.aten.").removesuffix(".input")
        if name not in _RECURRENT or name == operator.target:
            continue
        given = dict(operator.arguments)
        weights = given.get("params")
        slots = tuple(each.slot for each in weights if isinstance(each, Ref)) if isinstance(weights, list) else ()
        layers = given.get("num_layers")
        if not slots or not parameters.issuperset(slots) or not isinstance(layers, int) or layers < 1:
            continue
        parameters.difference_update(slots)
        found.append(
            Recurrent(slots, _RECURRENT[name], layers, given.get("bidirectional") is True, given.get("batch_first") is True)
        )
    return found
