"""Traces a model with its loss and writes the graph that batchfit reads."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

import torch

from .batches import EXAMPLE_BATCH, MAX_BATCH, Batch, Number, as_batch
from .building import Built, build, on_meta
from .composites import splitting_up
from .document import document
from .eager import eager_decisions
from .einsum_paths import constant_paths
from .errors import ExportError
from .failures import explained, is_about_devices, is_about_the_batch, path_of_small_batches
from .functions import Functions, following
from .lifetimes import Lifetimes, recording
from .losses import Loss, WithLoss, with_loss
from .tracing import quiet, sizes_of_data, ties_of_the_batch, trying_out_comparisons, whole_numbers
from .values import KnownValues

Progress = Callable[[int], None]


@dataclass(frozen=True, repr=False)
class Exported:
    """A graph as batchfit reads it: JSON, a few dozen KiB when compressed."""

    document: dict[str, Any]

    def __repr__(self) -> str:
        graph = self.document["graph_module"]["graph"]
        specs = self.document["graph_module"]["signature"]["input_specs"]
        kinds = [next(iter(spec)) for spec in specs]
        counts = f"{len(graph['nodes'])} operators, {kinds.count('parameter')} parameters, {kinds.count('user_input')} inputs"
        return f"<batchfit.Exported: {counts}>"

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

    def fit(self, *, on: str, **flags: Any) -> Any:
        """The largest batch that fits the card `on`; other flags are those of `batchfit.fit`."""
        from ..asking import fit

        return fit(self, on=on, **flags)


def export(
    model: torch.nn.Module,
    example_batch: Union[Batch, Mapping[str, torch.Tensor], Sequence[torch.Tensor], torch.Tensor],
    loss_fn: Loss,
    *,
    dtype: Optional[torch.dtype] = None,
    max_batch: Optional[int] = None,
    values: Optional[Mapping[str, Number]] = None,
    progress: Optional[Progress] = None,
) -> Exported:
    """Exports the forward pass of `model` with its loss, in training mode.

    `example_batch` gives names, shapes and dtypes; a dict's names are the model's keywords where `loss_fn` is "model".
    `loss_fn` is a criterion (its name, a module, or a function of `torch.nn.functional`), "model" for a model that
    returns its own loss, or a function of the model and the tensors of the batch. `dtype` is that of the parameters and
    of the batch's floating-point tensors, for training without autocast in bfloat16 or float16. `max_batch` is the largest
    batch that the graph holds for: models that take another path from some batch on have a graph for each side. `values`
    are tensors of the batch that hold one number everywhere and that the model's code reads: `{"lengths": 100}` where all
    samples are 100 long. `progress` is called after each operator with how many there are.

    Weights are neither read nor written, and the model stays as it is.
    """
    return trace(on_meta(model), as_batch(example_batch, values or {}), loss_fn, dtype, max_batch, progress)


def export_built(
    builder: Any,
    batch: Batch,
    loss_fn: Loss,
    dtype: Optional[torch.dtype] = None,
    max_batch: Optional[int] = None,
    progress: Optional[Progress] = None,
) -> Exported:
    """The same for a model that `builder` makes."""
    return trace(build(builder), batch, loss_fn, dtype, max_batch, progress)


def trace(
    built: Built,
    batch: Batch,
    loss_fn: Loss,
    dtype: Optional[torch.dtype],
    max_batch: Optional[int],
    progress: Optional[Progress],
) -> Exported:
    """Exports a model whose parameters are on the meta device."""
    model = built.model
    if dtype is not None:
        model.to(dtype)
        batch = batch.to_dtype(dtype)
    wrapped = with_loss(model, loss_fn, batch.tensors)
    largest = MAX_BATCH if max_batch is None else max_batch
    try:
        return _care(wrapped, built, batch, largest, progress)
    except ExportError as error:
        if not is_about_devices(error):
            raise
    # As after `torch.set_default_device("cuda")`: what the code makes without naming a device is where the model is.
    with torch.device("meta"):
        return _care(wrapped, built, batch, largest, progress)


def _care(wrapped: WithLoss, built: Built, batch: Batch, largest: int, progress: Optional[Progress]) -> Exported:
    """Exports with as much care for how the code uses the batch as it takes."""
    try:
        return _attempt(wrapped, built, batch, largest, progress, None)
    except _Tied as error:
        tied = error
    except ExportError as error:
        most = path_of_small_batches(error)
        if most is None or most >= _SMALLEST[-1] or largest != MAX_BATCH:
            raise
        # Most batches are larger, and take the other path.
        return _attempt(wrapped, built, batch, largest, progress, _Tied([], None), _SMALLEST[-1])
    tied.modules += [names for names in _user_modules(wrapped) if not any(names is known for known in tied.modules)]
    try:
        return _attempt(wrapped, built, batch, largest, progress, tied)
    except ExportError as error:
        failure = error
    # Code that differs for a batch of one, or of a few: the graph is that of larger ones.
    for smallest in _SMALLEST if largest == MAX_BATCH else ():
        try:
            return _attempt(wrapped, built, batch, largest, progress, tied, smallest)
        except ExportError:
            continue
    raise failure


# The smallest batches that a graph is asked to hold for, where it does not hold for one. `cdist` takes another path above 25.
_SMALLEST = (2, 3, 32)


def _user_modules(model: torch.nn.Module) -> list[dict[str, Any]]:
    """The variables of the modules that a model's classes are from, but for PyTorch's."""
    names = {type(module).__module__ for module in model.modules()}
    found = [sys.modules[name] for name in names if name in sys.modules and not name.startswith(("torch.", "batchfit."))]
    return [vars(module) for module in found]


class _Tied(Exception):
    """Code tied the batch to numbers, in modules with these variables."""

    def __init__(self, modules: list[dict[str, Any]], place: Optional[str]) -> None:
        super().__init__()
        self.modules, self.place = modules, place


def _attempt(
    wrapped: WithLoss,
    built: Built,
    batch: Batch,
    max_batch: int,
    progress: Optional[Progress],
    tied: Optional[_Tied],
    min_batch: int = 1,
) -> Exported:
    """Exports once; the second time round with more care for how code uses the batch, which takes longer."""
    values = KnownValues(batch.values, {f"model.{path}": number for path, number in built.buffers.items()})

    def begin(tensors: Mapping[str, torch.Tensor]) -> None:
        batch.make_one(tensors)
        values.begin(tensors, dict(wrapped.named_buffers()))

    wrapped.on_batch = begin
    with _training(wrapped), _frozen(wrapped) as trained:
        lifetimes = Lifetimes() if progress is None else Lifetimes(progress)
        functions = Functions(lifetimes, lambda: _current(wrapped, trained))
        with contextlib.ExitStack() as stack:
            stack.enter_context(recording(lifetimes))
            eager_only = stack.enter_context(eager_decisions(lifetimes, values))
            stack.enter_context(following(functions))
            stack.enter_context(constant_paths())
            stack.enter_context(splitting_up())
            if tied is not None:
                stack.enter_context(whole_numbers(tied.modules))
                stack.enter_context(trying_out_comparisons(min_batch))
            program = _traced(wrapped, batch, (min(min_batch, EXAMPLE_BATCH - 1), max_batch), values, tied)
        shared = _shared(wrapped)
    _check(program)
    return Exported(document(program, lifetimes, eager_only, functions, trained, shared))


def _traced(
    wrapped: WithLoss, batch: Batch, bounds: tuple[int, int], values: KnownValues, tied: Optional[_Tied]
) -> torch.export.ExportedProgram:
    with quiet(), sizes_of_data(), ties_of_the_batch() as ties:
        try:
            return torch.export.export(
                wrapped,
                tuple(batch.tensors.values()),
                dynamic_shapes=batch.dynamic_shapes(*bounds),
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
        except ExportError:
            raise
        except Exception as error:  # Whatever the model's code raises on tensors without data.
            if tied is None and is_about_the_batch(error):
                failure: Exception = _Tied(ties.modules(), ties.place())
            else:
                fixed_at = ties.place() or (None if tied is None else tied.place)
                failure = explained(error, wrapped, values.asked(), batch.whole(), fixed_at)
    raise failure


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


def _shared(model: torch.nn.Module) -> dict[str, str]:
    """For each further path of a parameter or buffer that has several: the first one."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for path, tensor in named:
        if first.setdefault(id(tensor), path) != path:
            tied[path] = first[id(tensor)]
    return tied

