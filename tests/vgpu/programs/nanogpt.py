"""A GPT written out: gradient accumulation, decayed and plain parameter groups, bf16 autocast, then sampling token by token."""
import torch
from torch import nn
from torch.nn import functional as F
from measure import arguments, mark


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.ln1, self.ln2 = heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj, self.fc, self.out, self.drop = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.Dropout(0.1)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (i.view(b, t, self.heads, -1).transpose(1, 2) for i in self.qkv(self.ln1(x)).split(d, 2))
        x = x + self.drop(self.proj(F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0, is_causal=True).transpose(1, 2).reshape(b, t, d)))
        return x + self.drop(self.out(F.gelu(self.fc(self.ln2(x)))))


class GPT(nn.Module):
    def __init__(self, vocab=50304, d=512, layers=8, heads=8, length=512):
        super().__init__()
        self.tok, self.pos, self.blocks, self.ln = nn.Embedding(vocab, d), nn.Embedding(length, d), nn.Sequential(*(Block(d, heads) for _ in range(layers))), nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids, targets=None):
        x = self.ln(self.blocks(self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))))
        if targets is None: return self.head(x[:, [-1]])
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


args = arguments(batch=6)
model = GPT().to("cuda")
decay = [p for p in model.parameters() if p.dim() >= 2]
plain = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=6e-4, betas=(0.9, 0.95), fused=True)
data = torch.randint(0, 50257, (200000,))
for step in range(args.steps):
    for micro in range(2):
        at = torch.randint(len(data) - 513, (args.batch,))
        x, y = (torch.stack([data[i + s:i + s + 512] for i in at]).pin_memory().to("cuda", non_blocking=True) for s in (0, 1))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x, y) / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
model.eval()
ids = torch.zeros(1, 1, dtype=torch.long, device="cuda")
with torch.no_grad():
    for _ in range(20):
        logits = model(ids)[:, -1] / 0.8
        v, _ = torch.topk(logits, 200)
        logits[logits < v[:, [-1]]] = -float("inf")
        ids = torch.cat([ids, torch.multinomial(F.softmax(logits, -1), 1)], 1)
print(ids.tolist()[0][:5])
mark("sample")
