"""QR of tall matrices with its gradient, LU solves of many systems, least squares, inverse and determinant."""
import torch
from measure import arguments, mark

args = arguments(batch=256)
p = torch.randn(2048, 256, device="cuda", requires_grad=True)
m = torch.randn(args.batch, 128, 128, device="cuda", requires_grad=True)
optimizer = torch.optim.Adam([p, m], lr=1e-3)
for step in range(args.steps):
    q, r = torch.linalg.qr(p)
    x = torch.linalg.solve(m + 12 * torch.eye(128, device="cuda"), torch.randn(args.batch, 128, 4, device="cuda"))
    loss = (q.mT @ torch.randn(2048, 8, device="cuda")).square().mean() + x.square().mean() + torch.linalg.inv(m[:8] + 12 * torch.eye(128, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    print(torch.linalg.lstsq(torch.randn(4096, 64, device="cuda"), torch.randn(4096, 3, device="cuda")).solution.shape, torch.linalg.det(m[:16]).shape)
    lu, pivots, info = torch.linalg.lu_factor_ex(torch.randn(1500, 1500, device="cuda"))
    print(torch.linalg.lu_solve(lu, pivots, torch.randn(1500, 16, device="cuda")).shape)
mark("lstsq")
