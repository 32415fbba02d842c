"""More models of `steps.py`: parameters of the shapes that optimizers tell apart, under each optimizer that keeps less than AdamW does.

Those of bitsandbytes and torchao want a GPU: a stub loads no library of kernels and runs none that Triton makes.
"""

from __future__ import annotations

import torch
from torch import nn

from steps_models import Model

# What steps.py calls them: adafactor_foreach is adafactor with foreach=True.
FACTORED = ("adafactor", "adafactor_foreach", "adafactor_transformers")
BLOCKWISE = ("adamw_8bit", "paged_adamw_8bit")
COMPILED = ("adamw_8bit_torchao",)


class Mlp(nn.Module):
    """Matrices of fewer than 4,096 elements, of so many, and of more, some of which blocks of 256 do not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 515), nn.ReLU(), nn.Linear(515, 512), nn.ReLU(), nn.Linear(512, 10)
        )

    def forward(self, x):
        return self.layers(x)


class Text(nn.Module):
    """An embedding, a block of attention with its norms, and a head that shares the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5000, 128)
        self.first, self.last = nn.LayerNorm(128), nn.LayerNorm(128)
        self.attention, self.back = nn.Linear(128, 384), nn.Linear(128, 128)
        self.widen, self.narrow = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x):
        hidden = self.tokens(x)
        batch, length, _ = hidden.shape
        query, key, value = self.attention(self.first(hidden)).view(batch, length, 3, 4, 32).permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-1, -2) * 32**-0.5).softmax(-1)
        hidden = hidden + self.back((scores @ value).transpose(1, 2).reshape(batch, length, 128))
        hidden = hidden + self.narrow(nn.functional.gelu(self.widen(self.last(hidden))))
        return hidden @ self.tokens.weight.T


class Odd(nn.Module):
    """Parameters of no dimension, of three, and one long vector; perhaps a matrix that lies by columns."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.stack = nn.Parameter(torch.empty(6, 32, 40))
        self.long = nn.Parameter(torch.ones(131072))
        self.turned = nn.Parameter(torch.empty(72, 128).t() if turned else torch.empty(128, 72))

    def forward(self, x):
        hidden = torch.einsum("bi,kij->bkj", x, self.stack).mean(1)
        hidden = torch.cat([hidden, hidden, hidden, x], 1)[:, :128] @ self.turned
        return hidden * self.scale * self.long[:72]


PRECISIONS = ("fp32", "amp_bf16", "amp_fp16", "bf16")
EVERY = FACTORED + BLOCKWISE + COMPILED

MODELS = {
    "opt_mlp": Model(Mlp, ["x=f32[B,48]", "y=f32[B,10]"], precisions=PRECISIONS, optimizers=EVERY),
    "opt_text": Model(Text, ["x=i64[B,12]", "y=f32[B,12,5000]"], precisions=PRECISIONS, optimizers=EVERY),
    "opt_odd": Model(lambda: Odd(False), ["x=f32[B,32]", "y=f32[B,72]"], precisions=("fp32", "bf16"), optimizers=EVERY),
    "opt_turned": Model(lambda: Odd(True), ["x=f32[B,32]", "y=f32[B,72]"], precisions=("fp32", "bf16"), optimizers=FACTORED),
}
