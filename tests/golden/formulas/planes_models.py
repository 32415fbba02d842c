"""Pools, interpolation, padding, shuffles and columns."""

import torch
import torch.nn.functional as F
from cases import BATCH, case
from torch import nn


class Planes(nn.Module):
    """Functions of planes or volumes, each element of their results with a weight of its own."""

    def __init__(self, shape, functions):
        super().__init__()
        self.functions = functions
        self.w = nn.Parameter(torch.rand(1, *shape) * 2 - 1)
        self.register_buffer("weights", torch.rand(330) * 2 - 1)

    def forward(self, x):
        x = x * self.w
        total = 0.0
        for function in self.functions:
            y = function(x)
            weights = self.weights[: y[0].numel()].view(y.shape[1:])
            total = total + (y * y * weights + y * weights).sum()
        return total


def planes(name, shape, functions, **options):
    def build():
        return Planes(shape, functions), {"x": torch.rand(BATCH, *shape) * 2 - 1}

    case(name, **options)(build)


LAST = {"memory_format": torch.channels_last}

for dtype in (torch.float32, torch.bfloat16):
    kind = "" if dtype == torch.float32 else "-bf16"
    planes(f"pools{kind}", (2, 7, 9), [
        lambda x: F.avg_pool2d(x, 3), lambda x: F.avg_pool2d(x, (3, 2), 2, (1, 1), ceil_mode=True), lambda x: F.avg_pool2d(x.contiguous(**LAST), 3, 2, 1, count_include_pad=False),
        lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5), lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: F.max_pool2d(x.contiguous(**LAST), 2, 3, dilation=2, ceil_mode=True),
        lambda x: F.adaptive_avg_pool2d(x, (3, 4)), lambda x: F.adaptive_max_pool2d(x, (2, 5)), lambda x: F.adaptive_avg_pool2d(x.contiguous(**LAST), (9, 5)),
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(7, 9)),
    ], dtype=dtype)  # fmt: skip

planes("pools-1d", (2, 11), [
    lambda x: F.avg_pool1d(x, 3, 2, 1), lambda x: F.max_pool1d(x, 3, 2, 1), lambda x: F.adaptive_avg_pool1d(x, 4), lambda x: F.adaptive_max_pool1d(x, 3),
])  # fmt: skip
planes("pools-3d", (1, 4, 5, 6), [
    lambda x: F.avg_pool3d(x, 2, 2, 1), lambda x: F.max_pool3d(x, 2, 1, 1), lambda x: F.adaptive_avg_pool3d(x, (2, 3, 3)), lambda x: F.adaptive_max_pool3d(x, 2),
])  # fmt: skip

planes("interpolation", (2, 5, 4), [
    lambda x: F.interpolate(x, scale_factor=2), lambda x: F.interpolate(x, (3, 7), mode="nearest"), lambda x: F.interpolate(x, scale_factor=1.7, mode="nearest-exact"),
    lambda x: F.interpolate(x, scale_factor=2.3, mode="bilinear"), lambda x: F.interpolate(x.contiguous(**LAST), (9, 8), mode="bilinear", align_corners=True),
    lambda x: F.interpolate(x, (3, 2), mode="bilinear"), lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), lambda x: F.interpolate(x, (7, 3), mode="bicubic", align_corners=True),
    lambda x: F.interpolate(x, (3, 7), mode="bilinear", antialias=True), lambda x: F.interpolate(x, (2, 3), mode="bicubic", antialias=True), lambda x: F.interpolate(x, (3, 2), mode="area"),
])  # fmt: skip
planes("interpolation-1d", (2, 5), [lambda x: F.interpolate(x, 9), lambda x: F.interpolate(x, 8, mode="linear"), lambda x: F.interpolate(x, 3, mode="linear", align_corners=True)])
planes("interpolation-3d", (1, 3, 4, 3), [lambda x: F.interpolate(x, scale_factor=2), lambda x: F.interpolate(x, (2, 6, 5), mode="trilinear")])

for dtype in (torch.float32, torch.bfloat16):
    kind = "" if dtype == torch.float32 else "-bf16"
    planes(f"padding{kind}", (4, 5, 6), [
        lambda x: F.pad(x, (1, 2, 0, 1)), lambda x: F.pad(x, (-1, 2, 1, -2), value=0.5), lambda x: F.pad(x, (2, 1, 1, 3), mode="reflect"), lambda x: F.pad(x, (1, 0, 2, 2), mode="replicate"),
        lambda x: F.pad(x.transpose(1, 2), (0, 1)), lambda x: F.pixel_shuffle(x, 2), lambda x: F.pixel_unshuffle(x[:, :, :4], 2),
        lambda x: F.channel_shuffle(x, 2), lambda x: F.unfold(x, 2, padding=1, stride=2), lambda x: F.unfold(x, (3, 2), dilation=(1, 2)),
        lambda x: F.fold(x.reshape(x.shape[0], 8, 15), (4, 6), 2, stride=1), lambda x: F.glu(x, 1),
    ], dtype=dtype)  # fmt: skip
