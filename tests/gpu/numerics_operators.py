"""Modules with many operators of a kind, each behind weights of its own, so that a wrong gradient has its operator's name."""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F
from numerics_models import Input, Model

Function = Callable[..., torch.Tensor]


class Each(nn.Module):
    """Applies each function to a linear map of the input, and adds up what they give, flattened and weighted.

    Under autocast the maps give half precision, so that functions are seen in the precision that they would have in a model.
    """

    def __init__(self, functions: dict[str, Function], inputs: int, maps: int = 1, shape: tuple[int, ...] = ()):
        super().__init__()
        self.functions, self.shape = functions, shape
        self.maps = nn.ModuleDict({name: nn.ModuleList(nn.Linear(inputs, inputs) for _ in range(maps)) for name in functions})
        self.heads = nn.ModuleDict()
        with torch.no_grad():
            given = torch.randn(2, *(shape or (inputs,)))
            for name, function in functions.items():
                self.heads[name] = nn.Linear(function(*[given.clone() for _ in range(maps)]).flatten(1).shape[1], 10)

    def forward(self, x):
        total = 0
        for name, function in self.functions.items():
            given = [linear(x) for linear in self.maps[name]]
            if self.shape:
                given = [tensor.reshape(x.shape[0], *self.shape) for tensor in given]
            total = total + self.heads[name](function(*given).flatten(1).to(given[0].dtype))
        return total


ACTIVATIONS: dict[str, Function] = {
    "relu": F.relu, "relu6": F.relu6, "leaky_relu": F.leaky_relu, "elu": F.elu, "selu": F.selu, "celu": F.celu, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "mish": F.mish, "softplus": F.softplus, "softsign": F.softsign,
    "softshrink": F.softshrink, "hardshrink": F.hardshrink, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh, "tanhshrink": F.tanhshrink, "logsigmoid": F.logsigmoid, "threshold": lambda x: F.threshold(x, 0.1, -0.5),
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "glu": F.glu, "exp": torch.exp, "expm1": torch.expm1, "sin": torch.sin,
    "cos": torch.cos, "atan": torch.atan, "asinh": torch.asinh, "erf": torch.erf, "abs": torch.abs, "neg": torch.neg, "square": torch.square,
    "log": lambda x: torch.log(x.abs() + 1), "log1p": lambda x: torch.log1p(x * x), "log2": lambda x: torch.log2(x * x + 1),
    "sqrt": lambda x: torch.sqrt(x * x + 1), "rsqrt": lambda x: torch.rsqrt(x * x + 1), "reciprocal": lambda x: torch.reciprocal(x * x + 1),
    "pow3": lambda x: x ** 3, "pow_half": lambda x: (x * x + 1) ** 1.5, "exponent": lambda x: 2.0 ** x, "clamp": lambda x: x.clamp(-0.5, 0.7),
    "clamp_min": lambda x: x.clamp(min=0.1), "rsub": lambda x: 1.5 - x, "add_number": lambda x: x + 0.25, "div_number": lambda x: x / 3,
    "number_div": lambda x: 2 / (x * x + 1), "sign": lambda x: x * torch.sign(x), "nan_to_num": torch.nan_to_num,
    "to_double": lambda x: x.double().tanh().to(x.dtype), "inplace": lambda x: x.mul(2.0).add_(0.5).relu_(),
    "relu_after_dropout": lambda x: F.relu(F.dropout(x, 0.0)),
}  # fmt: skip

BINARY: dict[str, Function] = {
    "add": torch.add, "add_alpha": lambda a, b: torch.add(a, b, alpha=0.5), "sub": torch.sub, "mul": torch.mul,
    "div": lambda a, b: a / (b * b + 1), "maximum": torch.maximum, "minimum": torch.minimum, "atan2": lambda a, b: torch.atan2(a, b * b + 1),
    "power": lambda a, b: torch.pow(a * a + 1, b), "lerp": lambda a, b: torch.lerp(a, b, 0.3), "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b * b + 1), "where": lambda a, b: torch.where(a > b, a, b * 0.5), "hypot": lambda a, b: torch.hypot(a, b * b + 1),
    "greater": lambda a, b: a * (a > b), "at_most": lambda a, b: a * (b <= 0.1).to(a.dtype), "both": lambda a, b: a * ((a > 0) & (b > 0)),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, -2.0), "row": lambda a, b: a + b[:, :1], "column": lambda a, b: a[:, :1] * b,
    "outer": lambda a, b: a[:, :8, None] * b[:, None, :8], "outer_sub": lambda a, b: (a[:, :8, None] - b[:, None, :8]).abs(),
    "mixed": lambda a, b: a.float() * b, "cosine": lambda a, b: F.cosine_similarity(a, b)[:, None], "distance": lambda a, b: F.pairwise_distance(a, b)[:, None],
    "dropped": lambda a, b: a * (b > -1).to(a.dtype) / 0.8,
}  # fmt: skip

