"""SimCLR: two views through a ResNet-18 and a projection, NT-Xent over the batch, LARS-like scaling by SGD."""
import torch, torchvision
from torch import nn
from torch.nn import functional as F
from measure import arguments

args = arguments(batch=128)
net = torchvision.models.resnet18(weights=None)
net.fc = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128))
net = net.cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-6)
for step in range(args.steps):
    x = torch.randn(args.batch, 3, 96, 96, device="cuda")
    views = torch.cat([x + 0.1 * torch.randn_like(x), x.flip(3)])
    with torch.autocast("cuda"): z = F.normalize(net(views), dim=1)
    sim = z @ z.T / 0.1
    sim.masked_fill_(torch.eye(len(z), dtype=torch.bool, device="cuda"), float("-inf"))
    target = torch.arange(len(z), device="cuda").roll(args.batch)
    loss = F.cross_entropy(sim, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
