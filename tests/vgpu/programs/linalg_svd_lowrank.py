"""Low-rank compression of weights by torch.linalg.svd, nuclear norm as a penalty (its gradient), svd_lowrank and pinv."""
import torch
from measure import arguments, mark

args = arguments(batch=1024)
w = torch.randn(args.batch, args.batch, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([w], lr=1e-3)
for step in range(args.steps):
    u, s, vh = torch.linalg.svd(w, full_matrices=False)
    loss = s.sum() + (u[:, :64] @ torch.diag(s[:64]) @ vh[:64] - w).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    a, b, c = torch.svd_lowrank(w, q=32)
    mark("lowrank")
    print(torch.linalg.pinv(w[:512]).shape, torch.linalg.matrix_rank(w[:256, :256]).shape, torch.linalg.svdvals(w[:300]).shape)
mark("pinv")
