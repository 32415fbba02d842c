"""The training loop that all of batchfit predicts, statement by statement; see `crates/torch/src/compile/NOTES.md`, Note [One micro-step]."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional, Protocol

import torch
from torch.amp.grad_scaler import GradScaler

from .blocks import Checkpointing
from .errors import RecorderError
from .graphs import Graph
from .stored import Batches, Stored, bytes_of, classes_of, construction_order, dtype_of, make, recurrent
from .interpreter import Interpreter

STEPS = 3

_OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 1e-4}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 1e-4, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 1e-5}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-5}),
}
_IMPLEMENTATIONS: dict[str, dict[str, bool]] = {"foreach": {}, "fused": {"fused": True}, "for_loop": {"foreach": False}}
PRECISIONS = ("fp32", "amp_fp16", "amp_bf16", "bf16", "fp16")


@dataclass(frozen=True)
class Training:
    """How a model is trained, as a request says it."""

    precision: str = "fp32"
    optimizer: str = "adamw"
    optimizer_impl: str = "foreach"
    checkpointing: Checkpointing = None
    accumulation: int = 1
    clip_grad_norm: Optional[float] = None

    def __post_init__(self) -> None:
        known = (("precision", PRECISIONS), ("optimizer", tuple(_OPTIMIZERS)), ("optimizer_impl", tuple(_IMPLEMENTATIONS)))
        for name, names in known:
            if getattr(self, name) not in names:
                raise RecorderError(f"the {name} {str(getattr(self, name))[:80]!r} is not known; known are {', '.join(names)}")
        if not 1 <= self.accumulation <= 65_536:
            raise RecorderError("a step has 1 to 65536 micro-steps")

    def make_optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        made, options = _OPTIMIZERS[self.optimizer]
        optimizer: torch.optim.Optimizer = made(parameters, **options, **_IMPLEMENTATIONS[self.optimizer_impl])
        return optimizer


class Program(Protocol):
    """What is trained."""

    def construct(self) -> list[torch.nn.Parameter]:
        """Puts the model on the device; gives what is trained."""

    def make_batch(self, batch: int) -> list[torch.Tensor]:
        """The tensors of a batch, in the order in which the loop makes them."""

    def loss(self, batch: list[torch.Tensor], size: int) -> torch.Tensor:
        """The forward pass with the loss."""


class GraphProgram:
    """An exported graph."""

    def __init__(self, graph: Graph, training: Training, device: torch.device) -> None:
        self.graph, self.device = graph, device
        self._stored = Stored(training.precision)
        self._interpreter = Interpreter(graph, self._stored, training.checkpointing, device)
        self._batches = Batches(graph, self._stored, device, classes_of(graph))
        self._held: dict[int, torch.Tensor] = {}

    def check(self, batch: int, limit: Optional[int]) -> None:
        """Refuses what the graph does not hold for, and says what parameters and batch alone take too much memory."""
        least, most = self.graph.batches
        if not least <= batch <= most:
            raise RecorderError(f"the graph holds for batches from {least} to {most}, not for {batch}")
        held = sum(bytes_of(each.tensor, 1, self._stored(dtype_of(each.tensor.dtype, each.path))) for each in self.graph.held)
        inputs = sum(bytes_of(each.tensor, batch, dtype_of(each.tensor.dtype, each.name)) for each in self.graph.inputs)
        if limit is not None and held + inputs > limit:
            raise torch.OutOfMemoryError(f"parameters and batch alone take {held + inputs} bytes, and {limit} may be taken")

    def construct(self) -> list[torch.nn.Parameter]:
        nets = recurrent(self.graph)
        for each in construction_order(self.graph.held):
            self._held[each.slot] = make(each, self._stored, self.device)
            for net in nets:
                if each.slot in net.weights and all(slot in self._held for slot in net.weights):
                    net.flatten(self._held)
        tensors = [self._held[each.slot] for each in self.graph.held]
        return [tensor for tensor in tensors if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad]

    def make_batch(self, batch: int) -> list[torch.Tensor]:
        return self._batches.make(batch)

    def loss(self, batch: list[torch.Tensor], size: int) -> torch.Tensor:
        return self._interpreter.loss(self._held, batch, size)


class _NeverSkips(GradScaler):
    """A scaler for numbers that mean nothing: a step that is skipped makes no optimizer state, which training soon has."""

    def _maybe_opt_step(self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any) -> Optional[float]:
        # As PyTorch does, it waits for the card here.
        _ = sum(value.item() for value in optimizer_state["found_inf_per_device"].values())
        stepped: Optional[float] = optimizer.step(*args, **kwargs)
        return stepped


def train(
    program: Program, training: Training, batch: int, device: torch.device, begin_step: Callable[[], None], end_step: Callable[[], None]
) -> object:
    """Construction and three steps. What it gives is to be kept until the recording has ended: the training goes on."""
    parameters = program.construct()
    if not parameters:
        raise RecorderError("no parameter requires a gradient, so there is nothing to train")
    optimizer = training.make_optimizer(parameters)
    del parameters
    # A scale that cannot overflow, as predictions have it.
    scaler = _NeverSkips(device.type, init_scale=1.0) if training.precision == "amp_fp16" else None
    autocast = Stored(training.precision).autocast
    collecting = gc.isenabled()
    # When the collector runs is chance.
    gc.disable()
    try:
        for _ in range(STEPS):
            begin_step()
            for _ in range(training.accumulation):
                _micro_step(program, training, batch, device, autocast, scaler)
            if training.clip_grad_norm is not None:
                if scaler is not None:
                    scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], training.clip_grad_norm)
            if scaler is not None:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            end_step()
    finally:
        if collecting:
            gc.enable()
    return optimizer, scaler


def _micro_step(
    program: Program, training: Training, batch: int, device: torch.device, autocast: Optional[torch.dtype], scaler: Optional[_NeverSkips]
) -> None:
    tensors = program.make_batch(batch)
    with torch.autocast(device.type, dtype=autocast or torch.float16, enabled=autocast is not None):
        undivided = program.loss(tensors, batch)
        loss = undivided / training.accumulation
    # A loop that divides in place of a name of its own, unless the number keeps more memory than it shows.
    if undivided.untyped_storage().nbytes() == undivided.nbytes:
        del undivided
    backward: Any = scaler.scale(loss) if scaler is not None else loss
    if not loss.requires_grad:
        raise RecorderError("the loss does not depend on any parameter that is trained")
    backward.backward()
    del backward
    while tensors:
        tensors.pop()
