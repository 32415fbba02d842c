"""Selective activation checkpointing by a policy (products and attention saved), by every second block, and early stop off, beside a hand-written Adam whose state and float32 weights live in pinned host memory, gradients copied out in hooks as they come."""
import functools, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts, set_checkpoint_early_stop
from measure import arguments, mark
args = arguments(batch=4, steps=3)
D, H, L, V, T = 384, 6, 6, 6000, 320
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.qkv, self.o, self.g, self.u, self.d = nn.RMSNorm(D), nn.RMSNorm(D), nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False), nn.Linear(D, 1024,
            bias=False), nn.Linear(D, 1024, bias=False), nn.Linear(1024, D, bias=False)
    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).view(*x.shape[:2], 3, H, D // H).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)); n = self.n2(x)
        return x + self.d(F.silu(self.g(n)) * self.u(n))
save = {torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_flash_attention.default, torch.ops.aten._scaled_dot_product_cudnn_attention.default, torch.ops.aten._scaled_dot_product_efficient_attention.default}
def policy(ctx, op, *a, **k): return CheckpointPolicy.MUST_SAVE if op in save else CheckpointPolicy.PREFER_RECOMPUTE
class CPUAdam:
    def __init__(self, params, lr=1e-3):
        self.params, self.lr, self.t = list(params), lr, 0; pin = lambda p: torch.empty(p.shape, dtype=torch.float32, pin_memory=True)
        self.master, self.m, self.v, self.g = ([pin(p) for p in self.params] for _ in range(4)); self.stream, self.events = torch.cuda.Stream(), []
        for p, w, m, v in zip(self.params, self.master, self.m, self.v): w.copy_(p.data); m.zero_(); v.zero_()
        for i, p in enumerate(self.params): p.register_post_accumulate_grad_hook(functools.partial(self.hook, i))
    def hook(self, i, p):
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream): self.g[i].copy_(p.grad, non_blocking=True)
        p.grad.record_stream(self.stream); p.grad = None
    def step(self):
        self.stream.synchronize(); self.t += 1
        for p, w, m, v, g in zip(self.params, self.master, self.m, self.v, self.g):
            m.lerp_(g, 0.1); v.mul_(0.999).addcmul_(g, g, value=0.001)
            w.addcdiv_(m / (1 - 0.9 ** self.t), (v / (1 - 0.999 ** self.t)).sqrt_().add_(1e-8), value=-self.lr); p.data.copy_(w, non_blocking=True)
def make(): return nn.ModuleDict(dict(e=nn.Embedding(V, D), b=nn.ModuleList(Block() for _ in range(L)), n=nn.RMSNorm(D), o=nn.Linear(D, V, bias=False))).to("cuda", torch.bfloat16)
def run(net, how):
    x = torch.randint(0, V, (args.batch, T + 1), device="cuda"); h = net["e"](x[:, :-1])
    if how == "sequential": h = checkpoint_sequential(net["b"], 3, h, use_reentrant=False)
    else:
        for i, b in enumerate(net["b"]):
            if how == "selective": h = checkpoint(b, h, use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, policy))
            elif how == "second" and i % 2: h = checkpoint(b, h, use_reentrant=False)
            elif how == "nostop":
                with set_checkpoint_early_stop(False): h = checkpoint(b, h, use_reentrant=False)
            else: h = b(h)
    return F.cross_entropy(net["o"](net["n"](h)).float().flatten(0, 1), x[:, 1:].flatten())
net = make(); opt = CPUAdam(net.parameters())
for how in ("selective", "second", "nostop", "sequential", "plain"):
    for _ in range(2): loss = run(net, how); loss.backward(); opt.step(); print(how, loss.item())
    mark(how)
net = make(); opt = torch.optim.AdamW(net.parameters(), 1e-3)
for how in ("selective", "plain", "selective"):
    run(net, how).backward(); opt.step(); opt.zero_grad()
