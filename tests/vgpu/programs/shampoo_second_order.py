"""Shampoo-like preconditioning (eigh every step) and SAM's two passes, on a small convolutional network."""
import torch
from torch import nn
from torch.nn import functional as F
from measure import arguments, mark

args = arguments(batch=1024)
model = nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128 * 64, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
sides = {p: [torch.eye(n, device="cuda") * 1e-3 for n in (p.shape[0], p.flatten(1).shape[1])] for p in model.parameters() if p.ndim > 1 and p.flatten(1).shape[1] < 2000}
base = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(args.steps):
    x, y = torch.randn(args.batch, 3, 32, 32, device="cuda"), torch.randint(0, 10, (args.batch,), device="cuda")
    F.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        moved = [p.grad * (0.05 / (norm + 1e-12)) for p in model.parameters()]
        for p, e in zip(model.parameters(), moved): p.add_(e)
    base.zero_grad()
    F.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p, e in zip(model.parameters(), moved): p.sub_(e)
        for p, (l, r) in sides.items():
            g = p.grad.flatten(1)
            l.add_(g @ g.T); r.add_(g.T @ g)
            for s, left in ((l, True), (r, False)):
                values, vectors = torch.linalg.eigh(s)
                root = vectors @ torch.diag(values.clamp(min=1e-6) ** -0.25) @ vectors.T
                g = root @ g if left else g @ root
            p.grad.copy_(g.view_as(p))
    base.step()
    base.zero_grad()
