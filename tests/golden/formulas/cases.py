"""The list of models, and what makes most of them short to write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

BATCH = 3


@dataclass(frozen=True)
class Case:
    """A model with its inputs; the loss is what its forward pass gives (`lambda m, x: m(x)`), or as the exporter takes it."""

    name: str
    build: Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]
    loss: object
    dtype: torch.dtype


CASES: dict[str, Case] = {}


def case(name: str, loss: object = None, dtype: torch.dtype = torch.float32):
    """Lists the model that a function builds."""

    def listed(build):
        assert name not in CASES, name
        CASES[name] = Case(name, build, loss or (lambda m, *inputs: m(*inputs)), dtype)
        return build

    return listed


class Each(nn.Module):
    """Several functions of one parameter `w` and one input `x`, each into the loss with weights of its own."""

    def __init__(self, shape, functions, low: float = -1.0, high: float = 1.0) -> None:
        super().__init__()
        self.functions = functions
        self.w = nn.Parameter(torch.rand(shape) * (high - low) + low)

    def forward(self, x):
        total = 0.0
        for number, function in enumerate(self.functions):
            y = function(self.w, x)
            # Weights that differ from element to element, so that a permutation shows.
            total = total + (y * torch.cos(y.detach() * 3 + number)).sum() if y.is_floating_point() else total
        return total


def each(name: str, shape, functions, *, x=None, low: float = -1.0, high: float = 1.0, **options) -> None:
    """Lists functions `f(w, x)` of a parameter of this shape and of an input `[BATCH, ...]`."""
    inputs = torch.Size(x if x is not None else shape)

    def build():
        model = Each(shape, functions, low, high)
        return model, {"x": torch.rand(BATCH, *inputs) * (high - low) + low}

    case(name, **options)(build)
