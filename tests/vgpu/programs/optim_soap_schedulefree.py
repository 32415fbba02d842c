"""Optimizers of papers, written as torch.optim.Optimizer by hand: Shampoo by inverse roots, SOAP with a basis refreshed by QR, Lion, schedule-free AdamW with train and eval modes, Muon by Newton-Schulz, each on the same small ConvNet and transformer; AdEMAMix; gradients centralised."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.optim import Optimizer
from measure import arguments, mark
args = arguments(batch=32, steps=4)
class Lion(Optimizer):
    def __init__(self, p, lr=1e-4, betas=(0.9, 0.99), wd=0.1): super().__init__(p, dict(lr=lr, betas=betas, wd=wd))
    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in (p for p in g["params"] if p.grad is not None):
                s = self.state[p]
                if not s: s["m"] = torch.zeros_like(p)
                p.mul_(1 - g["lr"] * g["wd"]); u = s["m"].clone().mul_(g["betas"][0]).add(p.grad, alpha=1 - g["betas"][0]).sign_()
                p.add_(u, alpha=-g["lr"]); s["m"].mul_(g["betas"][1]).add_(p.grad, alpha=1 - g["betas"][1])
class Shampoo(Optimizer):
    def __init__(self, p, lr=1e-1, eps=1e-4, every=2): super().__init__(p, dict(lr=lr, eps=eps, every=every))
    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in (p for p in g["params"] if p.grad is not None):
                s, order, grad = self.state[p], p.grad.ndimension(), p.grad
                if not s:
                    s["step"], s["mom"] = 0, grad.clone()
                    for i, d in enumerate(grad.size()): s[f"pre{i}"] = g["eps"] * torch.eye(d, device=p.device); s[f"inv{i}"] = torch.zeros(d, d, device=p.device)
                s["mom"].mul_(0.9).add_(grad, alpha=0.1); grad = s["mom"]
                for i, d in enumerate(grad.size()):
                    grad = grad.transpose(0, i).contiguous(); shape = grad.size(); flat = grad.view(d, -1); s[f"pre{i}"].add_(flat @ flat.t())
                    if s["step"] % g["every"] == 0: u, e, v = torch.svd(s[f"pre{i}"]); s[f"inv{i}"] = u @ (e + 1e-8).pow_(-1 / order).diag() @ v.t()
                    grad = (s[f"inv{i}"] @ flat).view(shape).transpose(0, i)
                s["step"] += 1; p.add_(grad, alpha=-g["lr"])
class SOAP(Optimizer):
    def __init__(self, p, lr=3e-3, every=2): super().__init__(p, dict(lr=lr, every=every))
    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in (p for p in g["params"] if p.grad is not None):
                s, G = self.state[p], p.grad.reshape(p.shape[0], -1) if p.ndim > 1 else p.grad[:, None]
                if not s:
                    s["t"], s["m"], s["v"] = 0, torch.zeros_like(G), torch.zeros_like(G)
                    s["L"], s["R"] = (torch.zeros(n, n, device=p.device) if n <= 1200 else None for n in G.shape); s["QL"] = s["QR"] = None
                if s["L"] is not None: s["L"].lerp_(G @ G.T, 0.05)
                if s["R"] is not None: s["R"].lerp_(G.T @ G, 0.05)
                if s["t"] == 0:
                    s["QL"], s["QR"] = (None if M is None else torch.linalg.eigh(M + 1e-12 * torch.eye(len(M), device=p.device))[1].flip(1) for M in (s["L"], s["R"]))
                    s["t"] = 1
                    continue
                proj = lambda x, back=False: (lambda y: y if s["QR"] is None else (y @ s["QR"].T if back else y @ s["QR"]))(x if s["QL"] is None else (s["QL"] @ x if back else s["QL"].T @ x))
                P = proj(G); s["m"].lerp_(G, 0.05); s["v"].mul_(0.95).addcmul_(P, P, value=0.05)
                p.add_(proj(proj(s["m"]) / (s["v"].sqrt() + 1e-8), True).view_as(p), alpha=-g["lr"]); s["t"] += 1
                if s["t"] % g["every"] == 0: s["QL"], s["QR"] = (None if M is None else torch.linalg.qr(M @ Q)[0] for M, Q in ((s["L"], s["QL"]), (s["R"], s["QR"])))
class ScheduleFree(Optimizer):
    def __init__(self, p, lr=2.5e-3, b1=0.9, b2=0.999): super().__init__(p, dict(lr=lr, b1=b1, b2=b2, k=0, train=True))
    @torch.no_grad()
    def swap(self, to):
        for g in self.param_groups:
            for p in g["params"]:
                if "z" in self.state[p]: p.lerp_(self.state[p]["z"], 1 - 1 / g["b1"] if to == "eval" else 1 - g["b1"])
    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            ps = [p for p in g["params"] if p.grad is not None]; g["k"] += 1
            for p in ps:
                if "z" not in self.state[p]: self.state[p]["z"], self.state[p]["v"] = torch.clone(p), torch.zeros_like(p)
            z, v, gr = [self.state[p]["z"] for p in ps], [self.state[p]["v"] for p in ps], [p.grad for p in ps]; torch._foreach_mul_(v, g["b2"])
            torch._foreach_addcmul_(v, gr, gr, value=1 - g["b2"]); d = torch._foreach_div(v, 1 - g["b2"] ** g["k"]); torch._foreach_sqrt_(d)
            torch._foreach_add_(d, 1e-8); torch._foreach_div_(gr, d); c = 1 / g["k"]; torch._foreach_lerp_(ps, z, weight=c)
            torch._foreach_add_(ps, gr, alpha=g["lr"] * (g["b1"] * (1 - c) - 1)); torch._foreach_sub_(z, gr, alpha=g["lr"])
class Muon(Optimizer):
    def __init__(self, p, lr=0.02): super().__init__(p, dict(lr=lr))
    @torch.no_grad()
    def step(self, closure=None):
        for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
            s = self.state[p]; s.setdefault("m", torch.zeros_like(p)); s["m"].lerp_(p.grad, 0.05); u = p.grad.lerp(s["m"], 0.95)
            if p.ndim > 1:
                X = u.reshape(len(u), -1).bfloat16(); t = X.shape[0] > X.shape[1]; X = X.T if t else X; X = X / (X.norm() + 1e-7)
                for _ in range(5): A = X @ X.T; X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
                u = (X.T if t else X).view_as(p).to(p.dtype)
            p.add_(u, alpha=-self.defaults["lr"])
def net():
    return nn.Sequential(nn.Conv2d(3, 48, 3, 2, 1), nn.ReLU(), nn.Conv2d(48, 96, 3, 2, 1), nn.ReLU(), nn.Flatten(2), nn.Linear(64, 96), nn.TransformerEncoder(nn.TransformerEncoderLayer(96, 4, 256,
        0.0, batch_first=True), 2, enable_nested_tensor=False), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(96, 10)).cuda()
for kind in (Lion, Shampoo, SOAP, ScheduleFree, Muon):
    model = net(); opt = kind(model.parameters())
    for step in range(args.steps):
        loss = F.cross_entropy(model(torch.randn(args.batch, 3, 32, 32).cuda()), torch.randint(0, 10, (args.batch,)).cuda()); loss.backward()
        opt.step(); opt.zero_grad(); print(kind.__name__, loss.item())
    if kind is ScheduleFree: opt.swap("eval")
    with torch.no_grad(): print(model.eval()(torch.randn(2 * args.batch, 3, 32, 32).cuda()).shape)
    mark(kind.__name__.lower()); del model, opt
