"""A small NeRF: positional encoding, stratified and importance sampling by searchsorted, volume rendering by cumprod."""
import torch
from torch import nn
from measure import arguments


def encode(x, n): return torch.cat([x] + [f(x * 2.0 ** i) for i in range(n) for f in (torch.sin, torch.cos)], -1)


class Field(nn.Module):
    def __init__(self, w=256):
        super().__init__()
        self.a, self.sigma, self.rgb = nn.Sequential(nn.Linear(63, w), nn.ReLU(), *(m for _ in range(5) for m in (nn.Linear(w, w), nn.ReLU()))), nn.Linear(w, 1), nn.Sequential(nn.Linear(w + 27, w // 2), nn.ReLU(), nn.Linear(w // 2, 3), nn.Sigmoid())

    def forward(self, x, d):
        h = self.a(encode(x, 10))
        return self.rgb(torch.cat([h, encode(d, 4).expand(*h.shape[:-1], -1)], -1)), torch.relu(self.sigma(h)).squeeze(-1)


def render(field, o, d, t):
    rgb, sigma = field(o[:, None] + d[:, None] * t[..., None], d[:, None])
    alpha = 1 - torch.exp(-sigma * torch.diff(t, append=t[:, -1:] + 0.1))
    w = alpha * torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    return (w[..., None] * rgb).sum(1), w


args = arguments(batch=2048)
coarse, fine = Field().cuda(), Field().cuda()
optimizer = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], lr=5e-4)
for step in range(args.steps):
    o, d, color = (torch.rand(args.batch, 3, device="cuda") for _ in range(3))
    t = torch.linspace(2, 6, 64, device="cuda") + torch.rand(args.batch, 64, device="cuda") * 4 / 64
    rough, w = render(coarse, o, d, t)
    cdf = torch.cumsum(w.detach() + 1e-5, 1); cdf = cdf / cdf[:, -1:]
    index = torch.searchsorted(cdf, torch.rand(args.batch, 128, device="cuda")).clamp(max=63)
    t = torch.sort(torch.cat([t, t.gather(1, index)], 1), 1).values
    smooth, _ = render(fine, o, d, t)
    loss = (rough - color).square().mean() + (smooth - color).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
