"""Two-tower retrieval with in-batch negatives, dense embeddings, row-wise clipping; top-k over all items in chunks."""
import torch
from torch import nn
from torch.nn import functional as F
from measure import arguments, mark

args = arguments(batch=4096)
users, items = nn.Embedding(300000, 128).cuda(), nn.Embedding(200000, 128).cuda()
tower = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.LayerNorm(256), nn.Linear(256, 128)).cuda()
optimizer = torch.optim.Adam([*users.parameters(), *items.parameters(), *tower.parameters()], lr=1e-3)
for step in range(args.steps):
    u, i = torch.randint(0, 300000, (args.batch,), device="cuda"), torch.randint(0, 200000, (args.batch,), device="cuda")
    loss = F.cross_entropy(F.normalize(tower(users(u)), dim=1) @ F.normalize(items(i), dim=1).T / 0.05, torch.arange(args.batch, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(tower.parameters(), 1.0)
    optimizer.step()
with torch.no_grad():
    q = F.normalize(tower(users(u[:512])), dim=1)
    best = [torch.topk(q @ F.normalize(chunk, dim=1).T, 20) for chunk in items.weight.split(50000)]
    score, index = torch.cat([b.values for b in best], 1).topk(20)
print(index.shape)
mark("retrieve")
