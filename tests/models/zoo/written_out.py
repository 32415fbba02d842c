"""Models as tutorials and papers write them out, whose operators or habits batchfit's exporter once refused."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import MultivariateNormal
from torch.nn.utils import parametrizations

from . import model

IMAGES = ("x=f32[B,3,32,32]", "y=i64[B]")


def own_loss(model, *batch):
    return model(*batch)


def _encoder(width: int = 64) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, width))


def _mlp(*widths: int) -> nn.Sequential:
    return nn.Sequential(*[layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU())][:-1])


class RealNvp(nn.Module):
    """Checks of distributions' parameters, which nothing but their values can tell."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ModuleList(_mlp(16, 64, 16) for _ in range(4))
        self.shifts = nn.ModuleList(_mlp(16, 64, 16) for _ in range(4))
        self.register_buffer("masks", torch.tensor([[0.0, 1.0] * 8, [1.0, 0.0] * 8] * 2))

    def forward(self, x):
        determinant, z = x.new_zeros(x.shape[0]), x
        for mask, scale, shift in zip(self.masks, self.scales, self.shifts):
            kept = z * mask
            s, t = torch.tanh(scale(kept)) * (1 - mask), shift(kept) * (1 - mask)
            z = (1 - mask) * (z - t) * torch.exp(-s) + kept
            determinant = determinant - s.sum(1)
        prior = MultivariateNormal(torch.zeros(16, device=x.device), torch.eye(16, device=x.device))
        return -(prior.log_prob(z) + determinant).mean()


@model("real-nvp", "torch", "x=f32[B,16]", loss=own_loss)
def real_nvp():
    return RealNvp()


class KalmanFilter(nn.Module):
    """Systems of equations and Cholesky factors for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Parameter(torch.eye(8)), nn.Parameter(torch.randn(4, 8))
        self.q, self.r = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(4))

    def forward(self, x):
        size = x.shape[0]
        mean, covariance = torch.zeros(size, 8, device=x.device), torch.eye(8, device=x.device).expand(size, -1, -1)
        loss = 0
        for step in range(10):
            mean = mean @ self.a.T
            covariance = self.a @ covariance @ self.a.T + torch.diag_embed(self.q.exp())
            innovation = self.c @ covariance @ self.c.T + torch.diag_embed(self.r.exp())
            gain = torch.linalg.solve(innovation, self.c @ covariance).mT
            error = x[:, step] - mean @ self.c.T
            loss = loss - MultivariateNormal(torch.zeros_like(error), innovation).log_prob(error).mean()
            mean = mean + (gain @ error.unsqueeze(-1)).squeeze(-1)
            covariance = covariance - gain @ self.c @ covariance
        return loss


@model("kalman-filter", "torch", "x=f32[B,10,4]", loss=own_loss)
def kalman_filter():
    return KalmanFilter()


class Glow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 12))
        self.scale, self.shift = nn.Parameter(torch.zeros(1, 12, 1, 1)), nn.Parameter(torch.zeros(1, 12, 1, 1))
        self.net = nn.Sequential(nn.Conv2d(6, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 12, 3, 1, 1))

    def forward(self, x):
        pixels = x.shape[2] * x.shape[3]
        z = F.conv2d((x + self.shift) * self.scale.exp(), self.weight[:, :, None, None])
        determinant = self.scale.sum() * pixels + torch.slogdet(self.weight)[1] * pixels
        a, b = z.chunk(2, 1)
        shift, scale = self.net(a).chunk(2, 1)
        scale = torch.sigmoid(scale + 2)
        z = torch.cat([a, (b + shift) * scale], 1)
        return (0.5 * z.square().sum((1, 2, 3)) - determinant - scale.log().sum((1, 2, 3))).mean()


@model("glow", "torch", "x=f32[B,12,8,8]", loss=own_loss)
def glow():
    return Glow()


class DeepKernel(nn.Module):
    """A Gaussian process over the batch: distances, a kernel matrix and its factor are as large as the batch squared."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.length, self.noise = _mlp(8, 32, 2), nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x, y):
        h = self.net(x)
        kernel = torch.exp(-0.5 * torch.cdist(h, h).square() / self.length.exp()) + self.noise.exp() * torch.eye(x.shape[0], device=x.device)
        factor = torch.linalg.cholesky(kernel)
        return 0.5 * (y[:, None] * torch.cholesky_solve(y[:, None], factor)).sum() + factor.diagonal().log().sum()


@model("deep-kernel-learning", "torch", "x=f32[B,8]", "y=f32[B]", loss=own_loss, batches=(64, 256))
def deep_kernel_learning():
    return DeepKernel()


class HardTriplets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = _encoder()

    def forward(self, x, y):
        distances = torch.cdist(*[self.encoder(x)] * 2)
        same = (y[:, None] == y[None]).float()
        return F.relu((distances * same).max(1)[0] - (distances + 1e6 * same).min(1)[0] + 0.3).mean()


@model("hard-triplets", "torch", *IMAGES, loss=own_loss, batches=(64, 256))
def hard_triplets():
    return HardTriplets()


