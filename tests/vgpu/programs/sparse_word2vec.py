"""Skip-gram with negative sampling: sparse embeddings by SparseAdam, negatives drawn by multinomial from counts, an EmbeddingBag of subwords with max norm, dense layer by Adagrad, nearest neighbours afterwards."""
import torch, torch.nn as nn, torch.nn.functional as F
from measure import arguments, mark

args = arguments(batch=8192, steps=4)
V, D = 200_000, 256
words, context = nn.Embedding(V, D, sparse=True).cuda(), nn.Embedding(V, D, sparse=True).cuda()
sub = nn.EmbeddingBag(50_000, D, mode="mean", sparse=True).cuda()
mix = nn.Linear(2 * D, D).cuda()
opt_sparse = torch.optim.SparseAdam([*words.parameters(), *context.parameters(), *sub.parameters()], 1e-3); opt_dense = torch.optim.Adagrad(mix.parameters(), 0.01)
counts = torch.rand(V, device="cuda").pow(0.75)
for step in range(args.steps):
    centre, pos = torch.randint(0, V, (args.batch,), device="cuda"), torch.randint(0, V, (args.batch,), device="cuda")
    neg = torch.multinomial(counts, args.batch * 5, replacement=True).view(args.batch, 5)
    pieces = torch.randint(0, 50_000, (args.batch * 3,), device="cuda")
    e = mix(torch.cat([words(centre), sub(pieces, torch.arange(0, len(pieces), 3, device="cuda"))], 1))
    loss = -(F.logsigmoid((e * context(pos)).sum(1)).mean() + F.logsigmoid(-torch.einsum("bd,bnd->bn", e, context(neg))).sum(1).mean())
    opt_sparse.zero_grad(); opt_dense.zero_grad()
    loss.backward()
    opt_sparse.step(); opt_dense.step()
with torch.no_grad():
    table = F.normalize(words.weight, dim=1)
    best = [torch.topk(F.normalize(words(torch.arange(i, i + 64, device="cuda")), dim=1) @ table.t(), 10).indices for i in range(0, 256, 64)]
print(torch.cat(best).shape)
mark("neighbours")
