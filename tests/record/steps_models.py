"""The models of `steps.py`: families in which rules were once wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Model:
    build: Callable[[], nn.Module]
    batch: list[str]
    loss: object = "mse"
    precisions: tuple[str, ...] = ("fp32",)
    # Autocast over parameters stored in half precision: (autocast, stored).
    over_half: tuple[tuple[str, str], ...] = ()
    batches: tuple[int, ...] = (4,)
    optimizers: tuple[str, ...] = ("sgd",)
    accumulations: tuple[int, ...] = (1,)
    # Compute capability: cuDNN's attention, which 9.0 would run in half precision, does not start on a stub.
    compute: tuple[int, int] = (9, 0)
    # The model of a request that is the same, in the place of an exported graph.
    request: dict | None = None

    def rows(self):
        kinds = [(precision, "") for precision in self.precisions] + list(self.over_half)
        for precision, stored in kinds:
            for batch in self.batches:
                for optimizer in self.optimizers:
                    for accumulation in self.accumulations:
                        yield precision, batch, stored, optimizer, accumulation


def chain(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(layer() for layer in layers))


class Conversions(nn.Module):
    """Converts to the dtypes of parameters and of activations, which differ under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 8)
        self.norm = nn.LayerNorm(32)

    @staticmethod
    def _as(x, dtype):
        if x.dtype == dtype:
            return x
        return x.to(dtype)

    def forward(self, x):
        hidden = self.first(x)
        dtype = hidden.dtype
        normed = self.norm(self._as(hidden, self.first.weight.dtype))
        back = normed.to(dtype) * normed.type_as(hidden)
        if back.dtype != self.second.weight.dtype:
            back = back.to(self.second.weight.dtype)
        gate = self.second(back * 2.0)
        residual = back.to(dtype=gate.dtype) + gate
        return self.third(residual.to(self.norm.weight.dtype).exp().to(residual))


# Message passing.


class GatherAdd(nn.Module):
    """Features of the nodes that edges leave, through a linear, added up at the nodes that they reach."""

    def __init__(self, width: int, form: str) -> None:
        super().__init__()
        self.linear, self.form = nn.Linear(width, width), form

    def forward(self, x, source, target):
        if self.form == "rows":
            message = self.linear(x[source])
            return x + torch.zeros_like(x).index_add(0, target, message)
        if self.form == "select":
            message = F.relu(self.linear(x.index_select(0, source)))
            return torch.zeros_like(x).index_add_(0, target, message)
        if self.form == "inner":
            message = self.linear(x[:, source])
            return F.relu(torch.zeros_like(x).index_add(1, target, message))
        if self.form == "inner_select":
            message = self.linear(x.index_select(1, source))
            return x.index_add(1, target, message)
        if self.form == "scatter":
            message = self.linear(x[source])
            return F.relu(torch.zeros_like(x).scatter_add(0, target[:, None].expand_as(message), message))
        if self.form == "gather":
            message = self.linear(x.gather(0, source[:, None].expand(-1, x.shape[1])))
            return torch.zeros_like(x).scatter_add_(0, target[:, None].expand_as(message), message)
        if self.form == "put":
            message = self.linear(x[source])
            return F.relu(torch.zeros_like(x).index_put((target,), message, accumulate=True))
        if self.form == "put_":
            message = self.linear(x[source])
            out = torch.zeros_like(x)
            out.index_put_((target,), message, accumulate=True)
            return F.relu(out)
        if self.form == "mean":
            message = self.linear(torch.cat([x[source], x[target]], -1)[:, : x.shape[1]])
            ones = torch.ones(target.shape[0], device=x.device)
            count = torch.zeros(x.shape[0], device=x.device).index_add(0, target, ones)
            total = message.new_zeros(x.shape).index_add(0, target, message)
            return F.relu(total / count.clamp(min=1)[:, None])
        if self.form == "typed":  # zeros of the message's own type, whatever that is
            message = self.linear(x[source])
            total = torch.zeros(x.shape, dtype=message.dtype, device=x.device)
            return F.relu(total.index_add(0, target, message))
        if self.form == "overwrite":
            message = self.linear(x[source])
            return F.relu(x.index_put((target,), message))
        if self.form == "scatter_src":
            message = self.linear(x[source])
            return F.relu(x.scatter(0, target[:, None].expand_as(message), message))
        raise ValueError(self.form)


