"""Memory tricks written by hand: a loader thread that copies the next batch on its own CUDA stream (record_stream), activations offloaded by saved_tensors_hooks on two streams with a window, optimizer state in pinned memory fetched for each parameter group, gradients accumulated in bf16 and reduced in float32, blocks whose weights are streamed to the GPU for inference."""
import queue, threading, torch, torch.nn as nn, torch.nn.functional as F
from measure import arguments, mark

args = arguments(batch=8, steps=3)
device = "cuda" if torch.cuda.is_available() else "cpu"
cuda = device == "cuda"
D, L, T, V = 512, 8, 512, 8000


class Prefetch:
    def __init__(self, batches):
        self.queue, self.stream = queue.Queue(2), torch.cuda.Stream() if cuda else None
        threading.Thread(target=self.fill, args=(batches,), daemon=True).start()

    def fill(self, batches):
        for b in batches: self.queue.put(b.pin_memory() if cuda else b)
        self.queue.put(None)

    def ahead(self):
        b = self.queue.get()
        if b is not None and cuda:
            with torch.cuda.stream(self.stream): b = b.to(device, non_blocking=True)
        return b

    def __iter__(self):
        b = self.ahead()
        while b is not None:
            if cuda: torch.cuda.current_stream().wait_stream(self.stream); b.record_stream(torch.cuda.current_stream())
            following = self.ahead()
            yield b
            b = following


class Offload(torch.autograd.graph.saved_tensors_hooks):
    """Large activations go to pinned memory on one stream and come back on another."""

    def __init__(self, least=1 << 20):
        self.out, self.back, self.kept, self.least = (torch.cuda.Stream(), torch.cuda.Stream(), [], least) if cuda else (None, None, [], least)
        super().__init__(self.pack, self.unpack)

    def pack(self, x):
        if not cuda or x.numel() * x.element_size() < self.least or isinstance(x, nn.Parameter): return x
        self.out.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.out):
            host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
            host.copy_(x, non_blocking=True)
        done = torch.cuda.Event(); done.record(self.out)
        self.kept.append((done, x))
        if len(self.kept) > 6:
            event, old = self.kept.pop(0)
            torch.cuda.current_stream().wait_event(event)
            del old
        return host, done

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor): return packed
        self.kept.clear()
        host, done = packed
        with torch.cuda.stream(self.back):
            self.back.wait_event(done)
            x = host.to(device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self.back)
        x.record_stream(torch.cuda.current_stream())
        return x


class HostAdam:
    """Moments live in pinned memory; each group of parameters fetches its own, and sends them back."""

    def __init__(self, groups, lr=1e-3):
        self.groups, self.lr, self.t = [list(g) for g in groups], lr, 0
        pin = lambda p: torch.zeros(p.numel(), pin_memory=cuda)
        self.state = [[(pin(p), pin(p)) for p in g] for g in self.groups]

    @torch.no_grad()
    def step(self):
        self.t += 1
        for group, state in zip(self.groups, self.state):
            m = [a.to(device, non_blocking=True).view_as(p) for (a, _), p in zip(state, group)]
            v = [b.to(device, non_blocking=True).view_as(p) for (_, b), p in zip(state, group)]
            g = [p.grad.float() for p in group]
            torch._foreach_lerp_(m, g, 0.1)
            torch._foreach_mul_(v, 0.99); torch._foreach_addcmul_(v, g, g, 0.01)
            d = torch._foreach_sqrt(v); torch._foreach_div_(d, (1 - 0.99 ** self.t) ** 0.5); torch._foreach_add_(d, 1e-8)
            torch._foreach_addcdiv_([p.data for p in group], m, d, -self.lr / (1 - 0.9 ** self.t))
            for (a, b), x, y in zip(state, m, v): a.copy_(x.flatten(), non_blocking=True); b.copy_(y.flatten(), non_blocking=True)
            for p in group: p.grad = None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.qkv, self.o, self.n2, self.u, self.d = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D), nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.d(F.gelu(self.u(self.n2(x))))


embed, blocks, out = nn.Embedding(V, D).to(device), nn.ModuleList(Block() for _ in range(L)).to(device), nn.Linear(D, V).to(device)
optimizer = HostAdam([embed.parameters(), *(b.parameters() for b in blocks), out.parameters()])
data = [torch.randint(0, V, (args.batch, T + 1)) for _ in range(2 * args.steps)]


def loss_of(x):
    h = embed(x[:, :-1])
    for b in blocks: h = b(h)
    return F.cross_entropy(out(h).flatten(0, 1), x[:, 1:].flatten())


for how in ("kept", "offloaded"):
    for i, x in enumerate(Prefetch(data)):
        with torch.autocast(device, dtype=torch.bfloat16):
            if how == "offloaded":
                with Offload(): loss = loss_of(x)
            else: loss = loss_of(x)
        loss.backward()
        if i % 2: optimizer.step(); mark(f"{how} {i}")
    print(how, loss.item())
blocks = blocks.cpu().to(torch.bfloat16)
if cuda: torch.cuda.empty_cache(); [setattr(p, "data", p.data.pin_memory()) for p in blocks.parameters()]
mark("moved")
with torch.inference_mode():
    slots = [Block().to(device, torch.bfloat16) for _ in range(2)]
    copy = torch.cuda.Stream() if cuda else None
    ready = [torch.cuda.Event() for _ in slots] if cuda else None

    def fetch(i):
        if not cuda: return slots[i % 2].load_state_dict(blocks[i].state_dict())
        copy.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(copy):
            for a, b in zip(slots[i % 2].parameters(), blocks[i].parameters()): a.copy_(b, non_blocking=True)
            ready[i % 2].record(copy)

    h = embed(data[0][:, :-1].to(device)).bfloat16()
    fetch(0)
    for i in range(L):
        if i + 1 < L: fetch(i + 1)
        if cuda: torch.cuda.current_stream().wait_event(ready[i % 2])
        h = slots[i % 2](h)
    print(h.float().norm().item())
mark("streamed")
