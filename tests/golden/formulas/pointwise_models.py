"""Elementwise operators: forward, backward and in place, with numbers and tensors for operands, of several types."""

import torch
import torch.nn.functional as F
from cases import BATCH, case, each
from torch import nn

inf = float("inf")


def integers(x, low: int = -9, high: int = 9):
    """Whole numbers that follow from `x` in [-1, 1]."""
    return (x * high).round().clamp(low, high).to(torch.int64)


each("pointwise-arithmetic", (4, 5), [
    lambda w, x: w - x, lambda w, x: torch.sub(x, w, alpha=0.5), lambda w, x: 2.0 - w, lambda w, x: torch.rsub(w, x, alpha=3), lambda w, x: w / (x + 3),
    lambda w, x: x / (w + 3), lambda w, x: 1 / (w + 2), lambda w, x: w / 3, lambda w, x: torch.div(w * 5, x + 2, rounding_mode="floor") * w, lambda w, x: -w,
    lambda w, x: torch.div(w * 5, 0.7, rounding_mode="trunc") * w, lambda w, x: torch.remainder(w * 5, x + 2), lambda w, x: torch.fmod(x * 5, w + 2),
    lambda w, x: w.remainder(0.3), lambda w, x: w.fmod(-0.3), lambda w, x: w.reciprocal() * w.square(), lambda w, x: w.add(x, alpha=-2), lambda w, x: torch.lerp(w, x, 0.3),
    lambda w, x: torch.lerp(x, w, w.abs()), lambda w, x: torch.addcmul(w, x, w, value=0.5), lambda w, x: torch.addcdiv(x, w, x + 2, value=-2),
    lambda w, x: torch.hypot(w, x), lambda w, x: torch.atan2(w, x), lambda w, x: torch.logaddexp(w, x), lambda w, x: torch.logaddexp2(x, w),
    lambda w, x: torch.copysign(w, x), lambda w, x: torch.xlogy(w + 2, x + 2), lambda w, x: torch.xlogy(w, 3.0), lambda w, x: torch.special.xlog1py(x, w + 2),
])  # fmt: skip

each("pointwise-choices", (4, 5), [
    lambda w, x: torch.maximum(w, x), lambda w, x: torch.minimum(x, w), lambda w, x: torch.fmax(w, x), lambda w, x: torch.fmin(x, w), lambda w, x: w.clamp(-0.5, 0.5),
    lambda w, x: w.clamp(min=0), lambda w, x: w.clamp(max=0.25), lambda w, x: w.clamp_min(-0.1), lambda w, x: w.clamp_max(0.1), lambda w, x: torch.clamp(w, min=x),
    lambda w, x: torch.clamp(x, w - 0.5, w + 0.5), lambda w, x: torch.clamp(w, max=x), lambda w, x: torch.where(x > 0, w, x), lambda w, x: torch.where(w > x, 0.0, w),
    lambda w, x: torch.where(x <= 0.25, w, 1), lambda w, x: w.masked_fill(x < 0, -2.0), lambda w, x: w.masked_fill(x >= 0, x.sum().detach()), lambda w, x: torch.where(x[:, :1] > 0, w.t().t(), w[0, 0]),
    lambda w, x: w * (x == x) * (x != 0.5), lambda w, x: w * ((x > 0) & (x < 0.5) | ~(x > -0.5)), lambda w, x: w * torch.logical_xor(x > 0, w > 0), lambda w, x: w * torch.logical_not(x > 0).float(),
    lambda w, x: w * (integers(x) % 3 == 0), lambda w, x: w * (integers(x) < 0.5), lambda w, x: w.masked_fill(torch.isnan(x / 0), inf).clamp(max=3), lambda w, x: w * torch.heaviside(x, w.detach()),
    lambda w, x: torch.nan_to_num(w + torch.log((x > 0).float()) * (x < 0.5), nan=0.5, posinf=2.0, neginf=-3.0), lambda w, x: w * torch.isfinite(x / (x > 0)) + torch.isinf(1 / (x > 0)).float() * w, lambda w, x: w.masked_fill(torch.eye(5)[:4] > 0, 0),
])  # fmt: skip