class Passing(nn.Module):
    def __init__(self, form: str, edges: str, layers: int = 3, inside: int = 16, width: int = 32) -> None:
        super().__init__()
        self.edges = edges
        self.first = nn.Linear(inside, width)
        self.layers = nn.ModuleList(GatherAdd(width, form) for _ in range(layers))
        self.last = nn.Linear(width, 1)

    def forward(self, x, edges):
        if self.edges == "pairs":  # [B, 2]
            source, target = edges[:, 0], edges[:, 1]
        elif self.edges == "fixed":  # [2, E]
            source, target = edges[0], edges[1]
        elif self.edges == "neighbours":  # [B, K]
            source = edges.reshape(-1)
            target = torch.arange(x.shape[0], device=x.device).repeat_interleave(edges.shape[1])
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, source, target)
        return self.last(x)


def passing(form: str, edges: str = "fixed"):
    batch = {
        "fixed": ["x=f32[B,20,16]" if form.startswith("inner") else "x=f32[B,16]", "e=i64[2,100]"],
        "pairs": ["x=f32[B,16]", "e=i64[B,2]"],
        "neighbours": ["x=f32[B,16]", "e=i64[B,6]"],
    }[edges]
    target = "y=f32[B,20,1]" if form.startswith("inner") else "y=f32[B,1]"
    return Model(lambda: Passing(form, edges), [*batch, target], precisions=("fp32", "amp_bf16"), batches=(8, 5000))


class EdgeAttention(nn.Module):
    """Attention over edges, with a softmax at each node made of exponentials and sums."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.each = heads, width // heads
        self.value, self.score, self.last = nn.Linear(16, width), nn.Linear(2 * self.each, 1), nn.Linear(width, 1)

    def forward(self, x, edges):
        source = edges.reshape(-1)
        target = torch.arange(x.shape[0], device=x.device).repeat_interleave(edges.shape[1])
        h = self.value(x).view(-1, self.heads, self.each)
        pairs = torch.cat([h[source], h[target]], dim=-1)
        weight = F.leaky_relu(self.score(pairs), 0.2).exp()
        total = weight.new_zeros(x.shape[0], self.heads, 1).index_add(0, target, weight)
        weight = weight / (total[target] + 1e-9)
        message = weight * h[source]
        out = message.new_zeros(x.shape[0], self.heads, self.each).index_add(0, target, message)
        return self.last(out.reshape(x.shape[0], -1))


class Pooled(nn.Module):
    """Members of sets, added up or gathered by the set that they belong to."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.inside, self.out = form, nn.Linear(16, 32), nn.Linear(32, 1)

    def forward(self, x, members):
        h = F.relu(self.inside(x))
        if self.form == "sets":
            h = h.sum(1)
        elif self.form == "scatter":
            index = members[:, :, None].expand(-1, -1, 32)
            h = h.new_zeros(h.shape[0], 8, 32).scatter_add(1, index, h).mean(1)
        elif self.form == "gather":
            h = h.gather(1, members[:, :, None].expand(-1, -1, 32)).mean(1)
        elif self.form == "pairs":  # neighbouring dimensions at the front
            rows = torch.arange(x.shape[0], device=x.device)[:, None]
            h = h[rows, members].mean(1)
        elif self.form == "apart":  # dimensions that are no neighbours
            rows = torch.arange(x.shape[0], device=x.device)
            h = h.view(-1, 10, 4, 8)[rows, :, members[:, 0]].mean(1).repeat(1, 4)
        return self.out(h)


def pooled(form: str):
    return Model(lambda: Pooled(form), ["x=f32[B,10,16]", "m=i64[B,10]", "y=f32[B,1]"], precisions=("fp32", "amp_bf16"), batches=(8, 700))


# Gradients that are not contiguous.


