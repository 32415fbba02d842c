"""Low-precision arithmetic of PyTorch itself: torch._scaled_mm in fp8, torch._int_mm, complex and float64 products, bf16 reductions."""
import torch
from measure import arguments, mark

args = arguments(batch=4096)
x, w = torch.randn(args.batch, 4096, device="cuda"), torch.randn(4096, 4096, device="cuda")
for step in range(args.steps):
    sx, sw = x.abs().max() / 448, w.abs().max() / 448
    y = torch._scaled_mm((x / sx).to(torch.float8_e4m3fn), (w / sw).to(torch.float8_e4m3fn).t(), scale_a=sx, scale_b=sw, out_dtype=torch.bfloat16)
    mark(f"fp8_{step + 1}")
q = torch._int_mm((x * 20).clamp(-127, 127).to(torch.int8), (w * 20).clamp(-127, 127).to(torch.int8))
mark("int8")
z = torch.complex(x[:1024], x[1024:2048]) @ w[:, :512].to(torch.complex64)
d = x[:1024].double() @ w.double()
print(y.shape, q.dtype, z.dtype, d.dtype)
mark("others")
