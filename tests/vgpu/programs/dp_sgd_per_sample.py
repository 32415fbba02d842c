"""DP-SGD by torch.func: per-sample gradients of a small CNN with GroupNorm and of a transformer, in chunks, clipped and noised, batches by Poisson sampling of different sizes, virtual steps that accumulate; the norm histogram printed."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.func import functional_call, grad_and_value, vmap
from measure import arguments, mark
args = arguments(batch=32, steps=3)
cnn = nn.Sequential(nn.Conv2d(1, 16, 8, 2, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(),
    nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)).cuda()
class Text(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.e, self.q, self.k, self.v, self.f, self.n, self.o = nn.Embedding(3000, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Sequential(nn.Linear(d, 512), nn.GELU(), nn.Linear(512, d)), nn.LayerNorm(d), nn.Linear(d, 4)
    def forward(self, x): h = self.e(x); a = (self.q(h) @ self.k(h).transpose(1, 2) / 11.3).softmax(-1) @ self.v(h); h = self.n(h + a); return self.o((h + self.f(h)).mean(1))
def private(model, sample, classes, chunk, lr=0.1, clip=1.0, sigma=1.1):
    params = {k: v.detach() for k, v in model.named_parameters()}; opt = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    def loss(p, x, y): return F.cross_entropy(functional_call(model, p, (x.unsqueeze(0),)), y.unsqueeze(0))
    per = vmap(grad_and_value(loss), in_dims=(None, 0, 0), randomness="different", chunk_size=chunk)
    for step in range(args.steps):
        total = None; seen = 0
        for part in range(2):
            n = int((torch.rand(4 * args.batch) < 0.25).sum()) + 1; x, y = sample(n).cuda(), torch.randint(0, classes, (n,)).cuda()
            g, l = per(params, x, y); norms = torch.stack([v.flatten(1).norm(dim=1) for v in g.values()], 1).norm(dim=1)
            scale = (clip / (norms + 1e-6)).clamp(max=1.0); s = {k: torch.einsum("i,i...->...", scale, v) for k, v in g.items()}
            total = s if total is None else {k: total[k] + s[k] for k in s}; seen += n
        for k, p in model.named_parameters(): p.grad = (total[k] + torch.randn_like(p) * sigma * clip) / seen
        del g, s, total; opt.step(); opt.zero_grad(); params = {k: v.detach() for k, v in model.named_parameters()}; print(l.mean().item(), torch.histc(norms, 5).tolist())
private(cnn, lambda n: torch.randn(n, 1, 28, 28), 10, None); mark("cnn"); private(Text().cuda(), lambda n: torch.randint(0, 3000, (n, 64)), 4, 16); mark("text")