class TalkingHeads(nn.Module):
    """CaiT's attention: heads are mixed by linear layers on permuted scores, before and after the softmax."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.before, self.after = nn.Linear(width, 3 * width), nn.Linear(heads, heads), nn.Linear(heads, heads)
        self.out = nn.Linear(width, 10)

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        scores = self.before((q @ k.transpose(-2, -1)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        scores = self.after(scores.softmax(dim=-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.out((scores @ v).transpose(1, 2).reshape(b, n, c).mean(1))


class Turned(nn.Module):
    """A function whose result is read transposed, so that its gradient comes back transposed."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.first, self.norm, self.last = nn.Linear(16, 24), nn.LayerNorm(24), nn.Linear(12, 10)

    def forward(self, x):
        h = self.first(x)
        functions = {
            "softmax": lambda: h.softmax(-1),
            "softmax_other": lambda: h.softmax(1),
            "log_softmax": lambda: h.log_softmax(-1),
            "gelu": lambda: F.gelu(h),
            "silu": lambda: F.silu(h),
            "relu": lambda: F.relu(h),
            "tanh": lambda: h.tanh(),
            "layer_norm": lambda: self.norm(h),
            "mul": lambda: h * h.sigmoid(),
            "dropout": lambda: F.dropout(h, 0.5, True),
            "cumsum": lambda: h.cumsum(1),
            "pow": lambda: h**2,
            "sigmoid": lambda: h.sigmoid(),
            "relu6": lambda: F.relu6(h),
            "leaky_relu": lambda: F.leaky_relu(h, 0.1),
            "elu": lambda: F.elu(h),
            "hardswish": lambda: F.hardswish(h),
            "hardsigmoid": lambda: F.hardsigmoid(h),
            "mish": lambda: F.mish(h),
            "softplus": lambda: F.softplus(h),
            "logsigmoid": lambda: F.logsigmoid(h),
            "gelu_tanh": lambda: F.gelu(h, approximate="tanh"),
            "rms_norm": lambda: F.rms_norm(h, (24,)),
            "plain_layer_norm": lambda: F.layer_norm(h, (24,)),
            "div": lambda: h / (h.abs() + 1),
            "exp": lambda: h.exp(),
            "sqrt": lambda: (h.clamp(min=0.1)).sqrt(),
            "rsqrt": lambda: (h.clamp(min=0.1)).rsqrt(),
            "where": lambda: torch.where(h > 0, h, 0.1 * h),
            "masked_fill": lambda: h.masked_fill(h > 1, 0.0),
            "sin": lambda: h.sin() + h.cos(),
            "cat": lambda: torch.cat([h[:, :, 12:], h[:, :, :12]], -1),
            "gather": lambda: h.gather(2, torch.zeros_like(h, dtype=torch.int64)),
            "index": lambda: h[:, :, torch.arange(23, -1, -1, device=h.device)],
            "repeat_interleave": lambda: h[:, :, :12].repeat_interleave(2, dim=2),
            "group_norm": lambda: F.group_norm(h, 3),
            "batch_norm": lambda: F.batch_norm(h, None, None, training=True),
            "mean": lambda: h - h.mean(-1, keepdim=True),
            "max": lambda: h - h.max(-1, keepdim=True).values,
            "normalize": lambda: F.normalize(h, dim=-1),
            "matmul": lambda: h @ h.transpose(1, 2) @ h,
            "glu": lambda: F.glu(torch.cat([h, h], -1)),
            "flip": lambda: h.flip(1),
            "roll": lambda: h.roll(1, 1),
            "pad": lambda: F.pad(h, (0, 1))[:, :, 1:],
            "softmax_of_turned": lambda: h.transpose(1, 2).softmax(-1).transpose(1, 2),
            "log_softmax_of_turned": lambda: h.transpose(1, 2).log_softmax(-1).transpose(1, 2),
            "softmax_sliced": lambda: h.softmax(-1)[:, :, :20].repeat(1, 1, 2)[:, :, :24],
        }
        return self.last(functions[self.form]().transpose(1, 2)).mean(1)


class Sequences(nn.Module):
    """Scores [batch, classes, positions], as `cross_entropy` wants them, from a layer that gives them last."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(16, 10)

    def forward(self, x):
        return self.last(x).transpose(1, 2)


def turned(form: str):
    return Model(lambda: Turned(form), ["x=f32[B,12,16]", "y=i64[B]"], loss="cross_entropy", precisions=("fp32", "amp_fp16") if "softmax" in form or form == "layer_norm" else ("fp32",))


# Autocast over parameters in half precision.

OVER_HALF = (("amp_bf16", "bf16"), ("amp_bf16", "fp16"))


class Plain(nn.Module):
    """Layers on both of autocast's lists, with norms whose parameters are cast up."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.norm, self.rms = nn.LayerNorm(32), nn.RMSNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32, bias=False)
        self.scale = nn.Parameter(torch.ones(32))
        self.head = nn.Linear(32, 10)

    def forward(self, ids):
        h = self.words(ids)
        h = h + self.down(F.gelu(self.up(self.norm(h))))
        h = h + self.down(F.gelu(self.up(self.rms(h)))) * self.scale
        h = h.softmax(-1) + h
        return self.head(h.mean(1))


