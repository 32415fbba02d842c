"""Models of people's own that `steps.py` records: what they checkpoint, convert and switch off themselves."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from steps_models import Model
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, scale=None):
        y = self.down(F.gelu(self.up(self.norm(x))))
        return x + y if scale is None else x + y * scale


class Checkpointed(nn.Module):
    """Checkpoints blocks, or parts of a block's code; `keywords` are those of `checkpoint`."""

    def __init__(self, form: str = "blocks", width: int = 96, **keywords) -> None:
        super().__init__()
        self.form, self.keywords = form, keywords
        self.stem, self.head = nn.Linear(24, width), nn.Linear(width, 8)
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))

    def _pair(self, a, b, x):
        return a(b(x)), x.sum(-1, keepdim=True)

    def forward(self, x):
        x = self.stem(x)
        if self.form == "pairs":
            first, second = self.blocks[:2], self.blocks[2:]
            for a, b in (first, second):
                x, total = checkpoint(self._pair, a, b, x, **self.keywords)
                x = x * total
        elif self.form == "scaled":
            scale = x.mean(-1, keepdim=True)
            for block in self.blocks:
                x = checkpoint(block, x, scale, **self.keywords)
        else:
            for block in self.blocks:
                x = checkpoint(block, x, **self.keywords)
        return self.head(x)


def chunked_loss(model, x, y, keywords):
    """A loss in chunks of what is one row short of the batch's, each under a checkpoint."""
    rows, targets = model(x)[:, 1:].flatten(0, 1), y[:, 1:].flatten(0, 1)

    def of_chunk(rows, targets):
        return F.mse_loss(rows.float(), targets, reduction="sum")

    parts = zip(rows.chunk(4), targets.chunk(4), strict=True)
    return sum(checkpoint(of_chunk, a, b, **keywords) for a, b in parts) / targets.numel()


class InHalf(nn.Module):
    """Parameters in bfloat16, but for norms and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(24, 96).bfloat16(), nn.LayerNorm(96), nn.Linear(96, 96).bfloat16()
        self.head = nn.Linear(96, 8)

    def forward(self, x):
        x = F.gelu(self.first(x.bfloat16()))
        x = self.second(self.norm(x.float()).to(x.dtype))
        return self.head(x.float())


class WithoutAutocast(nn.Module):
    """A norm and a gate that switch autocast off, by a decorator and by a block of code."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.gate = nn.Linear(24, 96), nn.Linear(96, 96), nn.Linear(96, 96)
        self.weight = nn.Parameter(torch.ones(96))

    @torch.autocast(device_type="cuda", enabled=False)
    def norm(self, x):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight

    def forward(self, x):
        x = self.second(self.norm(self.first(x)))
        with torch.amp.autocast(device_type=x.device.type, enabled=False):
            x = x.float() * self.gate(x.float()).sigmoid()
        return x


class Averaged(nn.Module):
    """Keeps a running average of its parameters by `torch._foreach_*`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 96), nn.GELU(), nn.Linear(96, 8))
        for name, parameter in self.net.named_parameters():
            self.register_buffer("mean_" + name.replace(".", "_"), parameter.detach().clone())

    def forward(self, x):
        means, own = list(self.buffers()), list(self.net.parameters())
        with torch.no_grad():
            torch._foreach_lerp_(means, own, 0.01)
        return self.net(x)


class Routed(nn.Module):
    """Writes a tensor's number to the places that a router chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(24, 8), nn.Linear(24, 8)

    def forward(self, x):
        scores = self.router(x)
        chosen = scores.topk(2, dim=-1).indices
        mask = torch.zeros_like(scores).scatter_(-1, chosen, value=torch.ones((), device=x.device))
        return self.experts(x) * mask * scores.softmax(-1)


_ROWS, _BOTH = ["x=f32[B,64,24]", "y=f32[B,64,8]"], ("fp32", "amp_bf16")

MODELS: dict[str, Model] = {}
for name, keywords in (("checkpoint", {"use_reentrant": False}), ("reentrant", {"use_reentrant": True})):
    for form in ("blocks", "pairs", "scaled"):
        # Two results of a reentrant checkpoint go in another order, which counts without autocast alone.
        kinds = ("amp_bf16",) if (name, form) == ("reentrant", "pairs") else _BOTH
        MODELS[f"{name}-{form}"] = Model(partial(Checkpointed, form, **keywords), _ROWS, precisions=kinds)
    MODELS[f"{name}-loss"] = Model(
        partial(nn.Linear, 24, 8), _ROWS, lambda model, x, y, of=keywords: chunked_loss(model, x, y, of), batches=(3, 4)
    )
MODELS |= {
    "in-half": Model(InHalf, _ROWS),
    "without-autocast": Model(WithoutAutocast, ["x=f32[B,64,24]", "y=f32[B,64,96]"], precisions=_BOTH),
    "averaged": Model(Averaged, _ROWS),
    "routed": Model(Routed, _ROWS),
}
