"""Several processes that train together: all run the same batches, and what happens to one happens to all."""

from __future__ import annotations

from typing import Any, Optional

import torch


def world_size() -> int:
    """How many processes train together."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1


def is_leader() -> bool:
    """Whether this process leads the search."""
    return world_size() == 1 or torch.distributed.get_rank() == 0


def told_by_leader(value: Optional[Any]) -> Any:
    """What the leader says, in every process."""
    if world_size() == 1:
        return value
    values = [value]
    torch.distributed.broadcast_object_list(values, src=0, device=_device())
    return values[0]


def most(numbers: list[int]) -> list[int]:
    """Of each number the largest that any process has."""
    if world_size() == 1:
        return numbers
    everywhere = torch.tensor(numbers, dtype=torch.int64, device=_device())
    torch.distributed.all_reduce(everywhere, op=torch.distributed.ReduceOp.MAX)
    return [int(number) for number in everywhere.tolist()]


def _device() -> torch.device:
    """Where what is sent has to be."""
    if "nccl" in torch.distributed.get_backend():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
