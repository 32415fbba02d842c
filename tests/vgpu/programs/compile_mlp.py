"""torch.compile of a residual network of layers, and of its optimizer's step."""
import torch
from torch import nn
from torch.nn import functional as F
from measure import arguments, mark


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(2048, 8192), nn.Linear(8192, 2048), nn.LayerNorm(2048)

    def forward(self, x):
        for _ in range(3): x = x + F.dropout(self.b(F.gelu(self.a(self.norm(x)))), 0.1, self.training)
        return x.square().mean()


args = arguments(batch=4096)
model = torch.compile(Net().cuda())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(args.steps):
    loss = model(torch.randn(args.batch, 2048, device="cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mark(f"loop{step + 1}")
