"""What every model has: arithmetic, activations, sums, products, convolutions, softmax."""

import torch
import torch.nn.functional as F
from cases import BATCH, case, each
from torch import nn

for dtype in (torch.float32, torch.bfloat16):
    kind = "" if dtype == torch.float32 else "-bf16"
    each(f"activations{kind}", (5, 8), [
        lambda w, x: torch.relu(w + x), lambda w, x: F.gelu(w * x), lambda w, x: F.gelu(w + x, approximate="tanh"), lambda w, x: torch.tanh(w) * x,
        lambda w, x: F.silu(w + x), lambda w, x: torch.sigmoid(w * 2.0), lambda w, x: F.relu6(w * 8), lambda w, x: torch.cos(w) + torch.sin(x * w),
        lambda w, x: (w * w + 1.0).rsqrt(), lambda w, x: w.pow(2) + (w * 0.5).pow(3),
    ], dtype=dtype)  # fmt: skip


@case("linear", loss=lambda m, x: (m(x) * torch.arange(4)).sum())
def linear():
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3), nn.Softmax(dim=2), nn.Linear(3, 4), nn.LogSoftmax(dim=-1)), {"x": torch.randn(BATCH, 4, 6)}


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([
            nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=3), nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1),
        ])  # fmt: skip
        self.flat = nn.Conv1d(4, 5, 4, stride=3)
        self.volume = nn.Conv3d(1, 2, 2)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        flat = self.flat(x.flatten(2))
        volume = self.volume(x.unsqueeze(1))
        return (flat * flat).sum() + volume.pow(2).sum()


@case("convolutions")
def convolutions():
    return Convolutions(), {"x": torch.randn(BATCH, 4, 7, 9)}


class Depthwise(nn.Module):
    """Layers with a window for each channel, side by side; the gradient of their input is that of `w`."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(6, 11, 10))
        self.planes = nn.ModuleList([
            nn.Conv2d(6, 6, 3, padding=1, groups=6),
            nn.Conv2d(6, 6, 5, stride=2, padding=2, groups=6),
            nn.Conv2d(6, 12, 3, padding=1, groups=6),
            nn.Conv2d(6, 6, 7, padding=3, groups=6),
            nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=6),
            nn.Conv2d(6, 6, 3, stride=3, groups=6),
            nn.Conv2d(6, 6, (1, 5), stride=(1, 2), padding=(0, 2), groups=6),
            nn.Conv2d(6, 18, 3, stride=2, groups=6, bias=False),
        ])
        self.lines = nn.ModuleList([nn.Conv1d(6, 6, 4, padding=3, groups=6), nn.Conv1d(6, 6, 5, stride=2, padding=4, dilation=2, groups=6)])

    def forward(self, x):
        x, total = x * self.w, 0.0
        for number, layer in enumerate([*self.planes, *self.lines]):
            y = layer(x if number < len(self.planes) else x.flatten(2))
            total = total + (y * torch.cos(y.detach() * 3 + number)).sum()
        return total


@case("depthwise")
def depthwise():
    return Depthwise(), {"x": torch.randn(BATCH, 6, 11, 10)}


@case("depthwise-bf16", dtype=torch.bfloat16)
def depthwise_bf16():
    return Depthwise(), {"x": torch.randn(BATCH, 6, 11, 10)}
