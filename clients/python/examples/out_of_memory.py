"""What took the memory, when it runs out. Run it on a machine with an NVIDIA GPU."""

import torch

import batchfit

torch.cuda.set_per_process_memory_fraction(0.01)


def train():
    layers = [torch.nn.Linear(4096, 4096, device="cuda") for _ in range(4)]
    x = torch.randn(1 << 18, 4096, device="cuda")
    for layer in layers:
        x = layer(x)


try:
    with batchfit.record_oom("oom.pickle"):
        train()
except torch.OutOfMemoryError:
    print("it ran out of memory, as it should here")
