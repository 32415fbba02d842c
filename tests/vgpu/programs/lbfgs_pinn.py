"""A physics-informed network: second derivatives by create_graph, Adam first, then LBFGS with a closure and strong Wolfe."""
import torch
from torch import nn
from measure import arguments, mark

args = arguments(batch=20000)
net = nn.Sequential(nn.Linear(2, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1)).cuda()


def residual():
    p = torch.rand(args.batch, 2, device="cuda", requires_grad=True)
    u = net(p)
    g, = torch.autograd.grad(u.sum(), p, create_graph=True)
    gxx, = torch.autograd.grad(g[:, 0].sum(), p, create_graph=True)
    return (g[:, 1] + u.squeeze(1) * g[:, 0] - 0.01 * gxx[:, 0]).square().mean()


adam = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(args.steps):
    adam.zero_grad()
    residual().backward()
    adam.step()
lbfgs = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=5, history_size=10, line_search_fn="strong_wolfe")


def closure():
    lbfgs.zero_grad()
    loss = residual()
    loss.backward()
    return loss


print(lbfgs.step(closure).item() >= 0)
