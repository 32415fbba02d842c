"""A mixture of experts as people write it: softmax router, top 2, a loop over experts with torch.where and index_add_."""
import torch
from torch import nn
from torch.nn import functional as F
from measure import arguments


class MoE(nn.Module):
    def __init__(self, d, hidden, experts=8, top=2):
        super().__init__()
        self.top, self.router = top, nn.Linear(d, experts, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, d)) for _ in range(experts))

    def forward(self, x):
        flat = x.flatten(0, 1)
        prob = F.softmax(self.router(flat), -1)
        weight, chosen = prob.topk(self.top, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == i)
            if token.numel() == 0: continue
            out.index_add_(0, token, expert(flat[token]) * weight[token, slot, None])
        balance = (prob.mean(0) * F.one_hot(chosen, prob.shape[1]).float().mean((0, 1))).sum() * prob.shape[1]
        return out.view_as(x), balance


args = arguments(batch=16)
embed, layers, head = nn.Embedding(16000, 512).cuda(), nn.ModuleList(MoE(512, 1024) for _ in range(4)).cuda(), nn.Linear(512, 16000).cuda()
optimizer = torch.optim.AdamW([*embed.parameters(), *layers.parameters(), *head.parameters()], lr=1e-4)
for step in range(args.steps):
    ids = torch.randint(0, 16000, (args.batch, 256), device="cuda")
    x, extra = embed(ids), 0
    for layer in layers:
        y, b = layer(x)
        x, extra = x + y, extra + b
    loss = F.cross_entropy(head(x).flatten(0, 1), ids.flatten()) + 0.01 * extra
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
