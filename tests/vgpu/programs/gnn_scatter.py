"""A graph attention network written with scatter and index ops: softmax over edges, mean pooling per graph."""
import torch
from torch import nn
from torch.nn import functional as F
from measure import arguments


class GAT(nn.Module):
    def __init__(self, i, o, heads=4):
        super().__init__()
        self.heads, self.o, self.lin, self.att = heads, o, nn.Linear(i, heads * o, bias=False), nn.Parameter(torch.randn(2, heads, o) * 0.1)

    def forward(self, x, edge):
        h = self.lin(x).view(-1, self.heads, self.o)
        s, d = edge
        score = F.leaky_relu((h * self.att[0]).sum(-1)[s] + (h * self.att[1]).sum(-1)[d], 0.2)
        top = torch.full((len(x), self.heads), -1e9, device=x.device).scatter_reduce(0, d[:, None].expand_as(score), score, "amax")
        w = (score - top[d]).exp()
        w = w / torch.zeros(len(x), self.heads, device=x.device).index_add(0, d, w)[d].clamp(min=1e-9)
        return torch.zeros_like(h).index_add(0, d, h[s] * w[..., None]).flatten(1)


args = arguments(batch=256)
layers, head = nn.ModuleList([GAT(64, 64), GAT(256, 64), GAT(256, 64)]).cuda(), nn.Linear(256, 1).cuda()
optimizer = torch.optim.Adam([*layers.parameters(), *head.parameters()], lr=1e-3)
for step in range(args.steps):
    sizes = torch.randint(20, 80, (args.batch,))
    graph = torch.repeat_interleave(torch.arange(args.batch), sizes).cuda()
    n = len(graph)
    edge = torch.randint(0, n, (2, 6 * n), device="cuda")
    edge = edge[:, edge[0] != edge[1]]
    x = torch.randn(n, 64, device="cuda")
    for layer in layers: x = F.elu(layer(x, edge))
    pooled = torch.zeros(args.batch, 256, device="cuda").index_add(0, graph, x) / torch.bincount(graph, minlength=args.batch)[:, None]
    loss = F.l1_loss(head(pooled).squeeze(1), torch.randn(args.batch, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
