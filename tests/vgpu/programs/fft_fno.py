"""A Fourier neural operator in two dimensions: rfft2, complex weights by einsum, irfft2, Adam."""
import torch
from torch import nn
from torch.nn import functional as F
from measure import arguments


class Spectral(nn.Module):
    def __init__(self, c, modes):
        super().__init__()
        self.modes = modes
        self.a, self.b = (nn.Parameter(torch.randn(c, c, modes, modes, dtype=torch.cfloat) / c ** 2) for _ in range(2))
        self.skip = nn.Conv2d(c, c, 1)

    def forward(self, x):
        f, m = torch.fft.rfft2(x), self.modes
        out = torch.zeros_like(f)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, :m, :m], self.a)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, -m:, :m], self.b)
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.skip(x))


args = arguments(batch=16)
model = nn.Sequential(nn.Conv2d(3, 48, 1), *(Spectral(48, 16) for _ in range(4)), nn.Conv2d(48, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
for step in range(args.steps):
    x, y = torch.randn(args.batch, 3, 128, 128, device="cuda"), torch.randn(args.batch, 1, 128, 128, device="cuda")
    loss = ((model(x) - y).flatten(1).norm(2, 1) / y.flatten(1).norm(2, 1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
