"""Activations kept in pinned host memory by save_on_cpu, and parameters moved on and off by hand."""
import torch
from torch import nn
from measure import arguments, mark

args = arguments(batch=32)
model = nn.Sequential(*(nn.Sequential(nn.Conv2d(i, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()) for i in (3, 64, 64, 64))).cuda()
head = nn.Linear(64, 10).cuda()
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
for step in range(args.steps):
    x = torch.randn(args.batch, 3, 112, 112, device="cuda")
    with torch.autograd.graph.save_on_cpu(pin_memory=True): loss = head(model(x).mean((2, 3))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
big = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(6)))
x = torch.randn(256, 4096, device="cuda")
with torch.no_grad():
    for layer in big:
        x = layer.to("cuda", non_blocking=True)(x).relu()
        layer.to("cpu")
torch.cuda.empty_cache()
mark("streamed")
