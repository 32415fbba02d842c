"""Super-resolution (residual blocks, pixel shuffle) with an L1 and a perceptual loss, fp16 with a scaler, PSNR on the GPU."""
import torch, torchvision
from torch import nn
from torch.nn import functional as F
from measure import arguments, mark


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.PReLU(), nn.Conv2d(c, c, 3, padding=1))

    def forward(self, x): return x + 0.1 * self.body(x)


args = arguments(batch=16)
net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *(Block(64) for _ in range(8)), nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(64, 3, 3, padding=1)).cuda()
vgg = torchvision.models.vgg16(weights=None).features[:16].cuda().eval().requires_grad_(False)
optimizer, scaler = torch.optim.Adam(net.parameters(), lr=1e-4), torch.amp.GradScaler("cuda")
for step in range(args.steps):
    high = torch.rand(args.batch, 3, 192, 192, device="cuda")
    low = F.interpolate(high, scale_factor=0.25, mode="bicubic", antialias=True)
    with torch.autocast("cuda", dtype=torch.float16):
        out = net(low)
        loss = F.l1_loss(out, high) + 0.1 * F.mse_loss(vgg(out), vgg(high))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
with torch.no_grad(): print((-10 * torch.log10(F.mse_loss(net(low), high))).item())
mark("eval")
