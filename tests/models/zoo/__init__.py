"""Models that people train, by library: what builds each, its batch and its loss.

Each file is one area. A model's library is imported where it is built, so that a missing one is told for its models and hides
no other. Configurations are small where size costs time and changes no operator.
"""

from __future__ import annotations

import importlib
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AREAS = (
    "adapters", "audio", "detection", "diffusion", "experts", "generative", "graphs", "language", "medical", "multimodal",
    "recent", "recommenders", "recurrent", "segmentation", "series", "statespace", "tabular", "three_d", "video", "vision", "vision_zoo",
    "written_out",
)  # fmt: skip

PRECISIONS = ("fp32", "amp_bf16")


@dataclass(frozen=True)
class Model:
    """A model to export, to answer for and to compare."""

    name: str
    # The distribution on PyPI; "torch" for models written out here.
    library: str
    area: str
    build: Callable[[], Any]
    # As `batchfit export --batch` reads them.
    batch: tuple[str, ...]
    loss: object
    # Compared at these batch sizes.
    batches: tuple[int, int]
    # The largest batch for which the model's code takes one path, if there is one.
    max_batch: int | None
    # Whether a recording on a real GPU should have it where its time is limited.
    on_gpu: bool
    precisions: tuple[str, ...] = PRECISIONS


MODELS: dict[str, Model] = {}


def model(
    name: str,
    library: str,
    *batch: str,
    loss: object = "cross_entropy",
    batches: tuple[int, int] = (4, 16),
    max_batch: int | None = None,
    on_gpu: bool = False,
    precisions: tuple[str, ...] = PRECISIONS,
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Puts the model that a function builds on the list."""

    def listed(build: Callable[[], Any]) -> Callable[[], Any]:
        if name in MODELS:
            raise ValueError(f"two models are called {name}")
        area = build.__module__.rsplit(".", 1)[-1]
        MODELS[name] = Model(name, library, area, build, batch, loss, batches, max_batch, on_gpu, precisions)
        return build

    return listed


def load(other: Path | None = None) -> dict[str, Model]:
    """All models, in the order of the areas; or those of another list, a Python file with a function `load`."""
    if other is not None:
        return runpy.run_path(str(other))["load"]()
    for area in AREAS:
        importlib.import_module(f"{__name__}.{area}")
    return MODELS