each("pointwise-powers", (4, 5), [
    lambda w, x: w.pow(2.5), lambda w, x: w**-1, lambda w, x: w**0.5, lambda w, x: w**0, lambda w, x: torch.pow(2.0, w), lambda w, x: torch.pow(w, x), lambda w, x: torch.pow(x, w),
    lambda w, x: w ** integers(x, high=3), lambda w, x: w * integers(x) ** 3, lambda w, x: torch.float_power(w, 1.5).float(), lambda w, x: w * torch.pow(integers(x), integers(x).abs()),
    lambda w, x: w.exp() + w.exp2() + w.expm1(), lambda w, x: w.log() + w.log2() + w.log10() + w.log1p(), lambda w, x: w.sqrt() - w.rsqrt(), lambda w, x: w.logit() + (w * 2).logit(eps=0.1),
], low=0.1, high=0.9)  # fmt: skip

each("pointwise-functions", (4, 5), [
    lambda w, x: w.abs() + w.sign() * w, lambda w, x: w.acos() + w.asin() + w.atan(), lambda w, x: w.sinh() + w.cosh() + w.tan(), lambda w, x: (w + 2.1).acosh() + w.asinh() + w.atanh(),
    lambda w, x: w.erf() + w.erfc() + w.erfinv(), lambda w, x: (w + 1.5).lgamma() + (w + 1.5).digamma(), lambda w, x: w.i0() + torch.special.i0e(w) + torch.sinc(w), lambda w, x: w.frac() + w.floor() * w + w.ceil() + w.trunc(),
    lambda w, x: (w * 3).round() * w + torch.round(w, decimals=1), lambda w, x: torch.deg2rad(w) + torch.rad2deg(w), lambda w, x: torch.special.entr(w.abs() + 0.1) + torch.special.ndtri(w.abs() * 0.8 + 0.1),
    lambda w, x: torch.special.erfcx(w) + torch.special.log_ndtr(w), lambda w, x: torch.special.polygamma(2, w + 1.5), lambda w, x: torch.special.zeta(2.5, w + 1.5), lambda w, x: torch.signbit(x) * w,
])  # fmt: skip

for dtype in (torch.float32, torch.bfloat16):
    kind = "" if dtype == torch.float32 else "-bf16"
    each(f"pointwise-activations{kind}", (4, 5), [
        lambda w, x: F.leaky_relu(w + x, 0.2), lambda w, x: F.hardswish(w * 4), lambda w, x: F.hardsigmoid(w * 4), lambda w, x: F.mish(w), lambda w, x: F.softplus(w, 2.0, 1.5),
        lambda w, x: F.elu(w, 0.7), lambda w, x: F.selu(w), lambda w, x: F.celu(w, 0.6), lambda w, x: F.logsigmoid(w * 3), lambda w, x: F.prelu(w, x[0, 0, :1]), lambda w, x: F.hardtanh(w, -0.3, 0.4),
        lambda w, x: F.hardshrink(w, 0.3), lambda w, x: F.softshrink(w, 0.2), lambda w, x: F.threshold(w, 0.1, 0.5), lambda w, x: F.softsign(w), lambda w, x: F.tanhshrink(w), lambda w, x: w.exp() / (w.abs() + 1) - x,
    ], dtype=dtype)  # fmt: skip