class Pictures(nn.Module):
    """Norms of planes: PyTorch's own kernels read their parameters in half precision, or have them cast up."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.norm, self.group, self.head = nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.Linear(4, 10)

    def forward(self, x):
        h = F.relu(self.norm(x * self.scale))
        h = F.silu(self.group(h))
        return self.head(h.mean((2, 3)))


def transformer(name: str):
    """A small model of transformers, with its loss."""

    def make() -> nn.Module:
        import transformers

        kinds = {
            "llama": (transformers.LlamaForCausalLM, dict(num_hidden_layers=2, hidden_size=64, intermediate_size=96,
                      num_attention_heads=4, num_key_value_heads=2, vocab_size=100, use_cache=False)),
            "gpt2": (transformers.GPT2LMHeadModel, dict(n_layer=2, n_embd=64, n_head=4, vocab_size=100, n_positions=32,
                     use_cache=False)),
            "bert": (transformers.BertForSequenceClassification, dict(num_hidden_layers=2, hidden_size=64,
                     intermediate_size=96, num_attention_heads=4, vocab_size=100)),
        }
        kind, sizes = kinds[name]
        return kind(kind.config_class(**sizes))

    labels = "labels=i64[B]" if name == "bert" else "labels=input_ids"
    return Model(make, ["input_ids=i64[B,32]", labels], loss="model", precisions=("fp32", "bf16"),
                 over_half=(("amp_bf16", "bf16"),), optimizers=("adamw", "adamw_fused"), compute=(8, 0))


def over_half(build: Callable[[], nn.Module], batch: list[str], kinds: tuple[tuple[str, str], ...] = OVER_HALF):
    return Model(build, batch, loss="cross_entropy", precisions=("amp_bf16", "bf16"), over_half=kinds,
                 optimizers=("adamw", "adamw_fused"), accumulations=(1, 2))


FORMS = [
    ("rows", "fixed"), ("rows", "pairs"), ("rows", "neighbours"), ("select", "neighbours"), ("select", "fixed"),
    ("inner", "fixed"), ("inner_select", "fixed"), ("scatter", "neighbours"), ("gather", "neighbours"),
    ("put", "neighbours"), ("put_", "neighbours"), ("mean", "neighbours"), ("typed", "neighbours"),
    ("overwrite", "neighbours"), ("scatter_src", "neighbours"),
]
TURNED = [
    "softmax", "softmax_other", "log_softmax", "gelu", "silu", "relu", "tanh", "layer_norm", "mul", "dropout", "cumsum",
    "pow", "softmax_of_turned", "log_softmax_of_turned", "softmax_sliced", "sigmoid", "relu6", "leaky_relu", "elu",
    "hardswish", "hardsigmoid", "mish", "softplus", "logsigmoid", "gelu_tanh", "rms_norm", "plain_layer_norm", "div", "exp",
    "sqrt", "rsqrt", "where", "masked_fill", "sin", "cat", "gather", "index", "repeat_interleave", "group_norm",
    "batch_norm", "mean", "max", "normalize", "matmul", "glu", "flip", "roll", "pad",
]

# Volumes, signals and what is looked up in planes.


class Volumes(nn.Module):
    """Pools, interpolation, pads and norms of volumes, row-major or channels-last."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.last, self.linear = last, nn.Linear(8, 8)
        self.norm, self.batch, self.out = nn.GroupNorm(2, 8), nn.BatchNorm3d(8), nn.Linear(8, 1)

    def forward(self, x):
        x = self.linear(x)
        x = x.permute(0, 4, 1, 2, 3) if self.last else x.permute(0, 4, 1, 2, 3) * 1.0
        if not self.last:
            x = x.reshape(-1, 8, 8, 8, 8)
        pooled = F.max_pool3d(x, 2) + F.avg_pool3d(x, 2) + F.adaptive_avg_pool3d(x, 4) + F.adaptive_max_pool3d(x, 4)
        y = pooled + F.interpolate(x, scale_factor=0.5, mode="trilinear") + F.interpolate(x, scale_factor=0.5)
        y = self.norm(y)
        y = F.interpolate(y, size=(6, 6, 6), mode="trilinear", align_corners=True)
        y = F.pad(y, (1, 1, 1, 1, 1, 1), mode="replicate") + F.pad(y, (1, 1, 1, 1, 1, 1))
        return self.out(F.adaptive_avg_pool3d(self.batch(y), 1).flatten(1))


class Signals(nn.Module):
    """What runs along one dimension: pools, unpooling, interpolation, pads, weight norms."""

    def __init__(self) -> None:
        super().__init__()
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        x = self.normed(x)
        y, places = F.max_pool1d(x, 2, return_indices=True)
        x = F.max_unpool1d(y, places, 2) + F.interpolate(F.avg_pool1d(x, 2), scale_factor=2, mode="linear")
        x = F.pad(x, (2, 2), mode="reflect")[..., 2:-2] + F.interpolate(y, scale_factor=2, mode="nearest-exact")
        return self.out(F.adaptive_max_pool1d(F.channel_shuffle(x, 2), 4).mean((1,)).repeat(1, 4))


