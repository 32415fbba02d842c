"""The models of `steps.py` for what is written in place into parts of a tensor, with gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from steps_models import Model


class Form(nn.Module):
    """A function of features [B, 12, 24] between two layers; its own loss."""

    def __init__(self, form) -> None:
        super().__init__()
        self.form = form
        self.first = nn.Linear(16, 24)
        self.second = nn.Linear(16, 24)
        self.bias = nn.Parameter(torch.randn(8))
        self.complex = nn.Parameter(torch.randn(5, 24, dtype=torch.cfloat))

    def forward(self, x):
        h = self.form(self, self.first(x), self.second(x))
        return (h * h).mean()


def into_zeros(m, h, g):
    out = torch.zeros_like(h)
    out[:, :5] = h[:, :5].sin()
    return out


def into_zeros_twice(m, h, g):
    out = torch.zeros_like(h)
    out[:, :5] = h[:, :5].sin()
    out[:, 5:] = g[:, 5:].sin()
    return out


def step_by_step(m, h, g):
    out, state = torch.zeros_like(h), 0
    for t in range(h.shape[1]):
        state = state + h[:, t].exp() * g[:, t]
        out[:, t] = state
    return out


def into_made(m, h, g):
    h = h * 2
    h[:, :5] = g[:, :5].sin()
    return h


def into_result(m, h, g):
    h[..., 3:] = g[..., 3:]
    return h.exp()


def added(m, h, g):
    h = h * 2
    h[:, :5] += g[:, :5]
    return h.exp()


def multiplied(m, h, g):
    h = h * 2
    h.select(1, 3).mul_(g[:, 0])
    return h.exp()


def view_read_after(m, h, g):
    h = h * 2
    v = h[:, 2:]
    h[:, :2] = g[:, :2]
    return v.exp().sum() + h.sin().sum()


def written_view_read(m, h, g):
    h = h * 2
    v = h[:, 2:]
    v.mul_(g[:, 2:])
    return v.exp().sum() + h.sin()


def base_written(m, h, g):
    h = h * 2
    v = h[:, 2:5]
    h.mul_(g)
    return v.exp().sum() + h.sin()


def base_relu(m, h, g):
    h = h * 2
    v = h.transpose(1, 2)
    h.relu_()
    return v.exp() * g.transpose(1, 2)


def view_relu(m, h, g):
    return F.relu_((h * 2).view(-1, 24)) * g.view(-1, 24)


def view_of_view(m, h, g):
    h = h * 2
    v = h[:, 2:].transpose(1, 2)
    v[:, :3, 1] = g[:, 0, :3]
    return h.exp()


def transposed(m, h, g):
    h = (h * 2).transpose(1, 2)
    h[:, :4] = g.transpose(1, 2)[:, :4]
    return h.exp()


def transposed_base(m, h, g):
    h = (h * 2).transpose(1, 2).sin()
    h[:, :4] = g.transpose(1, 2)[:, :4]
    return h.exp()


def broadcast(m, h, g):
    h = h * 2
    h[..., :8] = m.bias
    return h.exp()


def broadcast_added(m, h, g):
    h = h * 2
    h[..., :8].add_(m.bias)
    return h.exp()


def number(m, h, g):
    h = h * 2
    h[:, :3] = 0.0
    return h.sin()


def zeroed(m, h, g):
    h = h * 2
    h[:, 0].zero_()
    h[:, 3:].fill_(2.0)
    return h.sin()


def masked(m, h, g):
    h = h * 2
    h[:, :6].masked_fill_(g[:, :6] > 0, 0.0)
    return h.sin()


def constant(m, h, g):
    mask = torch.zeros_like(h[..., 0])
    mask[:, 3:] = 1.0
    return h * mask[..., None] + g


def without_gradients(m, h, g):
    h = h * 2
    v = h[:, 2:5]
    with torch.no_grad():
        h.clamp_(-1, 1)
    return v.exp().sum() + h.sin() + g


def dropped(m, h, g):
    return F.dropout(h.transpose(1, 2), 0.5, True, inplace=True) * g.transpose(1, 2)


def wide(m, h, g):
    out = torch.zeros(h.shape, device=h.device, dtype=torch.float64)
    out[:, :5] = h[:, :5]
    return out + g


def narrow(m, h, g):
    out = torch.zeros(h.shape, device=h.device, dtype=torch.float32)
    out[:, :5] = m.first(g[..., :16])[:, :5]
    return out


def spectrum(m, h, g):
    f = torch.complex(h, g)
    out = torch.zeros(h.shape[0], h.shape[1] // 2 + 1, 24, device=h.device, dtype=torch.cfloat)
    out[:, :5] = torch.einsum("bki,ki->bki", f[:, :5], m.complex)
    return out.abs()


def real_into_complex(m, h, g):
    out = torch.zeros(h.shape, device=h.device, dtype=torch.cfloat)
    out[:, :5] = h[:, :5]
    return out.abs() + g


def real_part(m, h, g):
    z = torch.complex(h, g)
    z.real.mul_(2.0)
    return z.abs()


def looked_up(m, h, g):
    h = h * 2
    index = torch.arange(4, device=h.device)
    h[:, index] = g[:, :4]
    return h.sin()


def looked_up_view(m, h, g):
    h = h * 2
    index = torch.arange(4, device=h.device)
    h[..., :12][:, index] = g[:, :4, :12]
    return h.sin()


def summed_up(m, h, g):
    h = h * 2
    index = torch.arange(4, device=h.device)
    h[..., :12].index_add_(1, index, g[:, :4, :12])
    return h.sin()


def scattered(m, h, g):
    h = h * 2
    h[..., :12].scatter_(1, torch.zeros(h.shape[0], 4, 12, dtype=torch.int64, device=h.device), g[:, :4, :12])
    return h.sin()


def unused(m, h, g):
    h = h * 2
    old = h.exp()
    h[:, :5] = g[:, :5]
    return old


def overwritten(m, h, g):
    h = h * 2
    h[:] = g
    return h.exp()


def in_two_dimensions(m, h, g):
    out = h.new_zeros(h.shape[0], 14, 26)
    out[:, 1:-1, 1:-1] = h.sin()
    return out[:, 2:, 2:] * g


def of_a_diagonal(m, h, g):
    h = h * 2
    h.diagonal(dim1=1, dim2=2).mul_(2.0)
    return h.sin()


def divided(m, h, g):
    h = h * 2
    h[:, 1:].div_(g[:, 1:].exp())
    return h.sin()


def of_itself(m, h, g):
    h = h * 2
    h[:, 1:] = h[:, :-1].clone()
    return h.exp()


def normed(m, h, g):
    return F.leaky_relu_(F.instance_norm(h.transpose(1, 2)), 0.1) * g.transpose(1, 2)


def normed_of_linear(m, h, g):
    return F.relu_(h) * F.relu(F.instance_norm(g.transpose(1, 2)), inplace=True).transpose(1, 2)


FORMS = (
    into_zeros, into_zeros_twice, step_by_step, into_made, into_result, added, multiplied, view_read_after, written_view_read, base_written,
    base_relu, view_relu, view_of_view, transposed, transposed_base, broadcast, broadcast_added, number, zeroed, masked, constant, without_gradients,
    dropped, wide, narrow, spectrum, real_into_complex, real_part, looked_up, looked_up_view, summed_up, scattered, unused, overwritten,
    in_two_dimensions, of_a_diagonal, divided, of_itself, normed, normed_of_linear,
)  # fmt: skip

# What autocast refuses, or where it changes nothing.
IN_FLOAT32 = (
    "divided", "looked_up", "looked_up_view", "summed_up", "scattered", "spectrum", "real_into_complex", "real_part", "wide", "constant", "number", "zeroed", "masked", "unused",
)  # fmt: skip

MODELS = {
    f"write_{form.__name__}": Model(
        lambda form=form: Form(form), ["x=f32[B,12,16]"], loss="model", batches=(7,),
        precisions=("fp32",) if form.__name__ in IN_FLOAT32 else ("fp32", "amp_bf16"),
    )
    for form in FORMS
}  # fmt: skip
