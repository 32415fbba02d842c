"""LLaDA: a masked diffusion language model over packed documents (document mask by FlexAttention compiled), a student distilled from a teacher with both under torch.compile, Liger-like fused linear cross entropy as an autograd Function in chunks, Muon for matrices and fused AdamW for the rest; semi-autoregressive decoding with low-confidence remasking."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from measure import arguments, mark

args = arguments(batch=4, steps=3)
device = "cuda" if torch.cuda.is_available() else "cpu"
V, MASK, T, H = 10000, 9999, 512, 8
attend = torch.compile(flex_attention) if device == "cuda" else flex_attention


class FusedCE(torch.autograd.Function):
    """The loss over the vocabulary in chunks of rows; the gradients are made in the forward pass."""

    @staticmethod
    def forward(ctx, h, w, y, scale):
        grad_h, grad_w, loss = torch.empty_like(h), torch.zeros_like(w, dtype=torch.float32), h.new_zeros((), dtype=torch.float32)
        for a in range(0, len(h), 512):
            part = h[a:a + 512]
            logits = (part @ w.t()).float()
            p = logits.softmax(-1)
            s = scale[a:a + 512]
            loss += ((logits.logsumexp(-1) - logits.gather(1, y[a:a + 512, None]).squeeze(1)) * s).sum()
            p.scatter_add_(1, y[a:a + 512, None], torch.full_like(s[:, None], -1.0))
            p = (p * s[:, None]).to(h.dtype)
            grad_h[a:a + 512] = p @ w
            grad_w.addmm_(p.t().float(), part.float())
        ctx.save_for_backward(grad_h, grad_w.to(w.dtype))
        return loss

    @staticmethod
    def backward(ctx, g):
        h, w = ctx.saved_tensors
        return h * g, w * g, None, None


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2, self.qkv, self.o, self.gu, self.d = nn.RMSNorm(d), nn.RMSNorm(d), nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False), nn.Linear(d, 6 * d, bias=False), nn.Linear(3 * d, d, bias=False)

    def forward(self, x, mask):
        q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
        a = attend(q, k, v, block_mask=mask) if mask is not None else F.scaled_dot_product_attention(q, k, v)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        g, u = self.gu(self.n2(x)).chunk(2, -1)
        return x + self.d(F.silu(g) * u)


class LM(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.e, self.p, self.b, self.n, self.o = nn.Embedding(V, d), nn.Embedding(T, d), nn.ModuleList(Block(d) for _ in range(n)), nn.RMSNorm(d), nn.Linear(d, V, bias=False)

    def forward(self, x, mask=None):
        h = self.e(x) + self.p.weight[: x.shape[1]]
        for b in self.b: h = b(h, mask)
        return self.n(h)


def newton(g, steps=5):
    x = g.bfloat16() / (g.norm() + 1e-7)
    if g.size(0) > g.size(1): x = x.T
    for _ in range(steps): a = x @ x.T; x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x.T if g.size(0) > g.size(1) else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02): super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p.grad))
                m.lerp_(p.grad, 0.05)
                p.add_(newton(p.grad.lerp(m, 0.95)).to(p.dtype), alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)


def corrupt(x):
    t = torch.rand(len(x), 1, device=device).clamp(min=1e-3)
    hide = torch.rand(x.shape, device=device) < t
    return x.masked_fill(hide, MASK), (hide / t).float()


model = LM(512, 6).to(device)
matrices = [p for b in model.b for p in b.parameters() if p.ndim == 2]
rest = [p for n, p in model.named_parameters() if p.ndim != 2 or not n.startswith("b.")]
optimizers = [Muon(matrices), torch.optim.AdamW(rest, 3e-4, betas=(0.8, 0.95), fused=device == "cuda")]
for step in range(args.steps):
    x = torch.randint(0, MASK, (args.batch, T), device=device)
    document = torch.randint(0, 40, (args.batch, T), device=device).eq(0).cumsum(1)
    mask = create_block_mask(lambda b, h, q, k: document[b, q] == document[b, k], args.batch, None, T, T, device=device)
    noisy, scale = corrupt(x)
    with torch.autocast(device, dtype=torch.bfloat16): h = model(noisy, mask)
    loss = FusedCE.apply(h.flatten(0, 1).bfloat16(), model.o.weight.bfloat16(), x.flatten(), scale.flatten()) / x.numel()
    loss.backward()
    for o in optimizers: o.step(); o.zero_grad()
    print(step, loss.item())
mark("pretrained")
teacher = torch.compile(model.eval().requires_grad_(False).bfloat16())
student = LM(256, 3).to(device)
compiled = torch.compile(student)
optimizer = torch.optim.AdamW(student.parameters(), 1e-3, fused=device == "cuda")
for step in range(args.steps):
    x = torch.randint(0, MASK, (args.batch, T), device=device)
    noisy, scale = corrupt(x)
    with torch.no_grad(): t = model.o(teacher(noisy)).float()
    with torch.autocast(device, dtype=torch.bfloat16): s = student.o(compiled(noisy))
    each = F.kl_div(F.log_softmax(s.float(), -1), F.log_softmax(t, -1), reduction="none", log_target=True).sum(-1)
    loss = (each * scale).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimizer.step(); optimizer.zero_grad()
    print("distill", step, loss.item())
mark("distilled")
student.eval()
with torch.inference_mode():
    x = torch.full((args.batch, 128), MASK, device=device)
    x[:, :32] = torch.randint(0, MASK, (args.batch, 32), device=device)
    for block in range(32, 128, 32):
        for step in range(8):
            hidden = x == MASK
            p = student.o(student(x)).float().softmax(-1)
            confidence, token = p.max(-1)
            confidence = confidence.masked_fill(~hidden, -1)
            confidence[:, block + 32:] = -1
            index = confidence.topk(4, -1).indices
            x = x.scatter(1, index, token.gather(1, index))
    print(x.shape)
mark("decoded")