REDUCTIONS: dict[str, Function] = {
    "sum": lambda x: x.sum(1), "sum_keep": lambda x: x.sum((1, 3), keepdim=True), "mean": lambda x: x.mean((2, 3)), "mean_inner": lambda x: x.mean(-1),
    "amax": lambda x: x.amax((2, 3)), "amin": lambda x: x.amin(1), "max_values": lambda x: x.max(2).values, "min_values": lambda x: x.min(-1).values,
    "std": lambda x: x.std(1), "variance": lambda x: x.var((2, 3), unbiased=False), "norm": lambda x: x.norm(dim=1), "norm_one": lambda x: x.norm(p=1, dim=-1),
    "normalize": lambda x: F.normalize(x, dim=1), "prod": lambda x: (x[..., :3] * 0.5 + 1).prod(-1), "logsumexp": lambda x: x.logsumexp(1),
    "softmax": lambda x: x.softmax(-1), "softmax_outer": lambda x: x.softmax(1), "log_softmax": lambda x: x.log_softmax(2), "softmin": lambda x: F.softmin(x, dim=-1),
    "cumsum": lambda x: x.cumsum(2), "cumprod": lambda x: (x * 0.1 + 1).cumprod(-1), "std_mean": lambda x: torch.cat([t.flatten(1) for t in torch.std_mean(x, (2, 3))], 1),
    "center": lambda x: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-3).sqrt(), "gated": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "einsum": lambda x: torch.einsum("bchw,bdhw->bcd", x, x), "bmm": lambda x: x.flatten(2) @ x.flatten(2).transpose(1, 2),
    "mask_mean": lambda x: (x * (x > 0)).sum((2, 3)) / (x > 0).sum((2, 3)).clamp(min=1),
}  # fmt: skip


def rows(x, count: int, stride: int):
    """Indices of six rows."""
    return torch.arange(count, device=x.device) * stride % 6


def put(x):
    out = x.new_zeros(x.shape)
    out[:, :, rows(x, 3, 2)] = x[:, :, rows(x, 3, 4)]
    return out


def places(x):
    """Where values are looked up: the same on both sides, whatever the values are."""
    count = x.shape[2]
    return (torch.arange(count, device=x.device) * 3 % count)[None, None, :, None].expand(x.shape)


INDEXING: dict[str, Function] = {
    "select": lambda x: x[:, 1], "slices": lambda x: x[:, :, 1::2, :-1], "narrow": lambda x: x.narrow(2, 1, 3), "flip": lambda x: x.flip(2, 3),
    "roll": lambda x: x.roll((1, -2), (2, 3)), "tril": lambda x: x.tril(), "triu": lambda x: x.triu(1), "diagonal": lambda x: x.diagonal(dim1=2, dim2=3),
    "index_select": lambda x: x.index_select(2, rows(x, 4, 3)), "indexed": lambda x: x[:, :, rows(x, 4, 3)],
    "two_indices": lambda x: x[:, :, rows(x, 3, 2), rows(x, 3, 4)], "gather": lambda x: x.gather(2, places(x)), "put": put,
    "scatter": lambda x: torch.zeros_like(x).scatter(2, places(x), x), "scatter_add": lambda x: torch.zeros_like(x).scatter_add(2, places(x) // 2, x),
    "index_add": lambda x: torch.zeros_like(x).index_add(2, rows(x, 6, 2), x),
    "sort": lambda x: x.sort(-1).values, "topk": lambda x: x.topk(3, -1).values, "cat": lambda x: torch.cat([x, x[:, :2] * 2], 1), "stack": lambda x: torch.stack([x, -x], 2),
    "chunk": lambda x: x.chunk(2, 1)[1] * x.chunk(2, 1)[0], "split": lambda x: x.split([1, 3], 1)[1], "unbind": lambda x: x.unbind(2)[3], "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "expand": lambda x: x[:, :1].expand(-1, 3, -1, -1) * x[:, :3], "interleave": lambda x: x.repeat_interleave(2, 2), "shuffle": lambda x: F.pixel_shuffle(x, 2),
    "unshuffle": lambda x: F.pixel_unshuffle(x, 2), "unfold": lambda x: F.unfold(x, 3, padding=1), "fold": lambda x: F.fold(F.unfold(x, 3, padding=1), (6, 6), 3, padding=1),
    "windows": lambda x: x.unfold(2, 3, 2), "permute": lambda x: x.permute(0, 2, 3, 1).contiguous(), "channels": lambda x: F.channel_shuffle(x, 2),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=0.5), "pad_reflect": lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), "pad_replicate": lambda x: F.pad(x, (1, 2, 2, 1), mode="replicate"),
    "pad_circular": lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"), "crop": lambda x: F.pad(x, (-1, -1, 1, 0)), "meshed": lambda x: x + torch.arange(6, device=x.device, dtype=x.dtype)[:, None],
    "one_hot": lambda x: x * F.one_hot(torch.arange(6, device=x.device) % 3, 6), "full": lambda x: torch.full_like(x, 0.5) * x + torch.ones_like(x), "linspace": lambda x: x * torch.linspace(0, 1, 6, device=x.device, dtype=x.dtype),
}  # fmt: skip

