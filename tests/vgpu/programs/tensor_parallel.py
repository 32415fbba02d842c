"""Tensor parallelism over a device mesh by parallelize_module, for torchrun (any number of GPUs)."""
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from measure import arguments

args = arguments(batch=2048)
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 8192), nn.GELU(), nn.Linear(8192, 1024)) for _ in range(4))).cuda()
for block in model: parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
for step in range(args.steps):
    model(torch.randn(args.batch, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
