"""Look-ups, what writes to places, sorts, choices and running sums."""

import torch
import torch.nn.functional as F
from cases import BATCH, case
from torch import nn


class Looked(nn.Module):
    """Functions of a parameter, of indices from the front, and of others from the end; each place of a row of a result has a weight."""

    def __init__(self, shape, functions, low, high):
        super().__init__()
        self.functions = functions
        self.w = nn.Parameter(torch.rand(shape) * (high - low) + low)
        self.register_buffer("weights", torch.rand(160) * 2 - 1)

    def forward(self, index, back):
        total = 0.0
        for function in self.functions:
            y = function(self.w, index, back)
            weights = self.weights[: y[0].numel()].view(y.shape[1:])
            total = total + (y * y * weights + y * weights).sum()
        return total


def looked(name, shape, functions, *, below, index=(4,), low=-1.0, high=1.0, **options):
    def build():
        front, back = torch.randint(0, below, (BATCH, *index)), torch.randint(-below, 0, (BATCH, *index))
        return Looked(shape, functions, low, high), {"index": front, "back": back}

    case(name, **options)(build)


for dtype in (torch.float32, torch.bfloat16):
    kind = "" if dtype == torch.float32 else "-bf16"
    looked(f"index{kind}", (5, 6, 3), [
        lambda w, i, j: w[i], lambda w, i, j: w[:, j], lambda w, i, j: w[i, j], lambda w, i, j: w[i, :, j],
        lambda w, i, j: w.transpose(0, 1)[i, :, 1:], lambda w, i, j: torch.index_select(w, 1, i[0]), lambda w, i, j: w.index_select(-1, i[1]) * w[0, 0, 0],
    ], below=3, dtype=dtype)  # fmt: skip

looked("index-put", (5, 6), [
    lambda w, i, j: (w * 0.5).index_put((i[0], j[0]), w[0, :4], accumulate=True),
    lambda w, i, j: (w * 1.0).index_put_((i,), (w[0] * 2.0), accumulate=True),
    lambda w, i, j: (w * 1.0).index_put_((torch.arange(3, device=i.device),), w[:3] * w[1:4]),
    lambda w, i, j: (w * 2.0).index_add(0, i[0], w[:4]), lambda w, i, j: (w * 2.0).index_add(1, i[1], w[:, 1:5], alpha=0.5),
], below=5)  # fmt: skip

looked("scatter", (4, 6), [
    lambda w, i, j: torch.gather(w, 1, i[:2, :2]), lambda w, i, j: w.gather(0, i[:, :1].expand(-1, 6)), lambda w, i, j: torch.take_along_dim(w, i[:1], 1),
    lambda w, i, j: (w * 1.0).scatter(1, i[:2, :1], 0.25), lambda w, i, j: (w * 1.0).scatter(0, torch.arange(3, device=i.device).unsqueeze(1).expand(3, 5), w[:3, 1:]),
    lambda w, i, j: (w * 0.5).scatter_add(1, i[:2], w[:2, :4]), lambda w, i, j: (w * 0.5).scatter_add_(0, i[0].unsqueeze(1).expand(4, 6), w),
], below=4)  # fmt: skip

looked("tables", (7, 4), [
    lambda w, i, j: F.embedding(i, w), lambda w, i, j: F.embedding(i[:, 1:], w, padding_idx=2),
], below=7)  # fmt: skip

for dtype in (torch.float32, torch.bfloat16):
    kind = "" if dtype == torch.float32 else "-bf16"
    looked(f"orders{kind}", (5, 7), [
        lambda w, i, j: w.cumsum(1), lambda w, i, j: w.T.cumsum(-1), lambda w, i, j: w.sort(dim=-1)[0], lambda w, i, j: w.sort(dim=0, descending=True)[0],
        lambda w, i, j: w.T.topk(3, dim=1)[0], lambda w, i, j: w.topk(2, dim=0, largest=False)[0], lambda w, i, j: torch.tril(w, 1), lambda w, i, j: torch.triu(w.T, -2),
        lambda w, i, j: torch.roll(w, (2, -1), (0, 1)), lambda w, i, j: torch.roll(w, 3), lambda w, i, j: w.flip(0, 1), lambda w, i, j: w.repeat(2, 1, 3), lambda w, i, j: torch.tile(w, (2,)),
        lambda w, i, j: w.repeat_interleave(2, dim=1), lambda w, i, j: w.gather(1, w.detach().argsort(dim=-1)), lambda w, i, j: w.T[F.one_hot(i, 5).cumsum(0)[:, 0]],
    ], below=5, dtype=dtype)  # fmt: skip

looked("scattered", (4, 6), [
    lambda w, i, j: (w * 1.0).index_copy(0, torch.arange(2, device=i.device), w[2:] * w[:2]), lambda w, i, j: (w * 1.0).index_fill(1, i[0], 0.5),
    lambda w, i, j: torch.take(w, i), lambda w, i, j: (w * 1.0).put_(i[:2], w[:2, :4], accumulate=True), lambda w, i, j: (w * 1.0).put_(torch.arange(4, device=i.device), w[1, :4] * 2.0),
    lambda w, i, j: torch.select_scatter(w, w[0] * 2.0, 0, 2), lambda w, i, j: torch.slice_scatter(w, w[:, 1:4] * w[:, :3], 1, 0, 6, 2), lambda w, i, j: torch.diagonal_scatter(w, w[:, 0] * 3.0),
    lambda w, i, j: w.unfold(1, 3, 2), lambda w, i, j: w.unfold(0, 2, 2), lambda w, i, j: (w * 2.0).as_strided((3, 4), (2, 3), 1), lambda w, i, j: (w * 2.0).as_strided((2, 3), (6, 2), 1),
], below=4)  # fmt: skip

