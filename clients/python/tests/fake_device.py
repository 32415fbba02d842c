"""Tuning without a GPU: a device that is none, on which each sample takes a MiB, beside steps that are real, on the processor."""

import contextlib
from pathlib import Path
from unittest import mock

import torch

from batchfit import binary, device, tuning
from batchfit.state import State

MIB = 1 << 20
LEADER = Path(__file__).resolve().parent / "fake_leader.py"


class Recording:
    """In the place of a real one: a peak of a MiB for each sample."""

    is_steady = True
    is_complete = True

    def __init__(self, batch, accumulation=1):
        self.batch, self.accumulation = batch, accumulation
        self.peak_reserved_bytes = self.peak_allocated_bytes = batch * MIB
        self.steps = 0
        MADE.append(self)

    def __enter__(self):
        return self

    def step(self):
        self.steps += 1

    def __exit__(self, *_):
        return None

    def write(self, path):
        path.write_bytes(b"")


# The recordings that were made since `installed`.
MADE = []


@contextlib.contextmanager
def installed(memory=1024 * MIB):
    """Within it, tuning takes the processor for a GPU with so much memory."""
    MADE.clear()
    limits = []
    fakes = {
        "check": lambda: None,
        "total": lambda: memory,
        "reserved_and_free": lambda: memory,
        "available": lambda: memory,
        "fraction": lambda: 1.0,
        "set_fraction": limits.append,
        "set_limit": limits.append,
        "allocated": lambda: 0,
        "name": lambda: "a processor",
        "allocator_settings": lambda: "",
        "synchronize": lambda: None,
        "reset_peaks": lambda: None,
        "clean": lambda: None,
    }
    with contextlib.ExitStack() as stack:
        for name, fake in fakes.items():
            stack.enter_context(mock.patch.object(device, name, fake))
        stack.enter_context(mock.patch.object(tuning, "Recording", Recording))
        stack.enter_context(mock.patch.object(binary, "find", lambda: LEADER))
        stack.enter_context(mock.patch.object(State, "device_bytes", property(lambda state: len(state._storages))))
        yield limits


def values(*things):
    """All tensors and numbers of state dicts, lists and tensors, to be compared."""
    flat = []

    def add(value):
        if isinstance(value, torch.Tensor):
            flat.append((tuple(value.shape), value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()))
        elif isinstance(value, dict):
            for key in value:
                flat.append(str(key))
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for one in value:
                add(one)
        elif hasattr(value, "state_dict"):
            add(value.state_dict())
        else:
            flat.append(repr(value))

    add(things)
    return flat
