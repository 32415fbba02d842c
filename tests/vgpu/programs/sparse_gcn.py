"""A graph convolutional network with torch.sparse: a normalised adjacency (COO, then CSR) times dense features."""
import torch
from torch import nn
from torch.nn import functional as F
from measure import arguments

args = arguments(batch=50000)
n, e = args.batch, 10 * args.batch
index = torch.randint(0, n, (2, e), device="cuda")
degree = torch.zeros(n, device="cuda").index_add_(0, index[0], torch.ones(e, device="cuda")).clamp(min=1)
adjacency = torch.sparse_coo_tensor(index, (degree[index[0]] * degree[index[1]]).rsqrt(), (n, n)).coalesce()
csr = adjacency.to_sparse_csr()
x, y = torch.randn(n, 256, device="cuda"), torch.randint(0, 40, (n,), device="cuda")
a, b = nn.Linear(256, 256).cuda(), nn.Linear(256, 40).cuda()
optimizer = torch.optim.Adam([*a.parameters(), *b.parameters()], lr=0.01)
for step in range(args.steps):
    h = F.dropout(F.relu(torch.sparse.mm(adjacency, a(x))), 0.5)
    loss = F.cross_entropy(torch.sparse.mm(adjacency, b(h)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad(): print((csr @ x).shape)
