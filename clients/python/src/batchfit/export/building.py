"""Constructs models without memory for their weights."""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

import torch

from .errors import ExportError
from .failures import not_built
from .replacing import replaced

Builder = Callable[[], torch.nn.Module]

# A model is made a second time, with values, to read its small buffers, unless its weights take more than this.
_LARGEST_WITH_VALUES = 2 << 30
# Buffers of this many elements, all alike, are numbers that code may read: strides, paddings.
_SMALL = 64
# The method of PEFT's layers that moves an adapter to its base layer's device and dtype.
_ADAPTER_MOVE = "_move_adapter_to_device_of_base_layer"


@dataclass(frozen=True)
class Built:
    """A model on the meta device, and the numbers that its small buffers hold, by path."""

    model: torch.nn.Module
    buffers: dict[str, Union[int, float, bool]]


def load(target: str) -> object:
    """What `my_module:name` or `folder/my.py:name` names; modules are also looked for in the current directory."""
    module_name, separator, name = target.partition(":")
    if not separator or not module_name or not name:
        raise ExportError(f"cannot read {target!r}; write it as my_module:build or my.py:build")
    folder = os.getcwd()
    if module_name.endswith(".py"):
        file = Path(module_name)
        if not file.is_file():
            raise ExportError(f"there is no file {module_name}")
        folder, module_name = str(file.parent.resolve()), file.stem
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ExportError(f"cannot import {module_name!r}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ExportError(f"{module_name} has no {part!r}")
        found = getattr(found, part)
    return found


def build(builder: Union[Builder, torch.nn.Module]) -> Built:
    """The model that `builder` makes, on the meta device.

    A constructor that reads values cannot run there; then the model is made on the CPU and its weights are dropped.
    """
    if isinstance(builder, torch.nn.Module):
        return on_meta(builder)
    if not callable(builder):
        raise ExportError(f"a {type(builder).__name__} makes no model; name a function, a class or a module")
    try:
        with torch.device("meta"):
            model = _made(builder)
            # Now the builder has imported PEFT, if it uses it.
            if any(hasattr(module, _ADAPTER_MOVE) for module in model.modules()):
                with _adapters_in_their_dtype():
                    model = _made(builder)
    except ExportError:
        return on_meta(_made(builder))
    if any(_may_be_read(path, buffer) for path, buffer in model.named_buffers() if buffer.is_meta):
        weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        if weights <= _LARGEST_WITH_VALUES:
            return on_meta(_made(builder))
    return on_meta(model)


def _made(builder: Builder) -> torch.nn.Module:
    try:
        with _unscripted():
            model: object = builder()
    except Exception as error:  # Whatever the user's code raises.
        raise not_built(error) from error
    if isinstance(model, tuple) and model and isinstance(model[0], torch.nn.Module):
        model = model[0]  # Of (model, batch, loss), where flags give batch and loss.
    if not isinstance(model, torch.nn.Module):
        raise ExportError(f"the builder gave a {type(model).__name__}, not a torch.nn.Module")
    return model


@contextlib.contextmanager
def _adapters_in_their_dtype() -> Iterator[None]:
    """PEFT gives an adapter the dtype of its base layer, but not on the meta device; what casts it afterwards still does."""
    layers: Any = sys.modules["peft.tuners.tuners_utils"].BaseTunerLayer
    move = getattr(layers, _ADAPTER_MOVE)

    def moved(self: Any, adapter: str, *args: Any, **kwargs: Any) -> None:
        move(self, adapter, *args, **kwargs)
        weight = getattr(self.get_base_layer(), "weight", None)
        if weight is None or not weight.dtype.is_floating_point:
            return
        for name in (*self.adapter_layer_names, *self.other_param_names):
            parts = getattr(self, name, None)
            if isinstance(parts, (torch.nn.ModuleDict, torch.nn.ParameterDict)) and adapter in parts:
                parts[adapter] = parts[adapter].to(dtype=weight.dtype)

    with replaced(layers, _ADAPTER_MOVE, moved):
        yield


@contextlib.contextmanager
def _unscripted() -> Iterator[None]:
    """Functions that modules compile as they are imported (`@torch.jit.script`) stay Python: what is compiled takes no sizes that
    are symbols."""
    state: Any = torch.jit._state
    before = state._enabled.enabled
    state.disable()
    try:
        yield
    finally:
        state._enabled.enabled = before


def on_meta(model: torch.nn.Module) -> Built:
    """A model with the same parameters on the meta device; tied ones stay tied. Leaves the user's own model alone."""
    numbers = {path: _number(buffer) for path, buffer in model.named_buffers() if _may_be_read(path, buffer)}
    known = {path: number for path, number in numbers.items() if number is not None}
    tensors = [*model.parameters(), *model.buffers()]
    if all(tensor.is_meta for tensor in tensors):
        return Built(model, known)
    # The copy shares nothing with the original but what is replaced: no weight is copied. Weights that old hooks keep
    # computed beside their factors are what PyTorch copies in no other way.
    placeholders = {id(tensor): _placeholder(tensor) for tensor in [*tensors, *_computed(model)]}
    return Built(_copy(model, placeholders), known)


def _computed(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Tensors that modules hold as plain attributes and that have been computed from others."""
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                yield value


def _may_be_read(path: str, buffer: torch.Tensor) -> bool:
    """Whether code may ask for a buffer's value. Batch norm's counters nobody reads."""
    return buffer.numel() <= _SMALL and not buffer.dtype.is_floating_point and not path.endswith("num_batches_tracked")


def _number(buffer: torch.Tensor) -> Optional[Union[int, float, bool]]:
    """The number that all elements of a buffer are."""
    if buffer.is_meta or buffer.numel() == 0:
        return None
    values = set(buffer.flatten().tolist())
    return values.pop() if len(values) == 1 else None


def _placeholder(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def _copy(model: torch.nn.Module, memo: dict[int, torch.Tensor]) -> torch.nn.Module:
    return copy.deepcopy(model, dict(memo))
