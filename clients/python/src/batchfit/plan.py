"""What tuning comes to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

from ._http import plain
from .ask_tell import SearchError

_GIB = 1 << 30


_NUMBERS = ("micro_batch", "accumulation_steps", "global_batch", "max_batch", "max_batch_without_retries")
_MORE = ("shortfall", "peak_reserved_bytes", "peak_allocated_bytes", "limit_bytes", "headroom_bytes")


def _is_plan(said: Mapping[str, Any]) -> bool:
    def counts(value: object) -> bool:
        return type(value) is int and 0 <= value < 1 << 64

    more = (said.get(name) for name in _MORE)
    notes = said.get("notes", [])
    texts = [said.get("limited_by", ""), said.get("evidence", ""), *(notes if isinstance(notes, list) else [None])]
    return (
        all(counts(said.get(name)) for name in _NUMBERS)
        and all(value is None or counts(value) for value in more)
        and all(isinstance(text, str) for text in texts)
    )


@dataclasses.dataclass(frozen=True)
class Run:
    """A batch that ran, and what came of it."""

    batch: int
    # `fits`, `fits_with_retries`, `out_of_memory` or `crashed`.
    outcome: str
    # Of the recorded steps, without the warm-up.
    seconds: float
    peak_reserved_bytes: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """How to train: the micro-batch, the accumulation steps, and why."""

    # Samples per micro-step on one GPU.
    micro_batch: int
    # Micro-steps per optimizer step.
    accumulation_steps: int
    # Samples per optimizer step over all ranks.
    global_batch: int
    # What `global_batch` lacks of the target.
    shortfall: int
    # The largest batch that fits, and the largest that does without retries of the allocator.
    max_batch: int
    max_batch_without_retries: int
    peak_reserved_bytes: Optional[int]
    peak_allocated_bytes: Optional[int]
    limit_bytes: Optional[int]
    headroom_bytes: Optional[int]
    limited_by: str
    # `trained`: the steps themselves ran with this batch; `recorded`: recordings of them predict it.
    evidence: str
    notes: tuple[str, ...]
    world_size: int
    # The earlier search whose answer this is, where the same program was tuned before.
    answered_by: Optional[str]
    # All of it, and the part that steps took which were not recorded: compilation, autotuning.
    seconds: float
    warm_up_seconds: float
    runs: tuple[Run, ...]
    out_of_memory_errors: int

    @classmethod
    def of(
        cls,
        document: Mapping[str, Any],
        *,
        world_size: int,
        seconds: float,
        warm_up_seconds: float,
        runs: tuple[Run, ...],
        accumulation: Optional[int] = None,
    ) -> Plan:
        """The plan that a search's document has; `accumulation` is how many steps there are in any case."""
        found = document.get("recommendation")
        if not isinstance(found, dict) or not _is_plan(found):
            raise SearchError("the search answered with an invalid plan")
        said = dict(found)
        if accumulation is not None:
            said["accumulation_steps"] = accumulation
            said["global_batch"] = said["micro_batch"] * accumulation * world_size
        answered = document.get("answered_by")
        peaks = {run.batch: run.peak_reserved_bytes for run in runs if run.outcome == "fits"}
        return cls(
            micro_batch=said["micro_batch"],
            accumulation_steps=said["accumulation_steps"],
            global_batch=said["global_batch"],
            shortfall=said.get("shortfall", 0),
            max_batch=said["max_batch"],
            max_batch_without_retries=said["max_batch_without_retries"],
            peak_reserved_bytes=said.get("peak_reserved_bytes") or peaks.get(said["micro_batch"]),
            peak_allocated_bytes=said.get("peak_allocated_bytes"),
            limit_bytes=said.get("limit_bytes"),
            headroom_bytes=said.get("headroom_bytes"),
            limited_by=plain(said.get("limited_by", "")),
            evidence=plain(said.get("evidence", "")),
            notes=tuple(map(plain, said.get("notes", ()))),
            world_size=world_size,
            answered_by=None if answered is None else plain(str(answered)),
            seconds=seconds,
            warm_up_seconds=warm_up_seconds,
            runs=runs,
            out_of_memory_errors=sum(run.outcome == "out_of_memory" for run in runs),
        )

    def __str__(self) -> str:
        steps = f"{self.accumulation_steps} accumulation step" + "s" * (self.accumulation_steps != 1)
        ranks = f" on {self.world_size} GPUs" if self.world_size > 1 else ""
        text = f"micro-batch {self.micro_batch}, {steps}{ranks}: {self.global_batch} samples per optimizer step"
        if self.peak_reserved_bytes and self.limit_bytes:
            text += f"; {self.peak_reserved_bytes / _GIB:.2f} of {self.limit_bytes / _GIB:.2f} GiB reserved"
        where = "a stored answer" if self.answered_by else self.evidence
        runs = f"{len(self.runs)} run" + "s" * (len(self.runs) != 1)
        return f"{text} ({where}; {runs} in {self.seconds:.1f} s, {self.warm_up_seconds:.1f} s of it warm-up)"
