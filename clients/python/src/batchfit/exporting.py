"""Traces a model with its loss and writes the graph that batchfit reads."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

import torch

from .batches import Batch, as_batch
from .building import build, on_meta
from .document import document
from .eager import eager_decisions
from .einsum_paths import constant_paths
from .errors import ExportError
from .functions import Functions, following
from .lifetimes import Lifetimes, recording
from .losses import Loss, WithLoss, with_loss


@dataclass(frozen=True)
class Exported:
    """A graph as batchfit reads it: JSON, a few dozen KiB when compressed."""

    document: dict[str, Any]

    def to_bytes(self) -> bytes:
        """The JSON text."""
        return json.dumps(self.document, separators=(",", ":")).encode()

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the graph; compressed if the name ends in `.gz`."""
        text = self.to_bytes()
        if Path(path).suffix == ".gz":
            # No name and no time in the header: the same model gives the same file.
            text = gzip.compress(text, mtime=0)
        Path(path).write_bytes(text)


def export(
    model: torch.nn.Module,
    example_batch: Union[Batch, Mapping[str, torch.Tensor], Sequence[torch.Tensor], torch.Tensor],
    loss_fn: Loss,
    *,
    dtype: Optional[torch.dtype] = None,
) -> Exported:
    """Exports the forward pass of `model` with its loss, in training mode.

    `example_batch` gives names, shapes and dtypes; a dict's names are the model's keywords where `loss_fn` is "model".
    `loss_fn` is a criterion (its name, a module, or a function of `torch.nn.functional`), "model" for a model that
    returns its own loss, or a function of the model and the tensors of the batch. `dtype` is that of the parameters and
    of the batch's floating-point tensors, for training without autocast in bfloat16 or float16.

    Weights are neither read nor written, and the model stays as it is.
    """
    return trace(on_meta(model), as_batch(example_batch), loss_fn, dtype)


def export_built(builder: Any, batch: Batch, loss_fn: Loss, dtype: Optional[torch.dtype] = None) -> Exported:
    """The same for a model that `builder` makes."""
    return trace(build(builder), batch, loss_fn, dtype)


def trace(model: torch.nn.Module, batch: Batch, loss_fn: Loss, dtype: Optional[torch.dtype]) -> Exported:
    """Exports a model whose parameters are on the meta device."""
    if dtype is not None:
        model.to(dtype)
        batch = batch.to_dtype(dtype)
    wrapped = with_loss(model, loss_fn, batch.tensors)
    with _training(wrapped), _frozen(wrapped) as trained:
        lifetimes = Lifetimes()
        functions = Functions(lifetimes, lambda: _current(wrapped, trained))
        with recording(lifetimes), eager_decisions(lifetimes) as eager_only, following(functions), constant_paths():
            program = _traced(wrapped, batch)
        tied = _tied(wrapped)
    _check(program)
    return Exported(document(program, lifetimes, eager_only, functions, trained, tied))


def _traced(wrapped: WithLoss, batch: Batch) -> torch.export.ExportedProgram:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(
                wrapped,
                tuple(batch.tensors.values()),
                dynamic_shapes=batch.dynamic_shapes(),
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
    except torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode as error:
        raise ExportError(
            "the model's Python code branches on the values of a tensor, which are not known without data: "
            f"{_first_line(error)}"
        ) from error


def _check(program: torch.export.ExportedProgram) -> None:
    outputs = program.graph_module.graph.find_nodes(op="output")[0].args[0]
    node = outputs[0] if len(outputs) == 1 else None
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor):
        raise ExportError(f"the loss function gave {len(outputs)} values, or none that is a tensor; it must give one")
    if value.dim() != 0:
        raise ExportError(f"the loss has {value.dim()} dimensions; give a loss that ends in a mean or a sum")


@contextlib.contextmanager
def _training(model: torch.nn.Module) -> Iterator[None]:
    """Switches all of a model to training, and each module back."""
    modes = [(module, module.training) for module in model.modules()]
    model.train()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def _frozen(model: torch.nn.Module) -> Iterator[frozenset[str]]:
    """No parameter requires a gradient inside; gives the paths of those that do outside."""
    trained = {path: p for path, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    for parameter in trained.values():
        parameter.requires_grad_(False)
    try:
        yield frozenset(trained)
    finally:
        for parameter in trained.values():
            parameter.requires_grad_(True)


def _current(model: torch.nn.Module, paths: frozenset[str]) -> list[torch.Tensor]:
    """The parameters at these paths as they are now: tracing puts others in their place."""
    return [tensor for path, tensor in model.named_parameters(remove_duplicate=False) if path in paths]


def _tied(model: torch.nn.Module) -> dict[str, str]:
    """For each further path of a parameter or buffer that has several: the first one."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for path, tensor in named:
        if first.setdefault(id(tensor), path) != path:
            tied[path] = first[id(tensor)]
    return tied


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