class MultiBox(nn.Module):
    """SSD's loss: hard negatives by rank."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(3, 16, 3, 4, 1), *(nn.Conv2d(16, 16, 3, 2, 1) for _ in range(3))])
        self.boxes, self.classes = nn.Conv2d(16, 4, 3, 1, 1), nn.Conv2d(16, 5, 3, 1, 1)

    def forward(self, x, places, labels):
        boxes, classes = [], []
        for layer in self.layers:
            x = F.relu(layer(x))
            boxes.append(self.boxes(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4))
            classes.append(self.classes(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 5))
        boxes, classes = torch.cat(boxes, 1), torch.cat(classes, 1)
        positive = labels > 0
        of_boxes = F.smooth_l1_loss(boxes[positive], places[positive], reduction="sum")
        of_classes = F.cross_entropy(classes.view(-1, 5), labels.view(-1), reduction="none").view(x.shape[0], -1)
        negative = of_classes.clone()
        negative[positive] = 0
        rank = negative.sort(1, descending=True)[1].sort(1)[1]
        hard = rank < 3 * positive.sum(1, keepdim=True)
        return (of_boxes + of_classes[positive | hard].sum()) / positive.sum().clamp(min=1)


@model("ssd-multibox", "torch", "x=f32[B,3,64,64]", "places=f32[B,340,4]", "labels=i64[B,340]", loss=own_loss)
def ssd_multibox():
    return MultiBox()


class Parametrized(nn.Module):
    """Weights computed by hooks and by parametrizations, old and new."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = parametrizations.spectral_norm(nn.Conv2d(3, 16, 3))
        self.second = parametrizations.weight_norm(nn.Conv2d(16, 16, 3))
        self.layers = nn.Sequential(
            *(parametrizations.orthogonal(nn.Linear(16, 16), orthogonal_map=name) for name in ("cayley", "householder", "matrix_exp")),
            nn.utils.spectral_norm(nn.Linear(16, 16)), nn.utils.weight_norm(nn.Linear(16, 10)),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(F.relu(self.second(F.leaky_relu(self.conv(x), 0.1))).mean((2, 3)))


@model("parametrized-weights", "torch", *IMAGES)
def parametrized_weights():
    return Parametrized()


class FakeQuantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 16, 3), nn.Linear(16, 10)
        self.register_buffer("scale", torch.full((16,), 0.1))
        self.register_buffer("zero", torch.zeros(16, dtype=torch.int32))

    def forward(self, x):
        weight = torch.fake_quantize_per_channel_affine(self.conv.weight, self.scale, self.zero, 0, -128, 127)
        x = F.conv2d(x, weight, self.conv.bias).relu().mean((2, 3))
        return self.linear(torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127))


@model("fake-quantized", "torch", *IMAGES)
def fake_quantized():
    return FakeQuantized()


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from torchvision.ops import DeformConv2d

        self.conv, self.offsets = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 27, 3, 1, 1)
        self.deformed, self.linear = DeformConv2d(16, 16, 3, padding=1), nn.Linear(784, 5)

    def forward(self, x, regions):
        from torchvision.ops import roi_align

        x = self.conv(x)
        offsets = self.offsets(x)
        x = self.deformed(x, offsets[:, :18], torch.sigmoid(offsets[:, 18:]))
        return self.linear(roi_align(x, regions, 7, 0.5).flatten(1))


@model("deformed-regions", "torchvision", "x=f32[B,3,64,64]", "regions=f32[4*B,5]", "y=i64[4*B]", loss=lambda m, x, regions, y: F.cross_entropy(m(x, regions), y))
def deformed_regions():
    return Regions()


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.out = nn.ModuleList(_mlp(64, 128, 64) for _ in range(3)), nn.Linear(64, 10)

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.out(x)


@model("checkpointed-in-code", "torch", "x=f32[B,64]", "y=i64[B]")
def checkpointed_in_code():
    return Checkpointed()


class Spectrogram(nn.Module):
    """To the spectrum and back, with a window shorter than a frame, and positions that the code makes on no device."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Sequential(nn.Conv1d(129, 129, 3, padding=1), nn.Sigmoid())

    def forward(self, x):
        window = torch.hann_window(200)
        spectrum = torch.stft(x, 256, 64, 200, window, normalized=True, return_complex=True)
        return torch.istft(spectrum * self.mask(spectrum.abs()), 256, 64, 200, window, normalized=True, length=x.shape[-1])


@model("spectral-mask", "torch", "x=f32[B,4096]", "y=f32[B,4096]", loss=F.l1_loss)
def spectral_mask():
    return Spectrogram()


class Quantiles(nn.Module):
    """What composite operators of few uses consist of."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        x = self.linear(x)
        low, high = x.quantile(0.1, dim=-1, keepdim=True), x.nanquantile(0.9, dim=1, keepdim=True)
        spread = torch.cov(x.flatten(0, 1).T) @ torch.kron(torch.eye(4, device=x.device), torch.eye(8, device=x.device))
        padded = F.pad((x - low) / (high - low + 1), (2, 2), mode="circular")
        return torch.trapezoid(padded, dim=-1).diff(dim=1).square().mean() + spread.trace()


@model("composites", "torch", "x=f32[B,16,32]", loss=own_loss)
def composites():
    return Quantiles()
