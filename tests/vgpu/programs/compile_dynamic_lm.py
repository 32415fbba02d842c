"""torch.compile over changing lengths: automatic dynamic shapes and maybe_mark_dynamic, a causal mask made inside, checkpointing compiled, the optimizer's step compiled with a learning rate as a tensor, evaluation under inference_mode; bf16 autocast."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from measure import arguments, mark

args = arguments(batch=8, steps=5)


class Block(nn.Module):
    def __init__(self, d=512, h=8):
        super().__init__()
        self.h, self.n1, self.n2, self.qkv, self.o, self.gate, self.up, self.down = h, nn.RMSNorm(d), nn.RMSNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 1408), nn.Linear(d, 1408), nn.Linear(1408, d)
    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.n1(x)).view(*x.shape[:2], 3, self.h, -1).permute(2, 0, 3, 1, 4)
        turn = lambda t: t * cos + torch.cat((-t[..., 32:], t[..., :32]), -1) * sin
        x = x + self.o(F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True).transpose(1, 2).flatten(2))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers, self.norm = nn.Embedding(8000, 512), nn.ModuleList(Block() for _ in range(4)), nn.RMSNorm(512)
    def forward(self, ids, labels=None):
        x = self.embed(ids)
        angle = torch.arange(ids.shape[1], device=x.device)[:, None] / 10000 ** (torch.arange(0, 64, 2, device=x.device) / 64)
        angle = torch.cat((angle, angle), -1)
        for i, layer in enumerate(self.layers): x = checkpoint(layer, x, angle.cos().to(x.dtype), angle.sin().to(x.dtype), use_reentrant=False) if i % 2 and self.training else layer(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype))
        logits = F.linear(self.norm(x), self.embed.weight)
        return logits if labels is None else F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100)


model = LM().cuda()
fast = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(3e-4, device="cuda"), capturable=True)
stepper = torch.compile(lambda: optimizer.step(), fullgraph=False)
for step, t in zip(range(args.steps), (256, 320, 448, 192, 512, 384)):
    ids = torch.randint(0, 8000, (args.batch, t), device="cuda")
    if step == 0: torch._dynamo.maybe_mark_dynamic(ids, 1)
    with torch.autocast("cuda", torch.bfloat16): loss = fast(ids, ids.roll(-1, 1))
    loss.backward()
    stepper(); optimizer.zero_grad()
    mark(f"length{t}")
model.eval()
with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
    for t in (300, 600): print(fast(torch.randint(0, 8000, (args.batch, t), device="cuda")).shape)
mark("evaluation")
