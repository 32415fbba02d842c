"""More models of `steps.py`: what `check_rules.py` has found in exported graphs."""

from __future__ import annotations

import torch
from torch import nn

from steps_models import Model


class Transposed(nn.Module):
    """Weights that a product reads transposed, as Falcon's linears do."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.first = nn.Parameter(torch.empty(24, 16))
        self.second = nn.Parameter(torch.empty(8, 24))

    def forward(self, x):
        if self.form == "right":
            return torch.relu(x @ self.first.T) @ self.second.T
        if self.form == "flat":
            return torch.mm(torch.relu(torch.mm(x.flatten(0, 1), self.first.t())), self.second.t())
        if self.form == "left":
            # Both factors lie by columns.
            return torch.mm(self.second, torch.relu(torch.mm(self.first, x.flatten(0, 1).t()))).t()
        return torch.mm(self.first.t().contiguous().t().relu(), x.flatten(0, 1).t()).t()


MODELS = {
    f"transposed_{form}": Model(lambda form=form: Transposed(form), ["x=f32[B,6,16]", f"y=f32[{shape}]"], precisions=("fp32", "amp_bf16"))
    for form, shape in (("right", "B,6,8"), ("flat", "6*B,8"), ("left", "6*B,8"), ("made", "6*B,24"))
}
