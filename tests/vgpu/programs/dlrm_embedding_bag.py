"""A recommender (DLRM): embedding bags with sparse gradients by SparseAdam, dense parts by Adagrad, pairwise interactions."""
import torch
from torch import nn
from measure import arguments

args = arguments(batch=4096)
sizes = [500000, 200000, 100000, 50000, 20000, 1000]
bags = nn.ModuleList(nn.EmbeddingBag(n, 64, mode="sum", sparse=True) for n in sizes).cuda()
bottom, top = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU()).cuda(), nn.Sequential(nn.Linear(64 + 21, 1024), nn.ReLU(), nn.Linear(1024, 1)).cuda()
sparse, dense = torch.optim.SparseAdam(list(bags.parameters()), lr=1e-3), torch.optim.Adagrad([*bottom.parameters(), *top.parameters()], lr=1e-2)
for step in range(args.steps):
    x = bottom(torch.randn(args.batch, 13, device="cuda"))
    parts = [x]
    for n, bag in zip(sizes, bags):
        counts = torch.randint(1, 8, (args.batch,))
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)[:-1]])
        parts.append(bag(torch.randint(0, n, (int(counts.sum()),)).cuda(), offsets.cuda()))
    t = torch.stack(parts, 1)
    z = torch.bmm(t, t.transpose(1, 2))
    i, j = torch.tril_indices(7, 7, offset=-1, device="cuda")
    loss = nn.functional.binary_cross_entropy_with_logits(top(torch.cat([x, z[:, i, j]], 1)).squeeze(1), torch.randint(0, 2, (args.batch,), device="cuda").float())
    sparse.zero_grad(); dense.zero_grad()
    loss.backward()
    sparse.step(); dense.step()
