"""A U-Net on 256 x 256 with Dice and cross-entropy, bf16 autocast, channels_last, AdamW."""
import torch
from torch import nn
from torch.nn import functional as F
from measure import arguments


def double(i, o): return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(True), nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(True))


class UNet(nn.Module):
    def __init__(self, w=48, classes=4):
        super().__init__()
        c = [w, 2 * w, 4 * w, 8 * w]
        self.down, self.mid = nn.ModuleList(double(i, o) for i, o in zip([1] + c, c)), double(c[-1], 16 * w)
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * i, i, 2, 2) for i in reversed(c))
        self.up, self.out = nn.ModuleList(double(2 * i, i) for i in reversed(c)), nn.Conv2d(w, classes, 1)

    def forward(self, x):
        kept = []
        for d in self.down: x = d(x); kept.append(x); x = F.max_pool2d(x, 2)
        x = self.mid(x)
        for r, u in zip(self.rise, self.up): x = u(torch.cat([r(x), kept.pop()], 1))
        return self.out(x)


args = arguments(batch=8)
model = UNet().to("cuda", memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(args.steps):
    x = torch.randn(args.batch, 1, 256, 256, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 4, (args.batch, 256, 256), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16): logits = model(x)
    prob, hot = logits.float().softmax(1), F.one_hot(y, 4).permute(0, 3, 1, 2).float()
    dice = 1 - (2 * (prob * hot).sum((2, 3)) + 1) / (prob.sum((2, 3)) + hot.sum((2, 3)) + 1)
    loss = F.cross_entropy(logits.float(), y) + dice.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
