"""torch.compile(mode="reduce-overhead"): CUDA graphs by Inductor, forward and backward."""
import torch
from torch import nn
from measure import arguments, mark

args = arguments(batch=2048, steps=5)
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
step_fn = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
x = torch.randn(args.batch, 1024, device="cuda")
for step in range(args.steps):
    torch.compiler.cudagraph_mark_step_begin()
    loss = step_fn(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item() >= 0)
