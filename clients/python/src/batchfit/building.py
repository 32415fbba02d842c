"""Constructs models without memory for their weights."""

from __future__ import annotations

import copy
import importlib
import os
import sys
from collections.abc import Callable
from typing import Union

import torch

from .errors import ExportError

Builder = Callable[[], torch.nn.Module]


def load(target: str) -> object:
    """What `my_module:name` names; modules are also looked for in the current directory."""
    module_name, separator, name = target.partition(":")
    if not separator or not module_name or not name:
        raise ExportError(f"cannot read {target!r}; write it as my_module:build")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ExportError(f"cannot import {module_name!r}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ExportError(f"{module_name} has no {part!r}")
        found = getattr(found, part)
    return found


def build(builder: Union[Builder, torch.nn.Module]) -> torch.nn.Module:
    """The model that `builder` makes, on the meta device.

    A constructor that reads values cannot run there; then the model is made on the CPU and its weights are dropped.
    """
    if isinstance(builder, torch.nn.Module):
        return on_meta(builder)
    if not callable(builder):
        raise ExportError(f"a {type(builder).__name__} makes no model; name a function, a class or a module")
    try:
        with torch.device("meta"):
            model = builder()
    except (NotImplementedError, RuntimeError):
        model = builder()
    if not isinstance(model, torch.nn.Module):
        raise ExportError(f"the builder gave a {type(model).__name__}, not a torch.nn.Module")
    return on_meta(model)


def on_meta(model: torch.nn.Module) -> torch.nn.Module:
    """A model with the same parameters on the meta device; tied ones stay tied. Leaves the user's own model alone."""
    tensors = [*model.parameters(), *model.buffers()]
    if all(tensor.is_meta for tensor in tensors):
        return model
    # The copy shares nothing with the original but what is replaced: no weight is copied.
    placeholders = {id(tensor): _placeholder(tensor) for tensor in tensors}
    return _copy(model, placeholders)


def _placeholder(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def _copy(model: torch.nn.Module, memo: dict[int, torch.Tensor]) -> torch.nn.Module:
    return copy.deepcopy(model, dict(memo))