POOLS: dict[str, Function] = {
    "avg": lambda x: F.avg_pool2d(x, 2), "avg_padded": lambda x: F.avg_pool2d(x, 3, 2, 1), "avg_counted": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_ceil": lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True), "avg_divisor": lambda x: F.avg_pool2d(x, 3, divisor_override=5), "avg_1d": lambda x: F.avg_pool1d(x.flatten(2), 3, 2),
    "avg_3d": lambda x: F.avg_pool3d(x[:, None], 2), "max": lambda x: F.max_pool2d(x, 3, 2, 1), "max_ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "max_dilated": lambda x: F.max_pool2d(x, 2, 1, dilation=2), "max_1d": lambda x: F.max_pool1d(x.flatten(2), 3, 2), "max_3d": lambda x: F.max_pool3d(x[:, None], 2),
    "lp": lambda x: F.lp_pool2d(x, 2, 2), "adaptive": lambda x: F.adaptive_avg_pool2d(x, 3), "adaptive_one": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive_uneven": lambda x: F.adaptive_avg_pool2d(x, (5, 4)), "adaptive_1d": lambda x: F.adaptive_avg_pool1d(x.flatten(2), 5), "adaptive_max": lambda x: F.adaptive_max_pool2d(x, 3),
    "nearest": lambda x: F.interpolate(x, scale_factor=2), "nearest_down": lambda x: F.interpolate(x, size=(3, 5)), "bilinear": lambda x: F.interpolate(x, size=(11, 7), mode="bilinear"),
    "bilinear_corners": lambda x: F.interpolate(x, size=(11, 13), mode="bilinear", align_corners=True), "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "linear": lambda x: F.interpolate(x.flatten(2), size=50, mode="linear"), "trilinear": lambda x: F.interpolate(x[:, None], size=(6, 5, 9), mode="trilinear"),
    "exact": lambda x: F.interpolate(x, size=(9, 5), mode="nearest-exact"),
}  # fmt: skip


class Convolutions(nn.Module):
    """Convolutions and normalizations of all kinds, each with weights of its own."""

    def __init__(self):
        super().__init__()
        self.flat = nn.ModuleDict({
            "plain": nn.Conv2d(8, 12, 3), "strided": nn.Conv2d(8, 12, 3, 2, 1), "grouped": nn.Conv2d(8, 16, 3, padding=1, groups=4),
            "depthwise": nn.Conv2d(8, 8, 5, padding=2, groups=8), "multiplied": nn.Conv2d(8, 16, 3, padding=1, groups=8), "dilated": nn.Conv2d(8, 8, 3, dilation=2),
            "uneven": nn.Conv2d(8, 8, (1, 5), (1, 2), (0, 2)), "pointwise": nn.Conv2d(8, 24, 1, bias=False), "same": nn.Conv2d(8, 8, 4, padding="same"), "reflected": nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
            "transposed": nn.ConvTranspose2d(8, 8, 3, 2, 1, output_padding=1), "transposed_grouped": nn.ConvTranspose2d(8, 8, 4, 2, 1, groups=2),
            "group_norm": nn.GroupNorm(4, 8), "one_group": nn.GroupNorm(1, 8), "instance_norm": nn.InstanceNorm2d(8, affine=True), "batch_norm": nn.BatchNorm2d(8), "no_affine": nn.BatchNorm2d(8, affine=False),
            "response_norm": nn.LocalResponseNorm(3), "weight_norm": nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3)), "prelu": nn.PReLU(8), "layer_norm": nn.LayerNorm((8, 10, 10)), "rms_norm": nn.RMSNorm(10),
        })  # fmt: skip
        self.line = nn.ModuleDict({"conv": nn.Conv1d(8, 12, 5, 2, 2), "depthwise": nn.Conv1d(8, 8, 3, padding=1, groups=8), "transposed": nn.ConvTranspose1d(8, 8, 4, 2, 1), "batch_norm": nn.BatchNorm1d(8), "causal": nn.Conv1d(8, 8, 3, dilation=4)})
        self.solid = nn.ModuleDict({"conv": nn.Conv3d(4, 6, 3, padding=1), "strided": nn.Conv3d(4, 6, (1, 3, 3), (1, 2, 2)), "transposed": nn.ConvTranspose3d(4, 4, 2, 2), "batch_norm": nn.BatchNorm3d(4), "instance_norm": nn.InstanceNorm3d(4)})
        self.last, self.stem = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(len(self.flat) + len(self.line) + len(self.solid) + 1, 10)

    def forward(self, x):
        x = self.stem(x).tanh()
        made = [layer(x) for layer in self.flat.values()]
        made += [layer(x.flatten(2)) for layer in self.line.values()]
        made += [layer(x.reshape(x.shape[0], 4, 2, 10, 10)) for layer in self.solid.values()]
        made.append(self.last(x.to(memory_format=torch.channels_last)))
        return self.head(torch.stack([out.sin().flatten(1).mean(1) * 10 for out in made], 1))


