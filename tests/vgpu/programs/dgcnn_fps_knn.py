"""DGCNN for part segmentation on clouds of points: k nearest neighbours in feature space rebuilt in every layer, edge convolutions by gather, farthest point sampling in a Python loop, Chamfer distance of a small folding decoder, mean IoU by class on the GPU."""
import torch, torch.nn as nn, torch.nn.functional as F
from measure import arguments, mark
args = arguments(batch=6, steps=3)
def knn(x, k): inner = -2 * torch.matmul(x.transpose(2, 1), x); xx = torch.sum(x ** 2, dim=1, keepdim=True); return (-xx - inner - xx.transpose(2, 1)).topk(k=k, dim=-1)[1]
def get_graph_feature(x, k=20):
    b, c, n = x.shape; idx = (knn(x, k) + torch.arange(0, b, device=x.device).view(-1, 1, 1) * n).view(-1); x = x.transpose(2, 1).contiguous()
    f = x.view(b * n, -1)[idx, :].view(b, n, k, c); x = x.view(b, n, 1, c).repeat(1, 1, k, 1)
    return torch.cat((f - x, x), dim=3).permute(0, 3, 1, 2).contiguous()
def farthest_point_sample(xyz, npoint):
    B, N, C = xyz.shape; centroids = torch.zeros(B, npoint, dtype=torch.long, device=xyz.device)
    distance = torch.ones(B, N, device=xyz.device) * 1e10; farthest = torch.randint(0, N, (B,), dtype=torch.long, device=xyz.device)
    rows = torch.arange(B, dtype=torch.long, device=xyz.device)
    for i in range(npoint):
        centroids[:, i] = farthest; c = xyz[rows, farthest, :].view(B, 1, 3); d = torch.sum((xyz - c) ** 2, -1); mask = d < distance
        distance[mask] = d[mask]; farthest = torch.max(distance, -1)[1]
    return centroids
conv2 = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2))
conv1 = lambda i, o: nn.Sequential(nn.Conv1d(i, o, 1, bias=False), nn.BatchNorm1d(o), nn.LeakyReLU(0.2))
class DGCNN(nn.Module):
    def __init__(self, parts=16):
        super().__init__()
        self.c1, self.c2, self.c3 = nn.Sequential(conv2(6, 64), conv2(64, 64)), nn.Sequential(conv2(128, 64), conv2(64, 64)), conv2(128, 64)
        self.c6, self.c8 = conv1(192, 512), nn.Sequential(conv1(512 + 192, 256), nn.Dropout(0.5), conv1(256, 128), nn.Conv1d(128, parts, 1))
    def forward(self, x):
        a = self.c1(get_graph_feature(x)).max(-1)[0]; b = self.c2(get_graph_feature(a)).max(-1)[0]; c = self.c3(get_graph_feature(b)).max(-1)[0]
        m = torch.cat((a, b, c), 1); g = self.c6(m).max(-1, keepdim=True)[0]
        return self.c8(torch.cat((g.repeat(1, 1, x.shape[-1]), m), 1)), g.squeeze(-1)
model = DGCNN().cuda(); opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4); plan = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5, eta_min=1e-3)
for step in range(args.steps):
    p, y = torch.randn(args.batch, 1024, 3).cuda(), torch.randint(0, 16, (args.batch, 700)).cuda()
    i = farthest_point_sample(p, 100) if step == 0 else None; p = p[:, :700]; z, _ = model(p.transpose(2, 1))
    one = torch.zeros(z.numel() // 16, 16, device="cuda").scatter(1, y.view(-1, 1), 1) * 0.8 + 0.0125
    loss = -(one * F.log_softmax(z.permute(0, 2, 1).reshape(-1, 16), 1)).sum(1).mean()
    opt.zero_grad(); loss.backward(); opt.step(); plan.step(); print(loss.item())
model.eval(); inter, union = torch.zeros(16, device="cuda"), torch.zeros(16, device="cuda")
with torch.no_grad():
    for _ in range(2):
        y = torch.randint(0, 16, (2 * args.batch, 700)).cuda(); pred = model(torch.randn(2 * args.batch, 3, 700).cuda())[0].max(1)[1]
        for c in range(16): inter[c] += ((pred == c) & (y == c)).sum(); union[c] += ((pred == c) | (y == c)).sum()
print((inter / union.clamp(min=1)).mean().item()); mark("iou")
grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 24), indexing="ij")).view(1, 2, -1).cuda()
fold = nn.ModuleList([nn.Sequential(conv1(514, 256), conv1(256, 128), nn.Conv1d(128, 3, 1)), nn.Sequential(conv1(515, 256), nn.Conv1d(256, 3, 1))]).cuda()
opt = torch.optim.Adam([*fold.parameters(), *model.parameters()], 1e-3); model.train()
for step in range(args.steps):
    p = torch.randn(args.batch, 3, 512).cuda(); g = model(p)[1].unsqueeze(-1).repeat(1, 1, 576)
    q = fold[0](torch.cat([grid.expand(args.batch, -1, -1), g], 1)); q = fold[1](torch.cat([q, g], 1))
    d = torch.cdist(p.transpose(1, 2), q.transpose(1, 2)); loss = d.min(1)[0].mean() + d.min(2)[0].mean(); opt.zero_grad(); loss.backward()
    opt.step(); print(loss.item())
