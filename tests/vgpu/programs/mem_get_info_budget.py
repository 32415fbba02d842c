"""A cache sized by what mem_get_info says is free (as inference servers do), then used in blocks."""
import torch
from measure import arguments, mark

args = arguments(batch=4)
model = torch.nn.Linear(4096, 4096).cuda().half()
free, total = torch.cuda.mem_get_info()
assert 0 < free <= total
block = 16 * 2 * 8 * 128 * 2
budget = min(int(free * 0.9) - (1 << 30), 3 << 30)
blocks = budget // (block * 12)
cache = [torch.empty(2, blocks, 16, 8, 128, dtype=torch.float16, device="cuda") for _ in range(12)]
mark("cache", blocks=blocks)
after, _ = torch.cuda.mem_get_info()
print("free fell by MiB", (free - after) >> 20, "of", sum(c.numel() * 2 for c in cache) >> 20)
table = torch.randint(0, blocks, (args.batch, 32), device="cuda")
with torch.no_grad():
    for step in range(args.steps):
        q = model(torch.randn(args.batch, 4096, device="cuda", dtype=torch.float16)).view(args.batch, 32, 1, 128)
        k, v = (cache[0][i][table].flatten(1, 2).transpose(1, 2).repeat_interleave(4, 1) for i in (0, 1))
        print(torch.nn.functional.scaled_dot_product_attention(q, k, v).shape)
mark("attention")
