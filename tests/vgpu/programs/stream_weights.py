"""Weights live in pinned memory and visit the GPU layer by layer, the next one ahead on a copy stream (record_stream, as FSDP1; with --events 1 an event and a window, as FSDP2); gradients go home on a third stream."""
import torch, torch.nn.functional as F
from measure import arguments, mark

args = arguments(batch=16, steps=3, events=0, width=1024, layers=12)
D, L, T = args.width, args.layers, 256
shapes = [(3 * D, D), (D, D), (4 * D, D), (D, 4 * D)]
host = [[torch.randn(s).mul_(0.02).bfloat16().pin_memory() for s in shapes] for _ in range(L)]
home = [[torch.empty(s, dtype=torch.bfloat16, pin_memory=True) for s in shapes] for _ in range(L)]
main, get, put = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()


def layer(x, w):
    q, k, v = F.linear(F.layer_norm(x, (D,)), w[0]).unflatten(-1, (3, 16, -1)).permute(2, 0, 3, 1, 4)
    x = x + F.linear(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2), w[1])
    return x + F.linear(F.gelu(F.linear(F.layer_norm(x, (D,)), w[2])), w[3])


class Visitors:
    """Weights that are on the GPU or on their way."""

    def __init__(self): self.here, self.used = {}, []

    def fetch(self, i):
        if not 0 <= i < L or i in self.here: return
        if args.events and len(self.used) > 1:
            event, weights = self.used.pop(0)
            get.wait_event(event)
            del weights
        with torch.cuda.stream(get):
            self.here[i] = [w.to("cuda", non_blocking=True) for w in host[i]], get.record_event()

    def take(self, i):
        weights, event = self.here[i]
        main.wait_event(event)
        return weights

    def leave(self, i):
        weights, _ = self.here.pop(i)
        if args.events: self.used.append((main.record_event(), weights))
        else: [w.record_stream(main) for w in weights]


visitors = Visitors()
for step in range(args.steps):
    x = torch.randn(args.batch, T, D, device="cuda", dtype=torch.bfloat16)
    kept = []
    visitors.fetch(0)
    with torch.no_grad():
        for i in range(L):
            visitors.fetch(i + 1)
            kept.append(x)
            x = layer(x, visitors.take(i))
            visitors.leave(i)
    grad = x.float().pow(2).mean(1, keepdim=True).bfloat16().expand_as(x) * 1e-3
    del x
    mark(f"forward {step}")
    visitors.fetch(L - 1)
    for i in reversed(range(L)):
        visitors.fetch(i - 1)
        a, w = kept.pop().requires_grad_(), [t.detach().requires_grad_() for t in visitors.take(i)]
        with torch.enable_grad(): y = layer(a, w)
        grad, *gw = torch.autograd.grad(y, [a, *w], grad)
        put.wait_stream(main)
        with torch.cuda.stream(put):
            for to, g in zip(home[i], gw): to.copy_(g, non_blocking=True)
        for g in gw: g.record_stream(put)
        del a, w, y, gw, g
        visitors.leave(i)
    del grad
    mark(f"step {step}")
