"""xformers: memory_efficient_attention with a block-diagonal mask over packed sequences, forward and backward."""
import torch
import xformers.ops as xops
from torch import nn
from xformers.ops.fmha.attn_bias import BlockDiagonalMask
from measure import arguments

args = arguments(batch=32)
qkv, out = nn.Linear(1024, 3072).cuda().half(), nn.Linear(1024, 1024).cuda().half()
optimizer = torch.optim.SGD([*qkv.parameters(), *out.parameters()], lr=1e-4)
for step in range(args.steps):
    lengths = torch.randint(100, 600, (args.batch,)).tolist()
    x = torch.randn(1, sum(lengths), 1024, device="cuda", dtype=torch.float16)
    q, k, v = (t.view(1, -1, 16, 64) for t in qkv(x).chunk(3, -1))
    y = out(xops.memory_efficient_attention(q, k, v, attn_bias=BlockDiagonalMask.from_seqlens(lengths)).flatten(2))
    y.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
