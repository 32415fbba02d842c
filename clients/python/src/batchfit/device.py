"""The GPU that trains: whether it will do, its limit, and what it says when memory runs out."""

from __future__ import annotations

import contextlib
import gc
import math
import re
import sys
import traceback
from typing import Any, Optional, Union

import torch

from .recording import settings

# What a process still takes beside PyTorch's allocator after a first step, as further kernels are loaded.
_GROWTH = 64 << 20

_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}

_OUT_OF_MEMORY = re.compile(
    r"CUDA error: out of memory|CUDA out of memory|CUDA driver error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|Triton Error \[CUDA\]: out of memory"
)


def check() -> None:
    """Refuses where steps cannot be recorded."""
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < (2, 4):
        raise RuntimeError(f"tuning needs PyTorch 2.4 or newer; this is {torch.__version__}")
    if getattr(torch.version, "hip", None) is not None:
        raise RuntimeError("tuning needs an NVIDIA GPU: this is a build of PyTorch for ROCm, whose allocator is not simulated")
    if not torch.cuda.is_available():
        raise RuntimeError(
            "tuning needs an NVIDIA GPU that PyTorch can use: memory of the CPU and of Apple's GPUs (MPS) is not limited by an "
            "allocator that could be recorded. Without a GPU, `batchfit fit` answers for one that you name"
        )
    if torch.cuda.get_allocator_backend() != "native":
        raise RuntimeError(
            f"tuning needs PyTorch's own allocator, not {torch.cuda.get_allocator_backend()}: leave `backend` out of "
            "PYTORCH_CUDA_ALLOC_CONF"
        )
    torch.cuda.init()  # type: ignore[no-untyped-call]
    if torch.is_inference_mode_enabled():
        raise RuntimeError("tuning runs training steps, which torch.inference_mode() forbids: call it outside")
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("tuning runs training steps, which cannot be captured in a CUDA graph: call it outside")


def limit_in_bytes(limit: Union[int, float, str], total: int) -> int:
    """A limit as people write it: bytes, "12GiB", or a share of the card's memory such as 0.8 or "0.8"."""
    expected = "memory_limit must be bytes, a size such as \"12GiB\", or a share of the card such as 0.8"
    if isinstance(limit, bool):
        raise TypeError(f"{expected}; not {limit!r}")
    if isinstance(limit, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|[kmgtKMGT]?i?[bB])?\s*", limit)
        unit = (match[2] or "").lower() if match else ""
        if match is None or unit not in (*_UNITS, "%", "b"):
            raise ValueError(f"{expected}; not {limit!r}")
        number = float(match[1])
        if unit == "%":
            limit = number / 100
        elif unit or number > 1:
            limit = int(number * _UNITS.get(unit, 1))
        else:
            limit = number
    if not isinstance(limit, (int, float)):
        raise TypeError(f"{expected}; not {limit!r}")
    bytes_ = int(limit * total) if isinstance(limit, float) and limit <= 1 else int(limit)
    if bytes_ < 1 << 20:
        raise ValueError(f"{expected}; {limit!r} is less than 1 MiB")
    return bytes_


def total() -> int:
    """The card's memory, in bytes."""
    return torch.cuda.mem_get_info()[1]


def reserved_and_free() -> int:
    """What PyTorch's allocator has, and what is left on the card."""
    return torch.cuda.memory_reserved() + torch.cuda.mem_get_info()[0]


def available() -> int:
    """What the allocator may have of this card: what it has, and what is free, less what the process will still take."""
    return min(reserved_and_free() - _GROWTH, int(fraction() * total()))


def fraction() -> float:
    """The share of the card that PyTorch may reserve; before PyTorch 2.8 nobody says, and it is taken to be all."""
    ask = getattr(torch.cuda, "get_per_process_memory_fraction", None) or getattr(
        torch.cuda.memory, "get_per_process_memory_fraction", None
    )
    return float(ask()) if ask is not None else 1.0


def set_fraction(share: float) -> None:
    """Has the allocator refuse what goes beyond this share of the card."""
    torch.cuda.set_per_process_memory_fraction(share)


def set_limit(limit: int) -> None:
    """Has the allocator refuse what goes beyond so many bytes, exactly."""
    most = total()
    share = min(1.0, limit / most)
    while share < 1.0 and int(share * most) < limit:
        share = math.nextafter(share, 2.0)
    set_fraction(min(1.0, share))


def allocated() -> int:
    """Bytes in use by tensors."""
    return torch.cuda.memory_allocated()


def name() -> str:
    """What the card is called."""
    return torch.cuda.get_device_name()


def allocator_settings() -> str:
    """The allocator's settings, as `PYTORCH_CUDA_ALLOC_CONF` would have them."""
    return settings(torch.cuda.memory._snapshot().get("allocator_settings", {}))


def synchronize() -> None:
    """Waits until all that was asked of the card is done."""
    torch.cuda.synchronize()


def reset_peaks() -> None:
    """Peaks begin again."""
    torch.cuda.reset_peak_memory_stats()


def clean() -> None:
    """Gives back all memory that nothing uses."""
    gc.collect()
    torch.cuda.synchronize()
    _forget_graphs()
    # Workspaces of cuBLAS stay allocated for good once a step has asked for them: the next one shall ask again, where it does.
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    torch.cuda.empty_cache()


def _forget_graphs() -> None:
    """Lets go of the CUDA graphs that torch.compile has captured, one for each batch; they are captured again."""
    trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        return
    with contextlib.suppress(AttributeError, KeyError):
        if trees.get_obj(trees.local, "tree_manager_containers"):
            trees.reset_cudagraph_trees()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that it came from, says that the GPU's memory ran out."""
    seen: list[Optional[BaseException]] = []
    at: Optional[BaseException] = error
    while at is not None and at not in seen and len(seen) < 100:
        if isinstance(at, torch.cuda.OutOfMemoryError):
            return True
        if isinstance(at, RuntimeError) and _OUT_OF_MEMORY.search(str(at)):
            return True
        seen.append(at)
        at = at.__cause__ or at.__context__
    return False


def forget(error: BaseException) -> None:
    """Lets go of what an error's frames hold: the activations of a step that was cut short."""
    at: Optional[BaseException] = error
    for _ in range(100):
        if at is None:
            break
        if at.__traceback__ is not None:
            traceback.clear_frames(at.__traceback__)
            at.__traceback__ = None
        at = at.__cause__ or at.__context__
