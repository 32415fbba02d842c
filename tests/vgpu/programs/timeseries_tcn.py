"""Forecasting: dilated causal conv1d with weight norm, quantile loss, RevIN, Adam with a plateau schedule and early stopping by validation loss."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from measure import arguments


class Causal(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.pad, self.a, self.b = 2 * dilation, weight_norm(nn.Conv1d(c, c, 3, dilation=dilation)), weight_norm(nn.Conv1d(c, c, 3, dilation=dilation))

    def forward(self, x): return x + F.dropout(F.relu(self.b(F.pad(F.relu(self.a(F.pad(x, (self.pad, 0)))), (self.pad, 0)))), 0.1, self.training)


args = arguments(batch=256)
net = nn.Sequential(nn.Conv1d(7, 128, 1), *(Causal(128, 2 ** i) for i in range(6)), nn.Conv1d(128, 21, 1)).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
levels, best, patience = torch.tensor([0.1, 0.5, 0.9], device="cuda"), float("inf"), 0
for step in range(args.steps):
    net.train()
    x = torch.randn(args.batch, 7, 336, device="cuda")
    x = (x - x.mean(2, keepdim=True)) / (x.std(2, keepdim=True) + 1e-5)
    error = torch.randn(args.batch, 7, 1, 336, device="cuda") - net(x).view(args.batch, 7, 3, 336)
    loss = torch.maximum(levels[:, None] * error, (levels[:, None] - 1) * error).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    net.eval()
    with torch.no_grad(): validation = net(x).square().mean().item()
    schedule.step(validation)
    if validation < best: best, patience = validation, 0
    else: patience += 1
    if patience > 5: break
