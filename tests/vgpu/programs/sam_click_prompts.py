"""A Segment-Anything-like trainer: the image encoded once, points and boxes as prompts by random Fourier features, a two-way decoder with three masks of which the best by predicted overlap is trained, further clicks taken from the regions of error (nonzero of masks), encoder's last blocks unfrozen."""
import torch, torch.nn as nn, torch.nn.functional as F, timm
from measure import arguments, mark
args = arguments(batch=2, steps=3)
D, S, P = 192, 224, 14
class Prompt(nn.Module):
    def __init__(self):
        super().__init__(); self.register_buffer("g", torch.randn(2, D // 2)); self.kind = nn.Embedding(4, D)
        self.mask = nn.Sequential(nn.Conv2d(1, 16, 2, 2), nn.GELU(), nn.Conv2d(16, 32, 2, 2), nn.GELU(), nn.Conv2d(32, D, 1))
        self.none = nn.Embedding(1, D)
    def pe(self, c): c = 2 * torch.pi * ((2 * c - 1) @ self.g); return torch.cat([c.sin(), c.cos()], -1)
    def grid(self): y = (torch.arange(P, device=self.g.device) + 0.5) / P; return self.pe(torch.stack(torch.meshgrid(y, y, indexing="ij"), -1)).permute(2, 0, 1)[None]
    def forward(self, points, labels, box, mask):
        out = []
        if points is not None: out.append(self.pe(points / S) + self.kind(labels))
        if box is not None: out.append(self.pe(box.view(-1, 2, 2) / S) + self.kind.weight[2:])
        return torch.cat(out, 1), (self.mask(mask) if mask is not None else self.none.weight.view(1, D, 1, 1))
class TwoWay(nn.Module):
    def __init__(self):
        super().__init__(); self.s, self.ti, self.it = (nn.MultiheadAttention(D, 6, batch_first=True) for _ in range(3))
        self.m, self.n = nn.Sequential(nn.Linear(D, 768), nn.ReLU(), nn.Linear(768, D)), nn.ModuleList(nn.LayerNorm(D) for _ in range(4))
    def forward(self, q, k, qp, kp):
        q = self.n[0](q + self.s(q + qp, q + qp, q, need_weights=False)[0]); q = self.n[1](q + self.ti(q + qp, k + kp, k, need_weights=False)[0])
        q = self.n[2](q + self.m(q))
        return q, self.n[3](k + self.it(k + kp, q + qp, q, need_weights=False)[0])
class Decoder(nn.Module):
    def __init__(self):
        super().__init__(); self.tok, self.l = nn.Embedding(4, D), nn.ModuleList(TwoWay() for _ in range(2))
        self.up = nn.Sequential(nn.ConvTranspose2d(D, 64, 2, 2), nn.GroupNorm(1, 64), nn.GELU(), nn.ConvTranspose2d(64, 32, 2, 2), nn.GELU())
        self.h, self.iou = nn.ModuleList(nn.Linear(D, 32) for _ in range(3)), nn.Linear(D, 3)
    def forward(self, image, pe, sparse, dense):
        q = torch.cat([self.tok.weight.expand(len(sparse), -1, -1), sparse], 1)
        k = torch.repeat_interleave(image, len(sparse) // len(image), 0) + dense
        k, kp, q0 = k.flatten(2).transpose(1, 2), pe.expand(len(sparse), -1, -1, -1).flatten(2).transpose(1, 2), q
        for l in self.l: q, k = l(q, k, q0, kp)
        f = self.up(k.transpose(1, 2).reshape(-1, D, P, P)); return torch.einsum("bkc,bchw->bkhw", torch.stack([h(q[:, 1 + i]) for i, h in enumerate(self.h)], 1), f), self.iou(q[:, 0])
encoder = timm.create_model("vit_small_patch16_224", img_size=S, embed_dim=D, num_heads=6, class_token=False, global_pool="", num_classes=0, depth=6).cuda()
encoder.requires_grad_(False); [b.requires_grad_(True) for b in encoder.blocks[-2:]]
prompt, decoder = Prompt().cuda(), Decoder().cuda(); params = [p for m in (encoder, prompt, decoder) for p in m.parameters() if p.requires_grad]
opt = torch.optim.AdamW(params, 1e-4); objects = 5
def clicks(pred, truth):
    points, labels = [], []
    for p, t in zip(pred[:, 0] > 0, truth[:, 0] > 0.5):
        wrong = p ^ t; ys, xs = torch.nonzero(wrong, as_tuple=True)
        if len(ys) == 0: points.append(torch.tensor([S / 2, S / 2], device="cuda")); labels.append(torch.tensor(1, device="cuda")); continue
        i = torch.randint(len(ys), (1,)).item(); points.append(torch.stack([xs[i], ys[i]]).float() * 4); labels.append(t[ys[i], xs[i]].long())
    return torch.stack(points)[:, None], torch.stack(labels)[:, None]
def dice(z, t): p = z.sigmoid().flatten(2); t = t.flatten(2); return 1 - (2 * (p * t).sum(-1) + 1) / (p.sum(-1) + t.sum(-1) + 1)
def masks(n):
    yy, xx = torch.meshgrid(torch.arange(56), torch.arange(56), indexing="ij"); c, r = torch.randint(10, 46, (n, 2)), torch.randint(5, 12, (n,))
    return (((yy - c[:, :1, None]) ** 2 + (xx - c[:, 1:, None]) ** 2) < r.view(-1, 1, 1) ** 2).float()[:, None].cuda()
for step in range(args.steps):
    image, truth = torch.randn(args.batch, 3, S, S, device="cuda"), masks(args.batch * objects)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        f = encoder(image).transpose(1, 2).reshape(-1, D, P, P)
        box = torch.stack([torch.cat([t[0].nonzero().flip(1).amin(0), t[0].nonzero().flip(1).amax(0)]) for t in truth]).float() * 4
        points = labels = mask = None; loss = 0
        for it in range(4):
            low, iou = decoder(f, prompt.grid(), *prompt(points, labels, box if it == 0 or step % 2 else None, mask)); t = truth.expand(-1, 3, -1, -1)
            l = 20 * F.binary_cross_entropy_with_logits(low, t, reduction="none").flatten(2).mean(-1) + dice(low, t); best = l.argmin(1)
            i = torch.arange(len(l), device="cuda"); loss = loss + l[i, best].mean()
            with torch.no_grad(): inter, union = ((low > 0) & (t > 0)).flatten(2).sum(-1), ((low > 0) | (t > 0)).flatten(2).sum(-1)
            loss = loss + F.mse_loss(iou, (inter / union.clamp(min=1)).to(iou.dtype)); mask = low[i, best][:, None].detach().float()
            p, q = clicks(mask, truth); points, labels = (p, q) if points is None else (torch.cat([points, p], 1), torch.cat([labels, q], 1))
    loss.backward(); torch.nn.utils.clip_grad_norm_(params, 1.0); opt.step(); opt.zero_grad(); print(loss.item())
with torch.no_grad():
    f = encoder(torch.randn(1, 3, S, S, device="cuda")).transpose(1, 2).reshape(-1, D, P, P)
    g = torch.stack(torch.meshgrid(torch.arange(8), torch.arange(8), indexing="xy"), -1).view(-1, 1, 2).cuda() * 28.0 + 14
    low, iou = decoder(f, prompt.grid(), *prompt(g, torch.ones(64, 1, dtype=torch.long, device="cuda"), None, None)); keep = iou.flatten() > 0.0
    m = F.interpolate(low, (S, S), mode="bilinear").flatten(0, 1)[keep] > 0; print(m.sum((1, 2)).cpu().shape)
mark("everything")
