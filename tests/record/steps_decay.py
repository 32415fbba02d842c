"""More models of `steps.py`: weight decay under each optimizer of PyTorch that takes it, and smoothed labels."""

from __future__ import annotations

from steps_models import Model
from steps_optimizers import Mlp, Text

from torch import nn

# What steps.py calls them.
DECAYED = tuple(
    f"{name}_decay{how}" for name in ("sgd", "sgd_momentum", "adam", "adamw") for how in ("", "_fused", "_for_loop")
) + ("sgd_momentum_decay_nesterov",)

PRECISIONS = ("fp32", "amp_bf16", "amp_fp16", "bf16")


class Pixels(nn.Module):
    """Scores [batch, classes, height, width], as `cross_entropy` wants them."""

    def __init__(self) -> None:
        super().__init__()
        self.widen, self.classify = nn.Linear(3, 8), nn.Linear(8, 21)

    def forward(self, x):
        return self.classify(self.widen(x).relu()).permute(0, 3, 1, 2)


MODELS = {
    "decay_mlp": Model(Mlp, ["x=f32[B,48]", "y=f32[B,10]"], precisions=PRECISIONS, optimizers=DECAYED),
    "decay_text": Model(Text, ["x=i64[B,12]", "y=f32[B,12,5000]"], precisions=PRECISIONS, optimizers=DECAYED),
    "smoothed_classes": Model(
        Mlp, ["x=f32[B,48]", "y=i64[B]"], loss="cross_entropy", precisions=PRECISIONS, optimizers=("sgd", "sgd_smoothed")
    ),
    "smoothed_pixels": Model(
        Pixels,
        ["x=f32[B,16,16,3]", "y=i64[B,16,16]"],
        loss="cross_entropy",
        precisions=PRECISIONS,
        optimizers=("sgd", "sgd_smoothed"),
    ),
}
