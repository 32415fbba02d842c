"""What took the memory: `with batchfit.record_oom("oom.pickle"): train()`.

A bounded history of the allocator is kept while it runs. When memory runs out, a snapshot is written, what took the memory is said
in plain English, and the error goes on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union

import torch

from . import binary, device
from .recording import is_history_on

logger = logging.getLogger("batchfit")

_GIB = 1 << 30
_MIB = 1 << 20

# Lines of Python that are told, the largest first.
_LINES = 5

# Seconds that the binary may take for a replay.
_PATIENCE = 120


@contextlib.contextmanager
def record_oom(path: Union[str, os.PathLike[str]], *, max_entries: int = 200_000) -> Iterator[None]:
    """Keeps a history of at most `max_entries` allocations and frees; on out of memory, writes it to `path`, and says why.

    A history that was on before stays on, as it was.
    """
    if max_entries < 1:
        raise ValueError(f"max_entries must be at least 1, not {max_entries}")
    where = Path(path)
    if not where.resolve().parent.is_dir():
        raise FileNotFoundError(f"there is no folder {where.resolve().parent} to write {where.name} to")
    if not torch.cuda.is_available():
        logger.warning("record_oom keeps no history without an NVIDIA GPU: only PyTorch's CUDA allocator has one")
        yield
        return
    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.empty(0, device="cuda")
    was_on = is_history_on()
    if not was_on:
        torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="python", max_entries=max_entries)
    try:
        yield
    except Exception as error:
        if device.is_out_of_memory(error):
            # Whatever goes wrong here must not hide the error itself.
            try:
                _dump(where)
            except Exception as trouble:
                logger.warning("no snapshot of the allocator could be written to %s: %s", where, trouble)
        raise
    finally:
        if not was_on:
            torch.cuda.memory._record_memory_history(enabled=None)


def _dump(path: Path) -> None:
    torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]
    print("\n".join(verdict(torch.cuda.memory._snapshot(), path)), file=sys.stderr, flush=True)


def verdict(snapshot: dict[str, Any], path: Path) -> list[str]:
    """What the memory is in use for, line by line."""
    at = torch.cuda.current_device()
    segments = [segment for segment in snapshot["segments"] if segment["device"] == at]
    reserved = sum(segment["total_size"] for segment in segments)
    blocks = [block for segment in segments for block in segment["blocks"] if block["state"] != "inactive"]
    used = sum(block["size"] for block in blocks)
    free_within = reserved - used
    free, total = torch.cuda.mem_get_info()
    refused = next((entry for entry in reversed(snapshot["device_traces"][at]) if entry["action"] == "oom"), None)
    lines = [f"batchfit: out of memory on {torch.cuda.get_device_name()}; the snapshot is in {path}"]
    if refused is not None:
        lines.append(f"  asked for    {_size(refused['size'])}{_place(refused.get('frames', ()))}")
    lines.append(f"  in use       {_size(used)} in {len(blocks)} tensors, of {_size(reserved)} that PyTorch has reserved")
    outside = total - free - reserved
    if outside > 0:
        lines.append(f"  elsewhere    {_size(outside)} of {_size(total)}: CUDA itself, libraries, other processes")
    if refused is not None and free_within > refused["size"]:
        lines.append(
            f"  in pieces    {_size(free_within)} are reserved and free, but in no piece that is large enough: fragmentation; "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may do"
        )
    by_line: Counter[str] = Counter()
    for block in blocks:
        by_line[_line(block.get("frames", ()))] += block["size"]
    if any(by_line[line] for line in by_line if line):
        lines.append("  by line")
        for line, size in by_line.most_common(_LINES):
            lines.append(f"    {_size(size):>10}  {line or 'from before the history began, such as weights'}")
    return lines + _replayed(path, total)


def _replayed(path: Path, total: int) -> list[str]:
    """What the binary says: how much it would have taken, and whether other settings of the allocator would have done."""
    more = f"  `batchfit replay {path} --compare` tells more"
    try:
        limit = str(int(device.fraction() * total))
        command = [str(binary.find()), "replay", str(path), "--compare", "--json", "--memory-limit", limit]
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE, env=environment, check=True)
        return [*_compared(json.loads(done.stdout)), more]
    except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
        return [more]


def _compared(said: dict[str, Any]) -> list[str]:
    """What the comparison of the allocator's settings comes to, up to where the memory ran out."""
    rows = said["comparison"]["rows"]
    lines = []
    own = next((row for row in rows if row["allocator"] == said["allocator"]), None)
    if own is not None and own["smallest_limit_bytes"]:
        lines.append(f"  needed       {_size(own['smallest_limit_bytes'])} without retries, up to here")
    best = next((row for row in rows if row["verdict"] == "fits" and row["allocator"]), None)
    if best is not None:
        lines.append(f"  would fit    up to here, with PYTORCH_CUDA_ALLOC_CONF={best['allocator']}")
    return lines


def _line(frames: Any) -> str:
    """The innermost line that is not of PyTorch, or the innermost."""
    lines = [frame for frame in frames if frame.get("filename", "").endswith(".py")]
    own = [frame for frame in lines if f"{os.sep}torch{os.sep}" not in frame["filename"]]
    for frame in (own or lines)[:1]:
        name = os.path.join(*Path(frame["filename"]).parts[-2:])
        return f"{name}:{frame['line']} {frame['name']}"
    return ""


def _place(frames: Any) -> str:
    line = _line(frames)
    return f" at {line}" if line else ""


def _size(size: int) -> str:
    return f"{size / _GIB:.2f} GiB" if size >= _GIB else f"{size / _MIB:.1f} MiB"
