"""A whole training step captured in a CUDA graph after warm-up on a side stream, replayed with new inputs."""
import torch
from torch import nn
from measure import arguments, mark

args = arguments(batch=512, steps=5)
model = nn.Sequential(nn.Linear(2048, 4096), nn.GELU(), nn.Dropout(0.1), nn.Linear(4096, 2048)).cuda()
loss_fn, optimizer = nn.MSELoss(), torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
x, y = torch.randn(args.batch, 2048, device="cuda"), torch.randn(args.batch, 2048, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        loss_fn(model(x), y).backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
mark("captured")
for step in range(args.steps):
    x.copy_(torch.randn(args.batch, 2048)); y.copy_(torch.randn(args.batch, 2048))
    graph.replay()
    mark(f"replay{step + 1}")
print(loss.item() >= 0)