class InPlace(nn.Module):
    """What is overwritten is saved first where a gradient reads it."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(4, 5) - 0.5)
        self.slopes = nn.Parameter(torch.tensor([0.1, 0.3, -0.2, 0.5]))
        self.register_buffer("table", torch.randn(4, 5, dtype=torch.float64))

    def forward(self, x):
        y = F.leaky_relu_(x - self.w, 0.1)
        y = F.elu_(y * 2, 0.5)
        y = F.celu_(y + 0.1, 0.8) + F.selu_(self.w * 3)
        y = (y * 2).mul_(self.w + 2).sub_(x).div_(self.w + 3)
        y = y.masked_fill_(x > 0.5, 0.25).clamp_(-2, 2).add_(self.w, alpha=0.5).exp_()
        y = (y * 1.5 + 9).log_().pow_(2).neg_().sigmoid_()
        z = torch.zeros_like(y)
        z[:, 1:3] = self.w[1:3]
        z[:, 0] = 2.0
        z[:, 3].copy_(self.w[0] * 2)
        z[0].fill_(0.5)
        z = z.transpose(1, 2)[:, 1:]
        # Types: float64 without and with dimensions, truth values, bytes.
        y = y * self.table[0, 0] + (self.table * self.w).float()
        bits = (x * 20).to(torch.int32) ^ 21
        y = y + (bits << 2).float() * 1e-3 * self.w + (bits & 7 | 1) / 3 + (bits >> 1).to(torch.uint8) * self.w
        y = y * torch.gcd(bits, bits + 6) + torch.lcm(bits, torch.full_like(bits, 4)) * self.w * 1e-3
        return y.sum() + (z * torch.arange(4)).sum() + F.prelu(x.sub(self.w), self.slopes).pow(3).sum()


@case("pointwise-in-place")
def in_place():
    return InPlace(), {"x": torch.rand(BATCH, 4, 5) - 0.5}


class Created(nn.Module):
    """Tensors that follow from no other, and random ones with what does not depend on the draw."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(4, 6) - 0.5)

    def forward(self, x):
        w, batch = self.w, x.shape[0]
        y = w * torch.arange(6) + torch.arange(1, 13, 2) * w + torch.arange(0.5, 3.5, 0.5) * w
        y = y * torch.ones(6) + torch.full((4, 1), 0.3) - torch.full_like(w, 2.0) * w + w.new_full((6,), -1.5) + w.new_ones(4, 1)
        y = y + torch.zeros(4, 6) + torch.zeros_like(w) + w.new_zeros(6)
        y = y + torch.linspace(-1, 2, 6) * w + torch.logspace(-1, 1, 6) * w + torch.eye(6)[:4] * w + torch.eye(4, 6) * w
        y = y + torch.linspace(0, 9, 6, dtype=torch.float64).float() * w + torch.arange(5, -1, -1) * w
        rows, columns = torch.tril_indices(4, 4, -1)
        y = y + (torch.triu_indices(3, 5, 1).sum() + (rows * 3 + columns).sum()) * w
        y = y + torch.arange(1, batch + 2).sum() * w / batch
        random = torch.rand_like(w) + torch.rand(4, 6) + torch.bernoulli(torch.full((4, 6), 0.5)) + torch.randint(0, 3, (4, 6)) + torch.randn(4, 6).sigmoid()
        y = y + ((random >= 0) & (random <= 6)) * w
        drawn = torch.empty(4, 6).uniform_(2, 3) + torch.empty(4, 6).exponential_(2.0) + torch.empty(4, 6).bernoulli_(0.3)
        y = y + ((drawn >= 2) & (torch.randn_like(w).abs() < 20)) * w
        order = torch.randperm(11)
        y = y + (order.sum() + (order * order).sum() + (order < 0).sum()) * w * 1e-2
        y = y + (torch.empty(4, 6).normal_(2.0, 0.1) > 0) * w
        features = F.dropout2d(torch.ones(3, 4, 2, 2), 0.5) + F.dropout(torch.ones(3, 4, 2, 2), 0.75, inplace=True)
        y = y + ((features == 0) | (features == 2) | (features == 4) | (features == 6)).sum() * w * 1e-2
        x = x * 0.1
        x[:, :, 0] = 1.0
        return (y * x).sum()


@case("pointwise-created")
def created():
    return Created(), {"x": torch.rand(BATCH, 4, 6) - 0.5}


class Layouts(nn.Module):
    """Operands that are transposed, expanded, sliced, channels-last; several types at once."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(3, 4, 5) - 0.5)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        y = x.to(memory_format=torch.channels_last) - self.w
        y = y / (self.w.permute(2, 1, 0).permute(2, 1, 0) + 2) - self.w[:, ::2].repeat_interleave(2, 1) * self.scale
        y = y.transpose(1, 3) - self.w[:1, :, 1:2].expand(3, 4, 5).permute(2, 1, 0)
        y = y - (x.double() * self.scale).to(torch.float32).transpose(1, 3)
        half = y.to(torch.bfloat16).exp()
        truth = (y > 0).float() - 0.5 * (x.transpose(1, 3) > 0)
        return (half.float() - truth * self.w.mean() + (y * 10).to(torch.int64) * self.scale - (y != 0).to(torch.int32) * self.scale).sum()


@case("pointwise-layouts")
def layouts():
    return Layouts(), {"x": torch.rand(BATCH, 3, 4, 5) - 0.5}