class Transformer(nn.Module):
    """A spatial transformer: an affine map of each plane."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.out = nn.Linear(64, 6), nn.Linear(16, 1)

    def forward(self, x):
        grid = F.affine_grid(self.where(x.flatten(1)).reshape(-1, 2, 3), [x.shape[0], 4, 4, 4], align_corners=False)
        return self.out(F.grid_sample(x, grid, align_corners=False).mean(1).flatten(1))


class Cells(nn.Module):
    """Recurrent cells, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(16, 32), nn.GRUCell(32, 32)
        self.plain, self.out = nn.RNNCell(32, 32, nonlinearity="relu"), nn.Linear(32, 1)

    def forward(self, x):
        hidden = x.new_zeros(x.shape[0], 32)
        cell, second, third = hidden, hidden, hidden
        for step in range(3):
            hidden, cell = self.lstm(x[:, step], (hidden, cell))
            second = self.gru(hidden, second)
            third = self.plain(second, third)
        return self.out(third)


class Waves(nn.Module):
    """Complex numbers: made of real ones, turned, mixed by a complex weight, and seen as real ones again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.out = nn.Linear(16, 16), nn.Linear(8, 1)
        self.weight = nn.Parameter(torch.ones(8, dtype=torch.complex64))
        self.turn = nn.Parameter(torch.ones(8))

    def forward(self, x):
        z = torch.view_as_complex(self.linear(x).reshape(-1, 8, 2))
        z = z * self.weight * torch.polar(torch.ones_like(self.turn), self.turn)
        z = z + torch.complex(z.abs(), z.real * self.turn)
        return self.out(torch.view_as_real(z).sum(-1) + z.imag)


class TargetNetwork(nn.Module):
    """The target of a Q network, computed first and without gradients, by the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 8))

    def forward(self, x, following):
        with torch.no_grad():
            target = self.body(following).mean(1, keepdim=True)
        return self.body(x) - target


MODELS = {
    "target_network": Model(TargetNetwork, ["x=f32[B,24]", "following=f32[B,24]", "y=f32[B,8]"],
                            precisions=("fp32", "amp_fp16", "amp_bf16")),
    **{f"passing_{form}_{edges}": passing(form, edges) for form, edges in FORMS},
    "edge_attention": Model(EdgeAttention, ["x=f32[B,16]", "e=i64[B,6]", "y=f32[B,1]"], batches=(8, 3000)),
    **{f"pooled_{form}": pooled(form) for form in ("sets", "scatter", "gather", "pairs", "apart")},
    "talking_heads": Model(TalkingHeads, ["x=f32[B,12,32]", "y=i64[B]"], loss="cross_entropy",
                           precisions=("fp32", "amp_fp16", "amp_bf16", "bf16")),
    **{f"turned_{form}": turned(form) for form in TURNED},
    "sequences": Model(Sequences, ["x=f32[B,12,16]", "y=i64[B,12]"], loss="cross_entropy", precisions=("fp32", "amp_fp16", "bf16")),
    "conversions": Model(Conversions, ["x=f32[B,16]", "y=f32[B,8]"], precisions=("fp32", "amp_fp16", "amp_bf16", "bf16"), batches=(64,)),
    "plain": over_half(Plain, ["ids=i64[B,12]", "y=i64[B]"]),
    "pictures": over_half(Pictures, ["x=f32[B,4,8,8]", "y=i64[B]"], OVER_HALF[:1]),
    **{name: transformer(name) for name in ("llama", "gpt2", "bert")},
}

# Recorded into a folder of their own: `steps.py tests/golden/steps/nets NAME...` with these names.
NETS = {
    "volumes": Model(lambda: Volumes(False), ["x=f32[B,8,8,8,8]", "y=f32[B,1]"], precisions=("fp32", "amp_bf16", "bf16")),
    "volumes_last": Model(lambda: Volumes(True), ["x=f32[B,8,8,8,8]", "y=f32[B,1]"]),
    "signals": Model(Signals, ["x=f32[B,8,16]", "y=f32[B,1]"], precisions=("fp32", "amp_fp16")),
    "transformer": Model(Transformer, ["x=f32[B,4,4,4]", "y=f32[B,1]"], precisions=("fp32",)),
    "waves": Model(Waves, ["x=f32[B,16]", "y=f32[B,1]"]),
    "cells": Model(Cells, ["x=f32[B,3,16]", "y=f32[B,1]"], precisions=("fp32", "amp_bf16")),
}
MODELS |= NETS
