"""Gaussian process regression: the kernel matrix, Cholesky, triangular solves, hyperparameters by Adam, float64."""
import math
import torch
from measure import arguments, mark

args = arguments(batch=2048)
x = torch.rand(args.batch, 8, device="cuda", dtype=torch.float64)
y = torch.sin(x.sum(1))
scale, noise = torch.zeros((), device="cuda", dtype=torch.float64, requires_grad=True), torch.full((), -2.0, device="cuda", dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.Adam([scale, noise], lr=0.1)
for step in range(args.steps):
    optimizer.zero_grad()
    k = torch.exp(-0.5 * torch.cdist(x / scale.exp(), x / scale.exp()) ** 2) + noise.exp() * torch.eye(len(x), device="cuda", dtype=torch.float64)
    chol = torch.linalg.cholesky(k)
    alpha = torch.cholesky_solve(y[:, None], chol)
    loss = 0.5 * (y @ alpha.squeeze(1)) + chol.diagonal().log().sum() + 0.5 * len(x) * math.log(2 * math.pi)
    loss.backward()
    optimizer.step()
with torch.no_grad():
    star = torch.exp(-0.5 * torch.cdist(torch.rand(256, 8, device="cuda", dtype=torch.float64), x) ** 2)
    v = torch.linalg.solve_triangular(chol, star.T, upper=False)
    print((1 - (v ** 2).sum(0)).shape)
mark("predict")
