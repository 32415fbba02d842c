"""DCGAN at 64 x 64, two Adams, real and fake passes."""
import torch
from torch import nn
from measure import arguments

args = arguments(batch=128)
nz, w = 100, 64


def up(i, o, k=4, s=2, p=1): return [nn.ConvTranspose2d(i, o, k, s, p, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)]
def down(i, o): return [nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, inplace=True)]


netG = nn.Sequential(*up(nz, w * 8, 4, 1, 0), *up(w * 8, w * 4), *up(w * 4, w * 2), *up(w * 2, w), nn.ConvTranspose2d(w, 3, 4, 2, 1, bias=False), nn.Tanh()).cuda()
netD = nn.Sequential(nn.Conv2d(3, w, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True), *down(w, w * 2), *down(w * 2, w * 4), *down(w * 4, w * 8), nn.Conv2d(w * 8, 1, 4, 1, 0, bias=False), nn.Sigmoid()).cuda()
for m in [*netG.modules(), *netD.modules()]:
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)): nn.init.normal_(m.weight, 0.0, 0.02)
optG, optD = (torch.optim.Adam(n.parameters(), lr=2e-4, betas=(0.5, 0.999)) for n in (netG, netD))
criterion = nn.BCELoss()
for step in range(args.steps):
    real = torch.rand(args.batch, 3, 64, 64).cuda() * 2 - 1
    netD.zero_grad()
    label = torch.full((args.batch,), 1.0, device="cuda")
    criterion(netD(real).view(-1), label).backward()
    fake = netG(torch.randn(args.batch, nz, 1, 1, device="cuda"))
    label.fill_(0.0)
    criterion(netD(fake.detach()).view(-1), label).backward()
    optD.step()
    netG.zero_grad()
    label.fill_(1.0)
    criterion(netD(fake).view(-1), label).backward()
    optG.step()
