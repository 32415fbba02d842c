"""Activations offloaded as torchtune's OffloadActivations does: one side stream, a window of copies out, and on the way back record_stream, or (--keep 1) tensors kept until an event of the stream that used them."""
import torch, torch.nn as nn, torch.nn.functional as F
from measure import arguments, mark

args = arguments(batch=4, steps=3, keep=0, width=1024, layers=8)
D, L, T, V = args.width, args.layers, 512, 16000


class OffloadActivations(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self, least=1024, window=5):
        self.s0, self.s1, self.window, self.least = torch.cuda.default_stream(), torch.cuda.Stream(), window, least
        self.tracker, self.number, self.forward_stash, self.backward_stash, self.events, self.first = {}, 0, {}, {}, {}, True
        super().__init__(self.pack, self.unpack)

    def pack(self, x):
        if self.first: self.tracker.clear(); self.backward_stash.clear(); self.events.clear(); self.first = False
        self.number += 1
        if not x.is_cuda or x.numel() * x.element_size() < self.least or isinstance(x, (nn.Parameter, nn.Buffer)):
            self.tracker[self.number] = (x, False)
            return self.number
        for i in [i for i in self.forward_stash if i <= self.number - self.window]:
            self.s0.wait_event(self.forward_stash.pop(i)[1])
        self.s1.wait_stream(self.s0)
        with torch.cuda.stream(self.s1):
            host = torch.empty_like(x, pin_memory=True, device="cpu")
            host.copy_(x, non_blocking=True)
            self.tracker[self.number] = (host, True)
        self.forward_stash[self.number] = (x, self.s1.record_event())
        return self.number

    def unpack(self, i):
        self.forward_stash.clear(); self.first = True
        x, moved = self.tracker.pop(i)
        if not moved: return x
        with torch.cuda.stream(self.s1):
            back = x.to("cuda", non_blocking=True)
            if not args.keep: back.record_stream(self.s0)
        self.s0.wait_stream(self.s1)
        if args.keep:
            self.backward_stash[i] = back
            def done(*_):
                for j in [j for j in self.events if j != i]: self.s1.wait_event(self.events.pop(j)); self.backward_stash.pop(j, None)
                self.events[i] = self.s0.record_event()
            torch._C._current_autograd_node().register_hook(done)
        return back


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.qkv, self.o, self.n2 = nn.RMSNorm(D), nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False), nn.RMSNorm(D)
        self.g, self.u, self.d = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, 3 * D, bias=False), nn.Linear(3 * D, D, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, 16, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        h = self.n2(x)
        return x + self.d(F.silu(self.g(h)) * self.u(h))


with torch.device("cuda"): embed, blocks, out = nn.Embedding(V, D).bfloat16(), nn.Sequential(*(Block() for _ in range(L))).bfloat16(), nn.Linear(D, V, bias=False).bfloat16()
optimizer = torch.optim.AdamW([*embed.parameters(), *blocks.parameters(), *out.parameters()], lr=1e-4, fused=True)
offload = OffloadActivations()
for step in range(args.steps):
    x = torch.randint(0, V, (args.batch, T + 1)).cuda()
    with offload: h = blocks(embed(x[:, :-1]))
    loss = F.cross_entropy(out(h).flatten(0, 1).float(), x[:, 1:].flatten())
    del h
    loss.backward()
    optimizer.step(); optimizer.zero_grad()