class Recurrent(nn.Module):
    """Recurrent nets of a kind over embedded words."""

    def __init__(self, kind: type, **options):
        super().__init__()
        self.words = nn.Embedding(100, 24, padding_idx=0)
        self.net = kind(24, 32, batch_first=True, **options)
        self.head = nn.Linear(32 * (2 if options.get("bidirectional") else 1), 10)

    def forward(self, x):
        return self.head(self.net(self.words(x))[0].mean(1))


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.rnn, self.head = nn.LSTMCell(16, 24), nn.GRUCell(16, 24), nn.RNNCell(16, 24), nn.Linear(72, 10)

    def forward(self, x):
        h = c = g = r = x.new_zeros(x.shape[0], 24)
        for step in x.unbind(1):
            h, c = self.lstm(step, (h, c))
            g, r = self.gru(step, g), self.rnn(step, r)
        return self.head(torch.cat([h, g, r], 1))


class Attention(nn.Module):
    """Scaled dot products with every kind of mask, PyTorch's own attention and layers."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(96, 288) for name in ("plain", "causal", "boolean", "additive", "learnt", "scaled", "longer", "by_hand", "grouped")})
        self.bias = nn.Parameter(torch.randn(4, 20, 20))
        self.attention = nn.MultiheadAttention(96, 4, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(96, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoderLayer(96, 4, 128, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(96, 10)

    def forward(self, x, mask):
        size, sdp = x.shape[0], F.scaled_dot_product_attention
        keys = (mask > 0).logical_or(torch.arange(20, device=x.device) == 0)
        split = {name: layer(x * 2).view(size, 20, 3, 4, 24).permute(2, 0, 3, 1, 4) for name, layer in self.parts.items()}
        triangle = torch.full((20, 20), float("-inf"), device=x.device, dtype=split["additive"].dtype).triu(1)
        q, k, v = split["by_hand"]
        by_hand = (q @ k.transpose(-2, -1) * 24**-0.5 + self.bias).masked_fill(~keys[:, None, None], -1e4).softmax(-1).to(v.dtype) @ v
        q, k, v = split["grouped"]
        made = [
            sdp(*split["plain"]), sdp(*split["causal"], is_causal=True), sdp(*split["boolean"], attn_mask=keys[:, None, None]),
            sdp(*split["additive"], attn_mask=triangle), sdp(*split["learnt"], attn_mask=self.bias.to(split["learnt"].dtype)), sdp(*split["scaled"], scale=0.5),
            sdp(split["longer"][0][:, :, :7], *split["longer"][1:]), by_hand, sdp(q, k[:, ::2], v[:, ::2], enable_gqa=True),
        ]  # fmt: skip
        y = sum(out.transpose(1, 2).reshape(size, out.shape[2], 96).mean(1, keepdim=True) * (i + 1) for i, out in enumerate(made))
        z = self.attention(x, x, x, key_padding_mask=~keys, need_weights=False)[0]
        z = self.decoder(self.layer(z, src_key_padding_mask=~keys), x)
        return self.head((y + z).mean(1))


class Losses(nn.Module):
    """Losses of all kinds, added up."""

    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleDict({name: nn.Linear(16, 10) for name in (
            "cross_entropy", "smoothed", "weighted", "ignored", "nll", "mse", "l1", "smooth_l1", "huber", "bce_logits", "kl", "cosine", "margin", "positive", "focal")})  # fmt: skip
        self.register_buffer("class_weights", torch.linspace(0.5, 1.5, 10))

    def forward(self, x, t, y):
        out = {name: layer(x) for name, layer in self.maps.items()}
        high = t.sigmoid()
        total = F.cross_entropy(out["cross_entropy"], y) + F.cross_entropy(out["smoothed"], y, label_smoothing=0.1)
        total = total + F.cross_entropy(out["weighted"], y, weight=self.class_weights) + F.cross_entropy(out["ignored"], torch.where(y > 5, -100, y))
        total = total + F.nll_loss(out["nll"].log_softmax(1), y) + F.mse_loss(out["mse"], t) + F.l1_loss(out["l1"], t)
        total = total + F.smooth_l1_loss(out["smooth_l1"], t) + F.huber_loss(out["huber"], t, delta=0.5) + F.binary_cross_entropy_with_logits(out["bce_logits"], high)
        total = total + F.kl_div(out["kl"].log_softmax(1), t.softmax(1), reduction="batchmean") + F.cosine_embedding_loss(out["cosine"], t, torch.where(y > 4, 1, -1))
        total = total + F.soft_margin_loss(out["margin"], torch.where(t > 0, 1.0, -1.0).to(t.dtype))
        total = total + F.binary_cross_entropy_with_logits(out["positive"], high, pos_weight=self.class_weights)
        p = out["focal"].softmax(1).gather(1, y[:, None]).clamp(1e-6, 1.0)
        return total + (-(1 - p) ** 2 * p.log()).mean()


class Tower(nn.Module):
    """A U-Net that goes up by interpolation, with the joins that models take: crops, pads, concatenation."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 24, 3, 2, 1), nn.Conv2d(24, 48, 3, 2, 1)])
        self.norms = nn.ModuleList([nn.GroupNorm(4, 12), nn.GroupNorm(4, 24), nn.GroupNorm(4, 48)])
        self.up = nn.ModuleList([nn.Conv2d(72, 24, 3, padding=1), nn.Conv2d(36, 12, 3, padding=1)])
        self.out = nn.Conv2d(12, 10, 1)

    def forward(self, x):
        skips = []
        for layer, norm in zip(self.down, self.norms):
            x = F.silu(norm(layer(x)))
            skips.append(x)
        skips.pop()
        for layer, mode in zip(self.up, ("nearest", "bilinear")):
            skip = skips.pop()
            x = F.interpolate(x, size=skip.shape[2:], mode=mode)
            x = F.silu(layer(torch.cat([x, skip], 1)))
        return self.out(x)


