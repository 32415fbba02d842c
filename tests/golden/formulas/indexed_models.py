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
    lambda w, i, j: torch.gather(w, 1, i[:, :2]), lambda w, i, j: w.gather(0, i[:, :1].expand(-1, 6)), lambda w, i, j: torch.take_along_dim(w, i[:1], 1),
    lambda w, i, j: (w * 1.0).scatter(1, i[:, :1], 0.25), lambda w, i, j: (w * 1.0).scatter(0, torch.arange(3, device=i.device).unsqueeze(1).expand(3, 5), w[:3, 1:]),
    lambda w, i, j: (w * 0.5).scatter_add(1, i[:2], w[:3, :4]), lambda w, i, j: (w * 0.5).scatter_add_(0, i[0].unsqueeze(1).expand(4, 6), w),
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
