"""A convolutional variational autoencoder: reparameterisation, KL and reconstruction, sampling afterwards."""
import torch
from torch import nn
from torch.nn import functional as F
from measure import arguments, mark


class VAE(nn.Module):
    def __init__(self, z=256, w=64):
        super().__init__()
        self.enc = nn.Sequential(*(m for i, o in ((3, w), (w, 2 * w), (2 * w, 4 * w), (4 * w, 8 * w)) for m in (nn.Conv2d(i, o, 3, 2, 1), nn.GroupNorm(8, o), nn.SiLU())), nn.Flatten())
        self.mu, self.logvar, self.up = nn.Linear(8 * w * 64, z), nn.Linear(8 * w * 64, z), nn.Linear(z, 8 * w * 64)
        self.dec = nn.Sequential(nn.Unflatten(1, (8 * w, 8, 8)), *(m for i, o in ((8 * w, 4 * w), (4 * w, 2 * w), (2 * w, w), (w, w)) for m in (nn.ConvTranspose2d(i, o, 3, 2, 1, 1), nn.GroupNorm(8, o), nn.SiLU())), nn.Conv2d(w, 3, 3, padding=1))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return torch.sigmoid(self.dec(self.up(z))), mu, logvar


args = arguments(batch=64)
model = VAE().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(args.steps):
    x = torch.rand(args.batch, 3, 128, 128).cuda()
    y, mu, logvar = model(x)
    loss = F.binary_cross_entropy(y, x, reduction="sum") - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad(): model.dec(model.up(torch.randn(16, 256, device="cuda"))).cpu()
mark("sample")
