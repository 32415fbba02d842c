"""Training programs for measurements of `batchfit.tune`: ten that graphs cannot express, or hardly, and four as other finders meet them.

`PROGRAMS[name]` makes a program on the GPU: what it is called with, what it changes, where to begin, and under which limit. Batches
are made on the GPU, so that no loader is measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

GIB = 1 << 30


@dataclasses.dataclass
class Program:
    step: Callable[[int], None]
    state: list[Any]
    # Where a user would begin: a batch that surely fits.
    batch: int


@dataclasses.dataclass
class Entry:
    build: Callable[[], Program]
    limit: int
    # Models, batches and losses alone, for finders that have their own loop.
    case: Any = None
    # Seconds that a process of its own may take, for programs that have to begin one again and take long to compile.
    seconds: float | None = None


def of(model, optimizers, loss, batch, dtype=None, scaler=None):
    """The usual loop: forward and loss under autocast, backward, the optimizers' steps."""

    def step(b):
        with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            value = loss(b)
        (value if scaler is None else scaler.scale(value)).backward()
        for optimizer in optimizers:
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)

    state = [model, *optimizers] + ([scaler] if scaler is not None else [])
    return Program(step, state, batch)


def vectors(b, width):
    return torch.randn(b, width, device="cuda"), torch.randint(1000, (b,), device="cuda")


def images(b, size=224, classes=1000):
    return torch.randn(b, 3, size, size, device="cuda"), torch.randint(classes, (b,), device="cuda")


def tokens(b, length, vocabulary):
    return torch.randint(vocabulary, (b, length), device="cuda")


# A custom autograd function.


