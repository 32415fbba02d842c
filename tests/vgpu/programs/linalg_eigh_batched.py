"""Batches of symmetric matrices: eigh and its gradient (whitening), eigvalsh of a large one, matrix_exp, slogdet."""
import torch
from measure import arguments, mark

args = arguments(batch=2048)
net = torch.nn.Linear(64, 64 * 64).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(args.steps):
    a = net(torch.randn(args.batch, 64, device="cuda")).view(-1, 64, 64)
    sym = a @ a.mT + 0.1 * torch.eye(64, device="cuda")
    values, vectors = torch.linalg.eigh(sym)
    white = vectors @ torch.diag_embed(values.clamp(min=1e-3).rsqrt()) @ vectors.mT
    loss = white.square().mean() + torch.linalg.slogdet(sym).logabsdet.mean() + torch.matrix_exp(0.01 * sym).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
big = torch.randn(1536, 1536, device="cuda")
print(torch.linalg.eigvalsh(big + big.T).shape)
mark("eigvalsh")
