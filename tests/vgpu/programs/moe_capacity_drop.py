"""A Switch/GShard mixture of experts with capacity: top-2 gates by cumsum of one-hot masks, tokens over the capacity dropped, dispatch by einsum as Mesh TensorFlow has it and by index lists (nonzero) as Mixtral has it, load balance and z losses, expert counts printed, capacity raised in evaluation."""
import torch, torch.nn as nn, torch.nn.functional as F
from measure import arguments, mark
args = arguments(batch=6, steps=3)
D, E, H, T, V = 256, 8, 640, 160, 3000
class Experts(nn.Module):
    def __init__(self): super().__init__(); self.a, self.b = nn.Parameter(torch.randn(E, D, H) * 0.02), nn.Parameter(torch.randn(E, H, D) * 0.02)
    def forward(self, x): return torch.bmm(F.gelu(torch.bmm(x, self.a)), self.b)
class Capacity(nn.Module):
    def __init__(self): super().__init__(); self.gate, self.experts = nn.Linear(D, E, bias=False), Experts()
    def forward(self, x):
        b, t, d = x.shape; x = x.reshape(-1, d); n = len(x); cap = int((1.25 if self.training else 2.0) * 2 * n / E)
        logits = self.gate(x.float() * (torch.empty_like(x, dtype=torch.float).uniform_(0.99, 1.01) if self.training else 1)); p = logits.softmax(-1)
        i1 = p.argmax(-1); m1 = F.one_hot(i1, E).float(); i2 = p.masked_fill(m1.bool(), 0).argmax(-1); m2 = F.one_hot(i2, E).float()
        l1 = m1.cumsum(0) - 1; l2 = m2.cumsum(0) - 1 + m1.sum(0, keepdim=True)
        self.aux = (p.mean(0) * m1.mean(0)).sum() * E + 1e-3 * logits.logsumexp(-1).pow(2).mean()
        m1, m2 = m1 * (l1 < cap), m2 * (l2 < cap); g1, g2 = (p * m1).sum(1), (p * m2).sum(1); z = (g1 + g2).clamp(min=1e-9)
        s1, s2 = F.one_hot((l1 * m1).sum(1).long(), cap).float(), F.one_hot((l2 * m2).sum(1).long(), cap).float()
        combine = (g1 / z)[:, None, None] * m1.unsqueeze(-1) * s1.unsqueeze(1) + (g2 / z)[:, None, None] * m2.unsqueeze(-1) * s2.unsqueeze(1)
        dispatch = combine.bool(); y = self.experts(torch.einsum("nec,nd->ecd", dispatch.to(x.dtype), x)); self.dropped = 2 * n - dispatch.sum()
        return torch.einsum("nec,ecd->nd", combine.to(y.dtype), y).view(b, t, d)
class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.e = nn.Linear(D, E, bias=False), nn.ModuleList(nn.ModuleDict(dict(w1=nn.Linear(D, H, bias=False), w3=nn.Linear(D, H, bias=False), w2=nn.Linear(H, D, bias=False))) for _ in range(E))
        self.register_buffer("bias", torch.zeros(E)); self.aux = 0.0
    def forward(self, x):
        b, t, d = x.shape; x = x.view(-1, d); s = torch.sigmoid(self.gate(x).float()); _, i = torch.topk(s + self.bias, 2, dim=-1); w = s.gather(1, i)
        w = (w / w.sum(-1, keepdim=True)).to(x.dtype); out = torch.zeros_like(x); counts = torch.bincount(i.flatten(), minlength=E)
        for k, e in enumerate(self.e):
            rows, which = torch.where(i == k)
            if rows.numel() == 0: continue
            h = x[rows]; out.index_add_(0, rows, e["w2"](F.silu(e["w1"](h)) * e["w3"](h)) * w[rows, which, None])
        if self.training: self.bias.add_(torch.sign(counts.float().mean() - counts), alpha=1e-3)
        self.dropped = counts.max(); return out.view(b, t, d)
for kind in (Capacity, Lists):
    block = lambda: nn.ModuleList([nn.LayerNorm(D), nn.MultiheadAttention(D, 4, batch_first=True), nn.LayerNorm(D), kind()])
    net = nn.ModuleDict(dict(e=nn.Embedding(V, D), b=nn.ModuleList(block() for _ in range(3)), o=nn.Linear(D, V, bias=False))).cuda()
    mask = torch.triu(torch.full((T, T), float("-inf"), device="cuda"), 1)
    def forward(x):
        h = net["e"](x)
        for n1, a, n2, m in net["b"]: q = n1(h); h = h + a(q, q, q, attn_mask=mask, need_weights=False)[0]; h = h + m(n2(h))
        return net["o"](h)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for step in range(args.steps):
        x = torch.randint(0, V, (args.batch, T + 1), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16): loss = F.cross_entropy(forward(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()) + 0.01 * sum(b[3].aux for b in net["b"])
        loss.backward(); opt.step(); opt.zero_grad(); print(kind.__name__, loss.item(), [int(b[3].dropped) for b in net["b"]])
    net.eval()
    with torch.no_grad(): print(forward(torch.randint(0, V, (args.batch, T), device="cuda")).argmax(-1).shape)
    mark("evaluated"); del net, opt