class Swish(torch.autograd.Function):
    """x * sigmoid(x), which keeps x alone and computes the rest again."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        sigmoid = torch.sigmoid(x)
        return gradient * (sigmoid * (1 + x * (1 - sigmoid)))


class SwishMlp(nn.Module):
    def __init__(self, width=4096, depth=6, activation=Swish.apply):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(depth)])
        self.head = nn.Linear(width, 1000)
        self.activation = activation

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = x + self.activation(layer(norm(x)))
        return self.head(x)


def custom_autograd():
    model = SwishMlp().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def loss(b):
        x, y = vectors(b, 4096)
        return F.cross_entropy(model(x), y)

    return of(model, [optimizer], loss, 256)


# A CUDA kernel of one's own, compiled when it is first used.

KERNEL = """
extern "C" __global__ void squared_relu(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float v = x[i] > 0.f ? x[i] : 0.f; y[i] = v * v; }
}
"""


class SquaredRelu(torch.autograd.Function):
    kernel = None

    @staticmethod
    def forward(ctx, x):
        if SquaredRelu.kernel is None:
            SquaredRelu.kernel = torch.cuda._compile_kernel(KERNEL, "squared_relu")
        x = x.contiguous()
        y = torch.empty_like(x)
        blocks = (x.numel() + 255) // 256
        SquaredRelu.kernel(grid=(blocks, 1, 1), block=(256, 1, 1), args=[x, y, x.numel()])
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 * x.clamp(min=0)


def custom_cuda():
    model = SwishMlp(2048, 10, SquaredRelu.apply).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def loss(b):
        x, y = vectors(b, 2048)
        return F.cross_entropy(model(x), y)

    return of(model, [optimizer], loss, 256)


# A small language model, in several clothes.


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self, width=512, depth=8, heads=8, vocabulary=16000, length=256, recompute=False):
        super().__init__()
        self.recompute = recompute
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def compiled():
    model = LanguageModel(depth=4).cuda()
    forward = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return of(model, [optimizer], lambda b: forward(tokens(b, 256, 16000)), 8, torch.bfloat16)


class AdamW8bit(torch.optim.Optimizer):
    """AdamW whose moments are kept in eight bits, with a scale for each block of 256."""

    BLOCK = 256

    def __init__(self, parameters, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(parameters, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @classmethod
    def packed(cls, values):
        flat = values.flatten()
        flat = F.pad(flat, (0, -flat.numel() % cls.BLOCK)).view(-1, cls.BLOCK)
        scales = flat.abs().amax(1, keepdim=True).clamp(min=1e-12)
        return (flat / scales * 127 + 128).round().to(torch.uint8), scales

    @staticmethod
    def unpacked(packed, like):
        codes, scales = packed
        return ((codes.to(torch.float32) - 128) / 127 * scales).flatten()[: like.numel()].view_as(like)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["mean"] = self.packed(torch.zeros_like(p))
                    state["square"] = self.packed(torch.zeros_like(p))
                state["step"] += 1
                mean = self.unpacked(state["mean"], p).lerp_(p.grad, 1 - b1)
                square = self.unpacked(state["square"], p).clamp_(min=0).mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                state["mean"], state["square"] = self.packed(mean), self.packed(square)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.addcdiv_(mean, square.sqrt_().add_(group["eps"]), value=-group["lr"])


def adamw_8bit():
    model = LanguageModel().cuda()
    optimizer = AdamW8bit(model.parameters())
    return of(model, [optimizer], lambda b: model(tokens(b, 256, 16000)), 8, torch.bfloat16)


def lora():
    import peft
    import transformers

    config = transformers.GPT2Config(n_layer=12, n_head=12, n_embd=768, vocab_size=50257, n_positions=512, use_cache=False)
    base = transformers.GPT2LMHeadModel(config)
    adapters = peft.LoraConfig(r=16, lora_alpha=32, target_modules=["c_attn"], lora_dropout=0.05, fan_in_fan_out=True)
    model = peft.get_peft_model(base, adapters).cuda()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def loss(b):
        ids = tokens(b, 512, 50257)
        return model(input_ids=ids, labels=ids).loss

    return of(model, [optimizer], loss, 2, torch.bfloat16)


class Experts(nn.Module):
    """Each token goes to the two experts of eight that the router says: how many each gets, only data can tell."""

    def __init__(self, width=1024, experts=8):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(experts)]
        )

    def forward(self, x):
        shares, chosen = self.router(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == index)
            if rows.numel():
                out = out.index_add(0, rows, expert(x[rows]) * shares[rows, place].unsqueeze(1))
        return out


def experts():
    model = nn.Sequential(Experts(), nn.LayerNorm(1024), Experts(), nn.LayerNorm(1024), nn.Linear(1024, 1000)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss(b):
        x, y = vectors(b, 1024)
        return F.cross_entropy(model(x), y)

    return of(model, [optimizer], loss, 1024)


class Recurrent(nn.Module):
    def __init__(self, width=1024, vocabulary=10000):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        out, _ = self.lstm(self.tokens(ids))
        return F.cross_entropy(self.head(out[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def lstm():
    model = Recurrent().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(b):
        return model(tokens(b, 128, 10000))

    return of(model, [optimizer], loss, 8)


def conv_3d():
    def pair(i, o, stride):
        return nn.Sequential(
            nn.Conv3d(i, o, 3, stride=stride, padding=1, bias=False), nn.BatchNorm3d(o), nn.ReLU(inplace=True),
            nn.Conv3d(o, o, 3, padding=1, bias=False), nn.BatchNorm3d(o), nn.ReLU(inplace=True),
        )

    body = nn.Sequential(pair(3, 32, 1), pair(32, 64, 2), pair(64, 128, 2), pair(128, 256, 2))
    model = nn.Sequential(body, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(256, 400)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")

    def loss(b):
        clips = torch.randn(b, 3, 16, 56, 56, device="cuda")
        return F.cross_entropy(model(clips), torch.randint(400, (b,), device="cuda"))

    return of(model, [optimizer], loss, 4, torch.float16, scaler)


def two_optimizers():
    model = LanguageModel(recompute=True, depth=12).cuda()
    tables = [model.tokens.weight, model.places.weight]
    names = {id(p) for p in tables}
    others = [p for p in model.parameters() if id(p) not in names]
    optimizers = [torch.optim.AdamW(others, lr=1e-4), torch.optim.SGD(tables, lr=0.1, momentum=0.9)]
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100) for optimizer in optimizers]
    average = torch.optim.swa_utils.AveragedModel(model)
    program = of(model, optimizers, lambda b: model(tokens(b, 256, 16000)), 8, torch.bfloat16)
    inner = program.step

    def step(b):
        inner(b)
        average.update_parameters(model)
        for scheduler in schedulers:
            scheduler.step()

    return dataclasses.replace(program, step=step, state=[*program.state, average, *schedulers])


def gan():
    def up(i, o):
        return nn.Sequential(nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(True))

    def down(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, True))

    generator = nn.Sequential(
        nn.ConvTranspose2d(100, 512, 4, 1, 0), nn.ReLU(True), up(512, 256), up(256, 128), up(128, 64),
        nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh(),
    ).cuda()
    judge = nn.Sequential(
        nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2, True), down(64, 128), down(128, 256), down(256, 512),
        nn.Conv2d(512, 1, 4, 1, 0), nn.Flatten(),
    ).cuda()
    of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def step(b):
        real = torch.randn(b, 3, 64, 64, device="cuda")
        ones, zeros = torch.ones(b, 1, device="cuda"), torch.zeros(b, 1, device="cuda")
        fake = generator(torch.randn(b, 100, 1, 1, device="cuda"))
        of_judge.zero_grad()
        loss = F.binary_cross_entropy_with_logits(judge(real), ones)
        loss = loss + F.binary_cross_entropy_with_logits(judge(fake.detach()), zeros)
        loss.backward()
        of_judge.step()
        of_generator.zero_grad()
        F.binary_cross_entropy_with_logits(judge(fake), ones).backward()
        of_generator.step()

    return Program(step, [generator, judge, of_generator, of_judge], 16)


# Four as other finders meet them: model, batch, loss, optimizer, precision.


@dataclasses.dataclass
class Case:
    make: Callable[[], nn.Module]
    # The loss of a model at a batch that is made on the GPU.
    loss: Callable[[nn.Module, int], torch.Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    dtype: torch.dtype
    batch: int

    def build(self):
        model = self.make().cuda()
        scaler = torch.amp.GradScaler("cuda") if self.dtype == torch.float16 else None
        return of(model, [self.optimizer(model.parameters())], lambda b: self.loss(model, b), self.batch, self.dtype, scaler)


def resnet50():
    import torchvision

    return torchvision.models.resnet50(weights=None)


def image_loss(model, b):
    x, y = images(b)
    return F.cross_entropy(model(x), y)


def bert():
    import transformers

    sizes = dict(num_hidden_layers=12, num_attention_heads=12, hidden_size=768, intermediate_size=3072, vocab_size=30522)
    config = transformers.BertConfig(**sizes)
    config.use_cache = False
    return transformers.BertForSequenceClassification(config)


def bert_loss(model, b):
    return model(input_ids=tokens(b, 512, 30522), labels=torch.randint(2, (b,), device="cuda")).loss


def gpt2():
    import transformers

    config = transformers.GPT2Config(n_layer=12, n_head=12, n_embd=768, vocab_size=50257, n_positions=1024)
    config.use_cache = False
    return transformers.GPT2LMHeadModel(config)


def gpt2_loss(model, b):
    ids = tokens(b, 1024, 50257)
    return model(input_ids=ids, labels=ids).loss


class DoubleConv(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(
            nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """Four levels, transposed convolutions, skips that are concatenated."""

    def __init__(self, classes=21, base=64):
        super().__init__()
        c = [base * 2**i for i in range(5)]
        self.inc = DoubleConv(3, c[0])
        self.down = nn.ModuleList([DoubleConv(c[i], c[i + 1]) for i in range(4)])
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList([nn.ConvTranspose2d(c[i + 1], c[i], 2, stride=2) for i in reversed(range(4))])
        self.dec = nn.ModuleList([DoubleConv(c[i + 1], c[i]) for i in reversed(range(4))])
        self.out = nn.Conv2d(c[0], classes, 1)

    def forward(self, x):
        skips = [self.inc(x)]
        for level in self.down:
            skips.append(level(self.pool(skips[-1])))
        x = skips.pop()
        for up, level in zip(self.up, self.dec):
            x = level(torch.cat([skips.pop(), up(x)], 1))
        return self.out(x)


def unet_loss(model, b):
    x, y = torch.randn(b, 3, 256, 256, device="cuda"), torch.randint(21, (b, 256, 256), device="cuda")
    return F.cross_entropy(model(x), y)


CASES = {
    "resnet50": Case(resnet50, image_loss, lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9), torch.float16, 8),
    "bert": Case(bert, bert_loss, lambda p: torch.optim.AdamW(p, lr=1e-5), torch.float16, 2),
    "gpt2": Case(gpt2, gpt2_loss, lambda p: torch.optim.AdamW(p, lr=1e-5), torch.bfloat16, 1),
    "unet": Case(UNet, unet_loss, lambda p: torch.optim.Adam(p, lr=1e-5), torch.bfloat16, 2),
}

PROGRAMS = {
    "custom_autograd": Entry(custom_autograd, 8 * GIB),
    "custom_cuda": Entry(custom_cuda, 8 * GIB),
    "compiled": Entry(compiled, 12 * GIB, seconds=180),
    "adamw_8bit": Entry(adamw_8bit, 12 * GIB),
    "lora": Entry(lora, 16 * GIB),
    "experts": Entry(experts, 8 * GIB),
    "lstm": Entry(lstm, 12 * GIB),
    "conv_3d": Entry(conv_3d, 12 * GIB),
    "two_optimizers": Entry(two_optimizers, 8 * GIB),
    "gan": Entry(gan, 8 * GIB),
    "resnet50": Entry(CASES["resnet50"].build, 12 * GIB, CASES["resnet50"]),
    "bert": Entry(CASES["bert"].build, 12 * GIB, CASES["bert"]),
    "gpt2": Entry(CASES["gpt2"].build, 16 * GIB, CASES["gpt2"]),
    "unet": Entry(CASES["unet"].build, 16 * GIB, CASES["unet"]),
}