looked("scatter-reduce", (4, 6), [
    lambda w, i, j: (w * 1.0).scatter_reduce(0, i[0].unsqueeze(1).expand(4, 6), w * 0.5, "sum"), lambda w, i, j: w.scatter_reduce(1, i[:2], w[:2, :4] * 2.0, "amax"),
    lambda w, i, j: w.scatter_reduce(1, i[:2], w[:2, :4] * 2.0, "amin", include_self=False), lambda w, i, j: w.scatter_reduce(1, i[:2], w[:2, :4] * 2.0, "mean", include_self=False),
    lambda w, i, j: w.scatter_reduce(1, i[:2], w[:2, :4] * 2.0, "mean"), lambda w, i, j: w.scatter_reduce(1, i[:2], w[2:, :4] * 2.0, "prod"),
], below=4)  # fmt: skip

looked("bags", (7, 4), [
    lambda w, i, j: F.embedding_bag(i, w, mode="mean"), lambda w, i, j: F.embedding_bag(i, w, mode="sum", padding_idx=1), lambda w, i, j: F.embedding_bag(i, w, mode="max"),
    lambda w, i, j: F.embedding_bag(i, w * 2.0, mode="sum", per_sample_weights=w[0].expand(i.shape)),
], below=7)  # fmt: skip


class Masked(nn.Module):
    """What truth values choose: as many as there are at most, so that lengths are those of the memory rule."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(5, 6) * 2 - 1)
        self.register_buffer("weights", torch.rand(60) * 2 - 1)
        self.register_buffer("all", torch.ones(5, 6, dtype=torch.bool))
        self.register_buffer("some", torch.rand(5, 6) > 0.5)
        self.register_buffer("sorted", torch.arange(4.0) / 2 - 0.75)
        self.register_buffer("middles", torch.arange(5.0))
        self.register_buffer("twice", torch.tensor([2, 0, 1, 3, 1]))
        self.register_buffer("whole", torch.tensor([4, 1, 0, 3, 2]))

    def forward(self, x):
        w = self.w * 1.0
        places = torch.nonzero(self.all)
        found = torch.searchsorted(self.sorted, self.w.detach()), torch.bucketize(self.w.detach(), self.sorted, right=True)
        results = [
            w[self.all], torch.masked_select(w, self.all), w[places[:, 0], places[:, 1]] * 2.0, (w * 1.0).masked_scatter(self.some, self.w.flip(0)),
            self.w.index_put((self.some,), w[0, 0]), torch.repeat_interleave(w, self.twice, dim=0, output_size=7),
            w[found[0][:, 0]], self.middles[found[1]] * w, torch.isin(self.whole, self.twice).to(w.dtype) * w[:, 0], torch.histc(self.w.detach(), 5, -1, 1) * w[:, 0],
            torch.histc(self.w.detach(), 5) * w[:, 1], torch.bincount(self.whole, minlength=5).to(w.dtype) * w[:, 2], torch.cumprod(w, 1), torch.cummax(w, 0)[0], torch.cummin(w, 1)[0],
        ]  # fmt: skip
        distinct, inverse, counts = torch.unique(self.whole, return_inverse=True, return_counts=True)
        results += [w[distinct], w[inverse], counts.to(w.dtype)[:5] * w[:, 3]]
        total = (x * x).sum()
        for y in results:
            total = total + (y.flatten() * self.weights[: y.numel()]).sum() + (y * y).sum()
        return total


@case("masks")
def masks():
    return Masked(), {"x": torch.randn(BATCH, 2)}


class Sampled(nn.Module):
    def __init__(self):
        super().__init__()
        self.planes = nn.Parameter(torch.rand(1, 2, 4, 5) * 2 - 1)
        self.grid = nn.Parameter(torch.rand(1, 3, 4, 2) * 2.6 - 1.3)
        self.theta = nn.Parameter(torch.rand(1, 2, 3))
        self.volume = nn.Parameter(torch.rand(1, 2, 2, 3, 4))
        self.places = nn.Parameter(torch.rand(1, 2, 3, 2, 3) * 2.6 - 1.3)
        self.register_buffer("weights", torch.rand(30) * 2 - 1)

    def forward(self, x):
        batch = x.shape[0]
        planes, grid = self.planes * x.view(batch, 1, 1, 1), self.grid.expand(batch, -1, -1, -1)
        results = [
            F.grid_sample(planes, grid, mode=mode, padding_mode=padding, align_corners=aligned)
            for mode, padding, aligned in [
                ("bilinear", "zeros", False), ("bilinear", "border", True), ("bilinear", "reflection", False), ("nearest", "zeros", True), ("bicubic", "border", False), ("bicubic", "zeros", True),
            ]
        ]  # fmt: skip
        results.append(F.grid_sample(self.volume.expand(batch, -1, -1, -1, -1), self.places.expand(batch, -1, -1, -1, -1), padding_mode="reflection", align_corners=True))
        for aligned in (True, False):
            results.append(F.grid_sample(planes, F.affine_grid(self.theta.expand(batch, 2, 3), (batch, 2, 3, 4), align_corners=aligned), align_corners=aligned))
        total = 0.0
        for y in results:
            total = total + (y * self.weights[: y[0].numel()].view(y.shape[1:]) + y * y).sum()
        return total


@case("sampling")
def sampling():
    return Sampled(), {"x": torch.rand(BATCH, 1) + 0.5}
