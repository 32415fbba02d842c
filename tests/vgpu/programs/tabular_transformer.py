"""A transformer over table columns with nn.MultiheadAttention (weights needed), AdamW, AUC by sorting on the GPU."""
import torch
from torch import nn
from measure import arguments, mark

args = arguments(batch=2048)
categories = nn.ModuleList(nn.Embedding(n, 96) for n in (10, 100, 1000, 5000, 20, 7)).cuda()
numbers, attention = nn.Parameter(torch.randn(20, 96, device="cuda")), nn.ModuleList(nn.MultiheadAttention(96, 8, batch_first=True, dropout=0.1) for _ in range(3)).cuda()
norms, head = nn.ModuleList(nn.LayerNorm(96) for _ in range(3)).cuda(), nn.Linear(96, 1).cuda()
optimizer = torch.optim.AdamW([*categories.parameters(), numbers, *attention.parameters(), *norms.parameters(), *head.parameters()], lr=1e-3)
for step in range(args.steps):
    c = [torch.randint(0, e.num_embeddings, (args.batch,), device="cuda") for e in categories]
    x = torch.cat([torch.stack([e(i) for e, i in zip(categories, c)], 1), torch.randn(args.batch, 20, 1, device="cuda") * numbers], 1)
    for a, n in zip(attention, norms): x = n(x + a(x, x, x, need_weights=True)[0])
    y, score = torch.randint(0, 2, (args.batch,), device="cuda"), head(x.mean(1)).squeeze(1)
    loss = nn.functional.binary_cross_entropy_with_logits(score, y.float(), pos_weight=torch.tensor(3.0, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
order = y[score.argsort()]
ranks = torch.arange(1, len(y) + 1, device="cuda")
positive = int(order.sum())
if 0 < positive < len(y): print("auc", ((ranks[order == 1].sum() - positive * (positive + 1) / 2) / (positive * (len(y) - positive))).item())
mark("auc")