VECTOR = {"x": Input((32,)), "y": Input((), below=10)}
WORDS = {"x": Input((12,), below=100), "y": Input((), below=10)}
MODELS = {
    "activations": Model(lambda: Each(ACTIVATIONS, 32), VECTOR, 16),
    "binary": Model(lambda: Each(BINARY, 32, maps=2), VECTOR, 16),
    "reductions": Model(lambda: Each(REDUCTIONS, 4 * 6 * 6, shape=(4, 6, 6)), {"x": Input((144,)), "y": Input((), below=10)}, 8),
    "indexing": Model(lambda: Each(INDEXING, 4 * 6 * 6, shape=(4, 6, 6)), {"x": Input((144,)), "y": Input((), below=10)}, 8),
    "pools": Model(lambda: Each(POOLS, 4 * 8 * 8, shape=(4, 8, 8)), {"x": Input((256,)), "y": Input((), below=10)}, 8),
    "convolutions": Model(Convolutions, {"x": Input((3, 10, 10)), "y": Input((), below=10)}, 8),
    "lstm": Model(lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), WORDS, 8, rate=3e-3, curve=True),
    "gru": Model(lambda: Recurrent(nn.GRU, num_layers=2), WORDS, 8, rate=3e-3, curve=True),
    "rnn": Model(lambda: Recurrent(nn.RNN), WORDS, 8),
    "cells": Model(Cells, {"x": Input((6, 16)), "y": Input((), below=10)}, 8),
    "attention": Model(Attention, {"x": Input((20, 96)), "mask": Input((20,), below=2), "y": Input((), below=10)}, 8),
    "losses": Model(Losses, {"x": Input((16,)), "t": Input((10,)), "y": Input((), below=10)}, 16, loss="model"),
    "tower": Model(Tower, {"x": Input((3, 30, 30)), "y": Input((30, 30), below=10)}, 8),
}  # fmt: skip
