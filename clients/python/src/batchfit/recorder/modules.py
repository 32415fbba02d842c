"""The user's own module, trained as it is: only for whoever runs the command line, never for a request from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.utils.checkpoint

from .blocks import matches, repeated
from .errors import RecorderError
from .stored import Stored
from .training import Training


@dataclass(frozen=True)
class Named:
    """What the command line names: `my_module:build`, the batch's tensors and the loss, as `batchfit export` reads them."""

    builder: str
    batch: Sequence[str]
    loss: str


class ModuleProgram:
    """A module that somebody's own code builds."""

    def __init__(self, named: Named, training: Training, device: torch.device) -> None:
        from ..export.batches import parse_batch
        from ..export.building import load
        from ..export.errors import ExportError
        from ..export.losses import NAMES

        self._training, self._device, self._stored = training, device, Stored(training.precision)
        try:
            self._batch = parse_batch(named.batch)
            builder: Any = load(named.builder)
            if named.loss not in NAMES and ":" not in named.loss:
                raise ExportError(f"unknown loss {named.loss!r}; known are {', '.join(NAMES)} and MODULE:FUNCTION")
            self._loss: Any = load(named.loss) if ":" in named.loss else named.loss
        except ExportError as error:
            raise RecorderError(str(error)) from None
        self._builder: Callable[[], Any] = builder
        self._wrapped: Optional[Any] = None

    def construct(self) -> list[torch.nn.Parameter]:
        from ..export.losses import with_loss

        model = self._builder if isinstance(self._builder, torch.nn.Module) else self._builder()
        if not isinstance(model, torch.nn.Module):
            raise RecorderError(f"the builder gave a {type(model).__name__}, not a torch.nn.Module")
        if self._stored.parameters != torch.float32:
            model = model.to(self._stored.parameters)
        model = model.to(self._device)
        model.train()
        self._checkpoint(model)
        self._wrapped = with_loss(model, self._loss, self._batch.tensors)
        return [parameter for parameter in model.parameters() if parameter.requires_grad]

    def _checkpoint(self, model: torch.nn.Module) -> None:
        asked = self._training.checkpointing
        if asked in (None, "none"):
            return
        modules = dict(model.named_modules())
        classes = {path: f"{type(module).__module__}.{type(module).__qualname__}" for path, module in modules.items()}
        if asked == "per_block":
            chosen = repeated([[(parent, classes[parent]) for parent in _down_to(path)] for path in modules if path])
        else:
            chosen = {path for path in modules if path and matches(asked, path)}
        outermost = [path for path in chosen if not any(parent in chosen for parent in _down_to(path)[:-1])]
        if not outermost:
            raise RecorderError("no module of this model is what `checkpointing` asks for")
        for path in outermost:
            module: Any = modules[path]
            module.forward = _checkpointed(module.forward)

    def make_batch(self, batch: int) -> list[torch.Tensor]:
        made: dict[int, torch.Tensor] = {}
        for name, tensor in self._batch.tensors.items():
            if id(tensor) in made:
                continue
            shape, dtype = self._batch.shape(name, batch), self._stored(tensor.dtype)
            if name in self._batch.values:
                made[id(tensor)] = torch.full(shape, self._batch.values[name], dtype=dtype, device=self._device)
            elif dtype.is_floating_point:
                made[id(tensor)] = torch.randn(shape, dtype=dtype, device=self._device)
            else:
                made[id(tensor)] = torch.zeros(shape, dtype=dtype, device=self._device)
        return [made[id(tensor)] for tensor in self._batch.tensors.values()]

    def loss(self, batch: list[torch.Tensor], size: int) -> torch.Tensor:
        if self._wrapped is None:
            raise RecorderError("the module has not been built")
        loss: torch.Tensor = self._wrapped(*batch)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            raise RecorderError("the loss function gave no scalar; give a loss that ends in a mean or a sum")
        return loss


def _down_to(path: str) -> list[str]:
    """The paths from the outermost module to this one."""
    parts = path.split(".")
    return [".".join(parts[: depth + 1]) for depth in range(len(parts))]


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run
