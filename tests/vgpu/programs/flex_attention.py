"""flex_attention with a sliding-window block mask and a soft cap, compiled, forward and backward."""
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from measure import arguments

args = arguments(batch=16)
flex = torch.compile(flex_attention)
length, heads, d = 1024, 8, 64
qkv, out = nn.Linear(512, 1536).cuda(), nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW([*qkv.parameters(), *out.parameters()], lr=1e-4)
mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < 256), None, None, length, length, device="cuda")
cap = lambda s, b, h, q, k: 20 * torch.tanh(s / 20)
for step in range(args.steps):
    x = torch.randn(args.batch, length, 512, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        q, k, v = (t.view(args.batch, length, heads, d).transpose(1, 2) for t in qkv(x).chunk(3, -1))
        y = out(flex(q, k, v, score_mod=cap, block_mask=mask).transpose(1, 2).flatten(2))
    y.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
