"""VQ-VAE with a codebook by moving averages whose dead codes are replaced from the batch, chosen by value; perplexity printed; a residual quantizer after it; then a small transformer prior on the codes, sampled and decoded."""
import torch, torch.nn as nn, torch.nn.functional as F
from measure import arguments, mark
args = arguments(batch=24, steps=4)
class Quantizer(nn.Module):
    def __init__(self, K, D, decay=0.99):
        super().__init__(); self.K, self.D, self.decay = K, D, decay; e = torch.randn(K, D); self.register_buffer("embed", e)
        self.register_buffer("count", torch.ones(K)); self.register_buffer("mean", e.clone())
        self.register_buffer("inited", torch.zeros(1, dtype=torch.bool))
    def forward(self, z):
        flat = z.permute(0, 2, 3, 1).reshape(-1, self.D)
        if self.training and not self.inited.item(): self.embed.data.copy_(flat[torch.randperm(len(flat), device=flat.device)[:self.K]]); self.mean.copy_(self.embed); self.inited.fill_(True)
        d = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.embed.t() + self.embed.pow(2).sum(1); idx = d.argmin(1)
        hot = F.one_hot(idx, self.K).type(flat.dtype)
        q = F.embedding(idx, self.embed).view(z.shape[0], z.shape[2], z.shape[3], self.D).permute(0, 3, 1, 2)
        if self.training:
            with torch.no_grad():
                n = hot.sum(0); self.count.mul_(self.decay).add_(n, alpha=1 - self.decay)
                self.mean.mul_(self.decay).add_(hot.t() @ flat, alpha=1 - self.decay); total = self.count.sum()
                self.embed.copy_(self.mean / ((self.count + 1e-5) / (total + self.K * 1e-5) * total).unsqueeze(1))
                dead = torch.where(self.count < 0.5)[0]
                if len(dead) > 0: pick = flat[torch.randint(0, len(flat), (len(dead),), device=flat.device)]; self.embed[dead] = pick; self.mean[dead] = pick; self.count[dead] = 1.0
        p = hot.mean(0); return z + (q - z).detach(), F.mse_loss(q.detach(), z), idx.view(z.shape[0], z.shape[2], z.shape[3]), torch.exp(-(p * (p + 1e-10).log()).sum())
class Residual(nn.Module):
    def __init__(self, c): super().__init__(); self.b = nn.Sequential(nn.ReLU(), nn.Conv2d(c, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, c, 1))
    def forward(self, x): return x + self.b(x)
class VQVAE(nn.Module):
    def __init__(self, levels=1):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 4, 2, 1), nn.ReLU(), nn.Conv2d(128, 128, 3, 1, 1), Residual(128), Residual(128), nn.ReLU(), nn.Conv2d(128, 64, 1))
        self.q = nn.ModuleList(Quantizer(512, 64) for _ in range(levels))
        self.dec = nn.Sequential(nn.Conv2d(64, 128, 3, 1, 1), Residual(128), Residual(128), nn.ReLU(), nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1))
    def forward(self, x):
        z = self.enc(x); out, loss, codes = 0, 0, []
        for q in self.q: y, l, i, p = q(z); z, out, loss = z - y.detach(), out + y, loss + l; codes.append(i)
        return self.dec(out), loss, codes, p
for levels in (1, 3):
    model = VQVAE(levels).cuda(); opt = torch.optim.Adam(model.parameters(), 3e-4, amsgrad=True)
    for step in range(args.steps):
        x = torch.rand(args.batch, 3, 64, 64).cuda(); y, commit, codes, perplexity = model(x); loss = F.mse_loss(y, x) / 0.06 + 0.25 * commit
        opt.zero_grad(); loss.backward(); opt.step(); print(f"{loss.item():.3f} perplexity {perplexity.item():.1f}")
    model.eval()
    with torch.no_grad(): print(F.mse_loss(model(torch.rand(2 * args.batch, 3, 64, 64).cuda())[0], torch.rand(2 * args.batch, 3, 64, 64).cuda()).item())
    mark("evaluated")
del opt
prior = nn.ModuleDict(dict(e=nn.Embedding(513, 192), p=nn.Embedding(256, 192), t=nn.TransformerEncoder(nn.TransformerEncoderLayer(192, 6, 768, 0.0, batch_first=True, norm_first=True,
    activation="gelu"), 4, enable_nested_tensor=False), o=nn.Linear(192, 512))).cuda()
opt = torch.optim.AdamW(prior.parameters(), 3e-4)
def logits(c):
    x = prior["e"](c) + prior["p"](torch.arange(c.shape[1], device=c.device))
    return prior["o"](prior["t"](x, mask=nn.Transformer.generate_square_subsequent_mask(c.shape[1], device=c.device), is_causal=True))
for step in range(args.steps):
    with torch.no_grad(): c = model.q[0](model.enc(torch.rand(args.batch, 3, 64, 64).cuda()))[2].flatten(1)
    loss = F.cross_entropy(logits(F.pad(c[:, :-1], (1, 0), value=512)).flatten(0, 1), c.flatten()); opt.zero_grad(); loss.backward(); opt.step(); print(loss.item())
with torch.no_grad():
    c = torch.full((4, 1), 512, device="cuda")
    for _ in range(24): c = torch.cat([c, torch.multinomial(logits(c)[:, -1].softmax(-1), 1)], 1)
    print(c.shape)
mark("sampled")
