"""kNN-LM and early exit: a small decoder with a classifier after each layer (deep supervision), keys of all tokens stored in fp16 on the GPU, k nearest by chunked distances merged with the softmax, then tokens that are confident leave early so that the batch shrinks by value; temperature calibrated by LBFGS."""
import torch, torch.nn as nn, torch.nn.functional as F
from measure import arguments, mark
args = arguments(batch=8, steps=3)
D, V, T, L = 256, 3000, 128, 5
class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.p, self.l = nn.Embedding(V, D), nn.Parameter(torch.zeros(T, D)), nn.ModuleList(nn.TransformerEncoderLayer(D, 4, 1024, 0.1, "gelu", batch_first=True, norm_first=True) for _ in range(L))
        self.exits = nn.ModuleList(nn.Sequential(nn.LayerNorm(D), nn.Linear(D, V)) for _ in range(L))
    def forward(self, x):
        h, m = self.e(x) + self.p[:x.shape[1]], nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device); out = []
        for l, e in zip(self.l, self.exits): h = l(h, src_mask=m, is_causal=True); out.append(h)
        return out
model = LM().cuda(); opt = torch.optim.RMSprop(model.parameters(), 1e-4, momentum=0.9, centered=True)
for step in range(args.steps):
    x = torch.randint(0, V, (args.batch, T + 1)).cuda()
    loss = sum(F.cross_entropy(e(h).flatten(0, 1), x[:, 1:].flatten(), label_smoothing=0.05) * (i + 1) / L for i, (h, e) in enumerate(zip(model(x[:, :-1]), model.exits)))
    opt.zero_grad(); loss.backward(); opt.step(); print(loss.item())
mark("trained"); model.eval(); keys, values = torch.empty(20 * args.batch * T, D, dtype=torch.float16, device="cuda"), torch.empty(20 * args.batch * T, dtype=torch.int32, device="cuda")
with torch.inference_mode():
    for i in range(20):
        x = torch.randint(0, V, (args.batch, T + 1)).cuda(); n = args.batch * T; keys[i * n:(i + 1) * n] = model(x[:, :-1])[-1].reshape(-1, D).half()
        values[i * n:(i + 1) * n] = x[:, 1:].reshape(-1).int()
    mark("stored"); x = torch.randint(0, V, (args.batch, T + 1)).cuda(); q = model(x[:, :-1])[-1].reshape(-1, D); best, idx = None, None
    for i, c in enumerate(keys.split(4096)):
        d = -torch.cdist(q, c.float()).pow(2); s, j = d.topk(min(32, d.shape[1])); j = j + i * 4096
        if best is not None: s, k = torch.cat([best, s], 1).topk(32); j = torch.cat([idx, j], 1).gather(1, k)
        best, idx = s, j
    knn = torch.zeros(len(q), V, device="cuda").scatter_add_(1, values[idx].long(), best.softmax(-1))
    p = 0.25 * knn + 0.75 * model.exits[-1](q).softmax(-1)
    print("ppl", torch.exp(-p.gather(1, x[:, 1:].reshape(-1, 1)).clamp(min=1e-9).log().mean()).item()); mark("knn"); del knn, p, best, idx
    h, alive, depth = model.e(x[:, -33:-1]) + model.p[:32], torch.arange(args.batch, device="cuda"), torch.zeros(args.batch, dtype=torch.long, device="cuda")
    for i, (l, e) in enumerate(zip(model.l, model.exits)):
        h = l(h); conf = e(h[:, -1]).softmax(-1).max(-1).values; stay = conf < 0.5; depth[alive] = i
        if not stay.any(): break
        h, alive = h[stay], alive[stay]
    print("depth", depth.float().mean().item())
mark("exits"); logits, y = torch.randn(5000, V, device="cuda"), torch.randint(0, V, (5000,), device="cuda")
temperature = nn.Parameter(torch.ones(1, device="cuda") * 1.5); lbfgs = torch.optim.LBFGS([temperature], lr=0.01, max_iter=8)
def closure(): lbfgs.zero_grad(); l = F.cross_entropy(logits / temperature, y); l.backward(); return l
lbfgs.step(closure); print(temperature.item())
