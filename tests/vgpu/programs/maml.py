"""MAML: inner steps whose gradients are kept, an outer step through them, by torch.func.functional_call."""
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from measure import arguments

args = arguments(batch=4)
net = nn.Sequential(*(m for i in (3, 64, 64, 64) for m in (nn.Conv2d(i, 64, 3, padding=1), nn.BatchNorm2d(64, track_running_stats=False), nn.ReLU(), nn.MaxPool2d(2))), nn.Flatten(), nn.Linear(64 * 25, 5)).cuda()
outer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(args.steps):
    outer.zero_grad()
    total = 0
    for task in range(args.batch):
        xs, xq, y = torch.randn(25, 3, 84, 84, device="cuda"), torch.randn(25, 3, 84, 84, device="cuda"), torch.arange(5, device="cuda").repeat(5)
        fast = dict(net.named_parameters())
        for _ in range(3):
            grads = torch.autograd.grad(F.cross_entropy(functional_call(net, fast, xs), y), fast.values(), create_graph=True)
            fast = {k: p - 0.01 * g for (k, p), g in zip(fast.items(), grads)}
        total = total + F.cross_entropy(functional_call(net, fast, xq), y)
    (total / args.batch).backward()
    outer.step()
