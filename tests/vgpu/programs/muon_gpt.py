"""Muon written out (Newton-Schulz in bf16) for matrices, AdamW for the rest of a small GPT."""
import torch
from torch import nn
from torch.nn import functional as F
from measure import arguments


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95): super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None: continue
                state = self.state[p]
                if not state: state["m"] = torch.zeros_like(p)
                state["m"].lerp_(p.grad, 1 - group["momentum"])
                x = p.grad.lerp(state["m"], group["momentum"]).bfloat16()
                tall = x.size(0) > x.size(1)
                if tall: x = x.T
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
                if tall: x = x.T
                p.add_(x.to(p), alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)


args = arguments(batch=8)
embed, blocks, head = nn.Embedding(32000, 768).cuda(), nn.ModuleList(nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True, dropout=0.0, bias=False) for _ in range(6)).cuda(), nn.Linear(768, 32000, bias=False).cuda()
matrices = [p for p in blocks.parameters() if p.ndim == 2]
rest = [p for p in blocks.parameters() if p.ndim < 2] + [*embed.parameters(), *head.parameters()]
optimizers = [Muon(matrices), torch.optim.AdamW(rest, lr=3e-4, fused=True)]
mask = nn.Transformer.generate_square_subsequent_mask(512, device="cuda")
for step in range(args.steps):
    ids = torch.randint(0, 32000, (args.batch, 512), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        x = embed(ids)
        for b in blocks: x = b(x, src_mask=mask, is_causal=True)
        loss = F.cross_entropy(head(x[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    for o in optimizers: o.step(); o.zero_grad(set_to_none=True)
