"""PointNet++-like: farthest point sampling in a loop, neighbours by cdist and topk, grouped MLPs, batch norm 1d."""
import torch
from torch import nn
from torch.nn import functional as F
from measure import arguments


def farthest(x, n):
    picked = torch.zeros(len(x), n, dtype=torch.long, device=x.device)
    distance, at = torch.full(x.shape[:2], 1e10, device=x.device), torch.zeros(len(x), dtype=torch.long, device=x.device)
    for i in range(n):
        picked[:, i] = at
        distance = torch.minimum(distance, (x - x[torch.arange(len(x)), at][:, None]).square().sum(-1))
        at = distance.argmax(1)
    return picked


args = arguments(batch=16)
a, b, head = (nn.Sequential(nn.Conv2d(i, o, 1), nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, 1), nn.ReLU()).cuda() for i, o in ((3, 64), (67, 256), (256, 256)))
out = nn.Linear(256, 40).cuda()
optimizer = torch.optim.Adam([*a.parameters(), *b.parameters(), *head.parameters(), *out.parameters()], lr=1e-3)
for step in range(args.steps):
    x = torch.rand(args.batch, 2048, 3, device="cuda")
    feature = None
    for net, n in ((a, 256), (b, 64)):
        center = x.gather(1, farthest(x, n)[..., None].expand(-1, -1, 3))
        near = torch.cdist(center, x).topk(32, largest=False).indices
        group = x[torch.arange(args.batch, device="cuda")[:, None, None], near] - center[:, :, None]
        if feature is not None: group = torch.cat([group, feature[torch.arange(args.batch, device="cuda")[:, None, None], near]], -1)
        feature = net(group.permute(0, 3, 1, 2)).amax(3).transpose(1, 2)
        x = center
    loss = F.cross_entropy(out(head(feature.transpose(1, 2)[..., None]).squeeze(3).amax(2)), torch.randint(0, 40, (args.batch,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
