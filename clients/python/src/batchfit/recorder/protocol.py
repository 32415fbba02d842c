"""What a recorder and whoever started it say to each other: one JSON object a line.

The recorder speaks first. Then each order has one answer.

    <- {"message": "hello", "version": 1}
    -> {"message": "open", "graph": PATH, "folder": PATH, "training": {"precision": "amp_fp16", "optimizer": "sgd",
        "optimizer_impl": "foreach", "checkpointing": "none" | "per_block" | {"modules": [...]}, "clip_grad_norm": 1.0 | null}, "device": 0}
    <- {"message": "ready", "gpu": "NVIDIA H200", "total_bytes": N, "free_bytes": N, "torch": "2.11.0", "cudnn": "91900",
        "least_batch": 1, "most_batch": N, "notes": [...]}
    -> {"message": "record", "batch": 4, "accumulation": 1, "limit_bytes": N | null}
    <- {"message": "recorded", "batch": 4, "outcome": "fits" | "fits_with_retries" | "out_of_memory", "path": PATH | null,
        "peak_allocated_bytes": N, "peak_reserved_bytes": N, "retries": 0, "seconds": 1.5}
    <- {"message": "refused", "refusal": "invalid" | "device_unavailable" | "device_failed", "detail": "..."}

A module of the user's own is named on the recorder's command line alone, in place of `graph`: no request can name one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Optional

from .blocks import Checkpointing
from .errors import RecorderError

VERSION = 1

# The longest line that is read.
LONGEST_ORDER = 1 << 20
LARGEST_BATCH = 1 << 40


@dataclass(frozen=True)
class Open:
    graph: Optional[str]
    folder: str
    training: dict[str, Any]
    device: int


@dataclass(frozen=True)
class Record:
    batch: int
    accumulation: int
    limit_bytes: Optional[int]


def read(line: bytes) -> Open | Record:
    try:
        order = json.loads(line)
    except (ValueError, RecursionError):
        raise RecorderError("an order that is no JSON") from None
    message = order.get("message") if isinstance(order, dict) else None
    if message == "open":
        training = order.get("training")
        graph, folder, device = order.get("graph"), order.get("folder"), order.get("device", 0)
        if not isinstance(folder, str) or not isinstance(graph, (str, type(None))) or not isinstance(training, dict):
            raise RecorderError("an order to open without graph, folder or training")
        return Open(graph, folder, training, _whole(device, "device", 1 << 16, 0))
    if message == "record":
        limit = order.get("limit_bytes")
        return Record(
            _whole(order.get("batch"), "batch", LARGEST_BATCH),
            _whole(order.get("accumulation", 1), "accumulation", 65_536),
            None if limit is None else _whole(limit, "limit_bytes", 1 << 62),
        )
    raise RecorderError(f"an order of the kind {str(message)[:80]!r}, which is not known")


def _whole(value: object, name: str, most: int, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise RecorderError(f"{name} must be a whole number from {least} to {most}, not {str(value)[:80]}")
    return value


def checkpointing(value: object) -> Checkpointing:
    """As a request has it."""
    if value is None or value in ("none", "per_block"):
        return None if value in (None, "none") else "per_block"
    modules = value.get("modules") if isinstance(value, dict) else None
    if isinstance(modules, list) and 0 < len(modules) <= 64 and all(isinstance(glob, str) for glob in modules):
        return tuple(modules)
    raise RecorderError("checkpointing must be none, per_block or patterns of modules")
