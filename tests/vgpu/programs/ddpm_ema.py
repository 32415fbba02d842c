"""Denoising diffusion with a small U-Net, an exponential moving average kept by deepcopy, and a few sampling steps."""
import copy, math
import torch
from torch import nn
from torch.nn import functional as F
from measure import arguments, mark


class Res(nn.Module):
    def __init__(self, i, o, t):
        super().__init__()
        self.a, self.b, self.t, self.skip = nn.Sequential(nn.GroupNorm(8, i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1)), nn.Sequential(nn.GroupNorm(8, o), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(o, o, 3, padding=1)), nn.Linear(t, o), nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t): return self.b(self.a(x) + self.t(t)[:, :, None, None]) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, w=96):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(w, 4 * w), nn.SiLU(), nn.Linear(4 * w, 4 * w))
        self.w, self.inp, self.out = w, nn.Conv2d(3, w, 3, padding=1), nn.Sequential(nn.GroupNorm(8, w), nn.SiLU(), nn.Conv2d(w, 3, 3, padding=1))
        self.down = nn.ModuleList([Res(w, w, 4 * w), Res(w, 2 * w, 4 * w), Res(2 * w, 4 * w, 4 * w)])
        self.mid, self.attn = Res(4 * w, 4 * w, 4 * w), nn.MultiheadAttention(4 * w, 4, batch_first=True)
        self.up = nn.ModuleList([Res(8 * w, 2 * w, 4 * w), Res(4 * w, w, 4 * w), Res(2 * w, w, 4 * w)])

    def forward(self, x, t):
        f = torch.exp(-math.log(10000) * torch.arange(self.w // 2, device=x.device) / (self.w // 2))
        t = self.time(torch.cat([torch.sin(t[:, None] * f), torch.cos(t[:, None] * f)], 1))
        x, skips = self.inp(x), []
        for d in self.down: x = d(x, t); skips.append(x); x = F.avg_pool2d(x, 2)
        x = self.mid(x, t)
        s = x.flatten(2).transpose(1, 2)
        x = x + self.attn(s, s, s, need_weights=False)[0].transpose(1, 2).view_as(x)
        for u in self.up: x = u(torch.cat([F.interpolate(x, scale_factor=2), skips.pop()], 1), t)
        return self.out(x)


args = arguments(batch=32)
model = UNet().cuda()
ema = copy.deepcopy(model).eval().requires_grad_(False)
betas = torch.linspace(1e-4, 0.02, 1000, device="cuda")
bar = torch.cumprod(1 - betas, 0)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
for step in range(args.steps):
    x, t = torch.randn(args.batch, 3, 64, 64, device="cuda"), torch.randint(0, 1000, (args.batch,), device="cuda")
    noise, a = torch.randn_like(x), bar[t][:, None, None, None]
    loss = F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for e, p in zip(ema.parameters(), model.parameters()): e.lerp_(p, 0.001)
with torch.no_grad():
    x = torch.randn(8, 3, 64, 64, device="cuda")
    for i in range(999, 0, -250):
        t = torch.full((8,), i, device="cuda")
        x = (x - betas[i] / (1 - bar[i]).sqrt() * ema(x, t)) / (1 - betas[i]).sqrt() + betas[i].sqrt() * torch.randn_like(x)
mark("sample")
