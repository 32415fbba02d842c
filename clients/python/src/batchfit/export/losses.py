"""The loss around a model: from a batch to the scalar that is trained on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union

import torch
import torch.nn.functional as F

from .errors import ExportError

# From the model and the tensors of a batch, in their order, to the loss.
BatchLoss = Callable[..., torch.Tensor]
Loss = Union[str, torch.nn.Module, BatchLoss]

_CRITERIA: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross_entropy": F.cross_entropy,
    "mse": F.mse_loss,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
}

NAMES = (*_CRITERIA, "model")

_ALIASES = {"ce": "cross_entropy", "crossentropy": "cross_entropy", "mseloss": "mse", "l2": "mse", "bce": "bce_with_logits", "bcewithlogits": "bce_with_logits"}


def named(loss: str) -> str:
    """A loss by the name that it has here: `CrossEntropyLoss`, `ce` and `F.cross_entropy` are `cross_entropy`."""
    plain = loss.rsplit(".", 1)[-1].lower().replace("_", "")
    plain = plain if plain in _ALIASES else plain.removesuffix("loss")
    return _ALIASES.get(plain, loss)


class WithLoss(torch.nn.Module):
    """A model and its loss as one module, whose arguments are the tensors of a batch, by their `names`.

    It keeps what a training loop keeps when it says `loss = loss_fn(model, batch)`: the batch, and nothing that the
    model returned.
    """

    def __init__(self, model: torch.nn.Module, loss: Callable[..., torch.Tensor], names: Iterable[str]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss
        self._names = tuple(names)
        # Called with the batch by name, before the model is.
        self.on_batch: Callable[[Mapping[str, torch.Tensor]], None] = lambda _: None

        # Tracing names the graph's inputs after the arguments that it finds in the signature.
        def forward(*tensors: torch.Tensor) -> torch.Tensor:
            batch = dict(zip(self._names, tensors))
            self.on_batch(batch)
            return self._loss(self.model, batch)

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in self._names])  # type: ignore[attr-defined]
        self.forward = forward


def with_loss(model: torch.nn.Module, loss: Loss, names: Iterable[str]) -> WithLoss:
    """Puts a loss around a model that takes a batch of tensors with these names. `loss` is

    - the name of a criterion, or a criterion: a module of `torch.nn` or a function of `torch.nn.functional`, called with
      what the model makes of all tensors but the last, and the last;
    - `"model"`: the model is called with the batch by keyword and returns its own loss;
    - any other function: called with the model and all tensors of the batch, in their order.
    """
    if isinstance(loss, str):
        if loss == "model":
            return WithLoss(model, _own_loss, names)
        criterion = _CRITERIA.get(named(loss))
        if criterion is None:
            raise ExportError(f"unknown loss {loss!r}; known are {', '.join(NAMES)}")
        return WithLoss(model, _scored_by(criterion), names)
    if isinstance(loss, torch.nn.Module):
        # Its forward, not the module: a criterion is no part of the model.
        return WithLoss(model, _scored_by(loss.forward), names)
    if not callable(loss):
        raise ExportError(f"the loss is a {type(loss).__name__}; give a name ({', '.join(NAMES)}) or a function")
    if inspect.getmodule(loss) is F:
        return WithLoss(model, _scored_by(loss), names)
    names = tuple(names)
    try:
        inspect.signature(loss).bind(model, *names)
    except ValueError:  # It has no signature.
        pass
    except TypeError as error:
        raise ExportError(f"the loss is called with the model and all tensors of the batch, loss(model, {', '.join(names)}): {error}") from None
    return WithLoss(model, lambda model, batch: loss(model, *batch.values()), names)


def _own_loss(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return _loss_of(model(**batch))


def _loss_of(output: object) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None and isinstance(output, (tuple, list)) and output:
        loss = output[0]
    if not isinstance(loss, torch.Tensor):
        raise ExportError(
            f"the model returned no loss, but a {type(output).__name__}; give a loss such as cross_entropy, "
            "or name the batch's tensors as the model does (labels=...)"
        )
    return loss


def _scored_by(criterion: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def loss(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        *inputs, target = batch.values()
        return criterion(_prediction(model(*inputs)), target)

    return loss


def _prediction(output: Any) -> Any:
    """The tensor to be scored: segmentation models call it `out`, Hugging Face's `logits`, others list it first."""
    if isinstance(output, Mapping):
        for name in ("out", "logits"):
            if name in output:
                return output[name]
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(getattr(output, "logits", None), torch.Tensor):
        return output.logits
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], torch.Tensor):
        return output[0]
    raise ExportError(f"cannot tell what to score in a {type(output).__name__}; give a loss function of the model and the batch")
