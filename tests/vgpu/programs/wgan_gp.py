"""WGAN with gradient penalty: the critic's gradient is differentiated again (create_graph)."""
import torch
from torch import nn
from measure import arguments

args = arguments(batch=64)
G = nn.Sequential(nn.Linear(128, 4 * 4 * 512), nn.ReLU(), nn.Unflatten(1, (512, 4, 4)), *(m for i, o in ((512, 256), (256, 128), (128, 64)) for m in (nn.Upsample(scale_factor=2), nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())), nn.Conv2d(64, 3, 3, padding=1), nn.Tanh()).cuda()
D = nn.Sequential(*(m for i, o in ((3, 64), (64, 128), (128, 256)) for m in (nn.Conv2d(i, o, 4, 2, 1), nn.InstanceNorm2d(o, affine=True), nn.LeakyReLU(0.2))), nn.Flatten(), nn.Linear(256 * 16, 1)).cuda()
optG, optD = torch.optim.RMSprop(G.parameters(), 5e-5), torch.optim.Adam(D.parameters(), 1e-4, betas=(0.0, 0.9))
for step in range(args.steps):
    for _ in range(2):
        real = torch.randn(args.batch, 3, 32, 32, device="cuda")
        with torch.no_grad(): fake = G(torch.randn(args.batch, 128, device="cuda"))
        eps = torch.rand(args.batch, 1, 1, 1, device="cuda")
        mixed = (eps * real + (1 - eps) * fake).requires_grad_()
        grad, = torch.autograd.grad(D(mixed).sum(), mixed, create_graph=True)
        loss = D(fake).mean() - D(real).mean() + 10 * ((grad.flatten(1).norm(2, 1) - 1) ** 2).mean()
        optD.zero_grad(); loss.backward(); optD.step()
    loss = -D(G(torch.randn(args.batch, 128, device="cuda"))).mean()
    optG.zero_grad(); loss.backward(); optG.step()
