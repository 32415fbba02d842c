"""torch.cuda.make_graphed_callables around parts of a network, with autocast and a scaler outside."""
import torch
from torch import nn
from measure import arguments

args = arguments(batch=128)
a, b, head = (nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU()).cuda() for i, o in ((3, 64), (64, 64), (64, 16)))
sample = torch.randn(args.batch, 3, 64, 64, device="cuda")
hidden = torch.randn(args.batch, 64, 64, 64, device="cuda", requires_grad=True)
a, b = torch.cuda.make_graphed_callables((a, b), ((sample,), (hidden,)))
optimizer = torch.optim.SGD([*a.parameters(), *b.parameters(), *head.parameters()], lr=1e-3)
for step in range(args.steps):
    loss = head(b(a(torch.randn(args.batch, 3, 64, 64, device="cuda")))).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
