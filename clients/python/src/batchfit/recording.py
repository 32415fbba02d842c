"""Records what a training step asks PyTorch's CUDA allocator for, in batchfit's own format.

Recording begins with what is alive then: the allocator's segments, and the blocks in them. Nothing of the device's memory is
changed by it. A history that was on before stays on, with its entries.
"""

from __future__ import annotations

import gc
import gzip
import json
import os
import types
from pathlib import Path
from typing import Any, Optional, Union

import torch

# Entries of a history that only we keep, far more than a few steps of the largest models make. PyTorch's own default has
# no bound at all, which a step that never ends would fill the host's memory with.
_MOST_ENTRIES = 4_000_000

_MIB = 1 << 20

Entry = dict[str, Any]


class HistoryError(RuntimeError):
    """The allocator's history does not hold all that happened, so there is no recording."""


class Recording:
    """A few steps at one batch: `with Recording(batch) as recording:`, `recording.step()` at the beginning of each step.

    `accumulation` says how many micro-steps each step has. Afterwards `write` makes the file, and `retries`,
    `peak_reserved_bytes` and `peak_allocated_bytes` say how near to the limit it came. `is_steady` says whether the allocator
    freed its cache and retried in the first two steps alone: what a convolution is refused there it never asks for again.
    """

    def __init__(self, batch: int, accumulation: int = 1) -> None:
        self.batch = batch
        self.accumulation = accumulation
        self.retries = 0
        self.is_steady = True
        self.peak_reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self._device = 0
        self._was_on = False
        self._start: dict[str, Any] = {}
        self._stats: dict[str, Any] = {}
        self._steps: list[tuple[int, int]] = []
        # Retries since the process started, at the beginning of each step.
        self._retries: list[int] = []
        self._entries: Optional[list[Entry]] = None

    def __enter__(self) -> Recording:
        # Before the first use of the device there is no allocator whose history could be asked for.
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.empty(0, device="cuda")
        self._device = torch.cuda.current_device()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._was_on = is_history_on()
        if not self._was_on:
            torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=_MOST_ENTRIES)
        try:
            self._start = torch.cuda.memory._snapshot()
            torch.cuda.reset_peak_memory_stats()
            self._stats = torch.cuda.memory_stats()
        except BaseException:
            self._stop()
            raise
        return self

    def step(self) -> None:
        """A step begins."""
        stats = torch.cuda.memory_stats()
        self._steps.append(self._counts(stats))
        self._retries.append(stats["num_alloc_retries"])

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[types.TracebackType],
    ) -> None:
        try:
            if kind is None:
                torch.cuda.synchronize()
                stats = torch.cuda.memory_stats()
                self.retries = stats["num_alloc_retries"] - self._stats["num_alloc_retries"]
                later = self._retries[2:]
                self.is_steady = not self.retries or bool(later) and stats["num_alloc_retries"] == later[0]
                self.peak_reserved_bytes = stats["reserved_bytes.all.peak"]
                self.peak_allocated_bytes = stats["allocated_bytes.all.peak"]
                self._take(torch.cuda.memory._snapshot(), self._counts(stats))
        finally:
            self._stop()

    def _stop(self) -> None:
        if not self._was_on:
            torch.cuda.memory._record_memory_history(enabled=None)

    def _counts(self, stats: dict[str, Any]) -> tuple[int, int]:
        """How many allocations and frees there were since the recording started."""
        names = ("allocation.all.allocated", "allocation.all.freed")
        allocated, freed = (stats[name] - self._stats[name] for name in names)
        return allocated, freed

    def _take(self, end: dict[str, Any], counts: tuple[int, int]) -> None:
        """Takes our part of the history, if all of it is still there."""
        before = self._start["device_traces"][self._device]
        entries: list[Entry] = end["device_traces"][self._device]
        first = 0
        if before:
            # The entry before ours; the ring may have turned since. Times do not go back.
            last = _identity(before[-1])
            at = next((index for index in range(len(entries) - 1, -1, -1) if _identity(entries[index]) == last), None)
            if at is None:
                return
            first = at + 1
        ours = entries[first:]
        found = tuple(sum(1 for entry in ours if entry["action"] == action) for action in ("alloc", "free_requested"))
        # Less than was counted: the ring is too small, or the history leaves actions out.
        if found == counts:
            self._entries = ours

    @property
    def is_complete(self) -> bool:
        """Whether all that happened is in it."""
        return self._entries is not None

    @property
    def allocator(self) -> str:
        """The allocator's settings, as `PYTORCH_CUDA_ALLOC_CONF` would have them."""
        return settings(self._start.get("allocator_settings", {}))

    def text(self) -> str:
        """The recording in batchfit's own format."""
        if self._entries is None:
            raise HistoryError(
                "the allocator's history was on before, and does not hold all that the steps did: it keeps too few entries or "
                "leaves some out; end it by torch.cuda.memory._record_memory_history(enabled=None), or give it more max_entries"
            )
        _, total = torch.cuda.mem_get_info(self._device)
        header = {
            "batch": self.batch,
            "accumulation": self.accumulation,
            "total_bytes": total,
            "gpu": torch.cuda.get_device_name(self._device),
            "allocator": self.allocator,
        }
        lines = ["batchfit recording 1", json.dumps(header)]
        writer = _Writer(lines)
        for segment in self._start["segments"]:
            if segment["device"] == self._device:
                writer.segment(segment)
        writer.events(self._entries, self._steps)
        return "\n".join(lines) + "\n"

    def write(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the recording to a file, compressed; the same steps make the same bytes."""
        Path(path).write_bytes(gzip.compress(self.text().encode(), compresslevel=1, mtime=0))


class _Writer:
    """Numbers allocations and streams."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._streams = {0: 0}
        self._alive: dict[int, int] = {}
        self._count = 0

    def _stream(self, stream: int) -> int:
        return self._streams.setdefault(stream, len(self._streams))

    def _allocate(self, address: int) -> None:
        self._alive[address] = self._count
        self._count += 1

    def segment(self, segment: Entry) -> None:
        expandable = " expandable" if segment.get("is_expandable") else ""
        size, stream = segment["total_size"], self._stream(segment["stream"])
        self._lines.append(f"g {size} {stream} {segment['segment_type']}{expandable}")
        offset = 0
        # Pools of CUDA graphs and others serve nobody else: their gaps are no free memory.
        is_private = tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
        for block in segment["blocks"]:
            address = block.get("address", segment["address"] + offset)
            if is_private or block["state"] != "inactive":
                requested = block["size"] if is_private else block.get("requested_size") or block["size"]
                self._lines.append(f"b {address - segment['address']} {requested} {block['size']}")
                self._allocate(address)
            offset += block["size"]

    def events(self, entries: list[Entry], steps: list[tuple[int, int]]) -> None:
        allocated = freed = 0
        steps = list(reversed(steps))
        # Frees that follow each other are in any order, as hash tables are cleared; here in that of their allocations.
        waiting: list[int] = []

        def flush() -> None:
            self._lines.extend(f"f {number}" for number in sorted(waiting))
            waiting.clear()

        for entry in entries:
            action = entry["action"]
            # What a step asks for next is its own; frees that complete later belong to what is before.
            while steps and (allocated, freed) >= steps[-1] and freed >= steps[-1][1] and action in ("alloc", "free_requested"):
                flush()
                self._lines.append("s")
                steps.pop()
            if action == "alloc":
                flush()
                allocated += 1
                stream = self._stream(entry["stream"])
                self._lines.append(f"a {entry['size']} {stream}" if stream else f"a {entry['size']}")
                self._allocate(entry["addr"])
            elif action == "free_requested":
                freed += 1
            elif action == "free_completed":
                number = self._alive.pop(entry["addr"], None)
                if number is not None:
                    waiting.append(number)
        flush()
        self._lines.extend("s" for _ in steps)


def _identity(entry: Entry) -> tuple[object, ...]:
    return tuple(entry.get(name) for name in ("time_us", "action", "addr", "size"))


def is_history_on() -> bool:
    """Whether the allocator's history is on; the allocator must have been used."""
    ask = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(ask()) if ask is not None else False


def settings(told: dict[str, Any]) -> str:
    """The allocator's settings of a snapshot, as text; only what differs from PyTorch's defaults and matters to its layout."""
    parts = []
    if told.get("expandable_segments"):
        parts.append("expandable_segments:True")
    if 0 < told.get("max_split_size", -1) < 1 << 60:
        parts.append(f"max_split_size_mb:{told['max_split_size'] // _MIB}")
    if told.get("garbage_collection_threshold", 0) > 0:
        parts.append(f"garbage_collection_threshold:{told['garbage_collection_threshold']:.6g}")
    divisions = {int(size): ways for size, ways in told.get("roundup_power2_divisions", {}).items()}
    if any(divisions.values()):
        if len(set(divisions.values())) == 1:
            parts.append(f"roundup_power2_divisions:{next(iter(divisions.values()))}")
        else:
            each = [f"{size}:{max(1, ways)}" for size, ways in sorted(divisions.items())]
            parts.append(f"roundup_power2_divisions:[{','.join(each)}]")
    # What snapshots do not tell is read where the user wrote it.
    text = told.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    for part in text.split(","):
        if part.strip().split(":")[0] in ("max_non_split_rounding_mb", "large_segment_size_mb"):
            parts.append(part.strip())
    return ",".join(parts)
