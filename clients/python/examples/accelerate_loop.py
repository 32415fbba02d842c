"""A loop with Accelerate. Run it on a machine with an NVIDIA GPU."""

import torch
from accelerate import Accelerator

import batchfit

accelerator = Accelerator(mixed_precision="bf16")
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(2048, 1024), torch.randint(10, (2048,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def train(x, y):
    with accelerator.accumulate(model):
        accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()


def step(b):
    train(torch.randn(b, 1024, device="cuda"), torch.randint(10, (b,), device="cuda"))


plan = batchfit.accelerate.tune(accelerator, model, optimizer, step, target_batch=2048, memory_limit="512MiB")
for x, y in loader:
    train(x, y)
