"""The models of `steps.py` for sizes, look-ups, products over named dimensions and attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from steps_models import Model


class Form(nn.Module):
    """A function of features [B, 12, 24] and places [B, 12] below 12, between two layers; its own loss."""

    def __init__(self, form, width: int = 24) -> None:
        super().__init__()
        self.form = form
        self.first = nn.Linear(16, width)
        self.table = nn.Parameter(torch.randn(12, 24))
        self.weight = nn.Parameter(torch.randn(24, 24))
        self.bias = nn.Parameter(torch.randn(24))
        self.core = nn.Parameter(torch.randn(24, 24, 24))

    def forward(self, x, i):
        h = self.first(x)
        return self.form(self, h, i).mean()


def form(function, **options) -> Model:
    options = {"batches": (7,), **options}
    return Model(lambda: Form(function), ["x=f32[B,12,16]", "i=i64[B,12]"], loss="model", **options)


def windows(m, h, i):
    b, n, c = h.shape
    parts = h.view(b, 3, 4, c).transpose(1, 2).reshape(b * 4, 3, c)
    mixed = parts @ m.weight
    return mixed.view(b, 4, 3, c).sum((1, 2)).view(b * c)


SIZES = {
    "arange": lambda m, h, i: h[torch.arange(h.shape[0], device=h.device), i[:, 0]]
    + h[torch.arange(0, h.shape[0], device=h.device)[:, None], i].sum(1),
    "arange_scaled": lambda m, h, i: h.reshape(-1, 24)[torch.arange(0, h.shape[0] * 12, 12, device=h.device)]
    + torch.arange(2 * h.shape[0] + 1, device=h.device)[1 : h.shape[0] + 1, None],
    "windows": windows,
    "folds": lambda m, h, i: m.first.weight.sum() * h.unflatten(0, (h.shape[0], 1)).reshape(h.shape[0] * 3, 96).view(-1, 24),
    "numbers": lambda m, h, i: h / h.shape[0] + h.sum() / h.numel() + 0.5 * h.shape[0] * h,
    "numbers_float": lambda m, h, i: h * (1.0 / h.shape[0]) + h ** 2 / (h.shape[0] ** 0.5),
    "split_sizes": lambda m, h, i: torch.cat([part.exp() for part in torch.cat([h, h]).split([h.shape[0], h.shape[0]])]),
    "padded": lambda m, h, i: F.pad(h, (0, 0, 0, 0, 0, 3))[3:],
    "full": lambda m, h, i: h + torch.full((h.shape[0], 1, 1), 1.0 / h.shape[0], device=h.device) + torch.zeros(h.shape[0] * 2, 12, 1, device=h.device)[: h.shape[0]],
    "labels": lambda m, h, i: F.cross_entropy(h.mean(1) @ h.sum(1).T, torch.arange(h.shape[0], device=h.device)),
    "repeat": lambda m, h, i: h.mean(1).repeat(h.shape[0], 1).view(h.shape[0], h.shape[0], 24) - h.mean(1)[:, None],
    "expanded": lambda m, h, i: m.table[None].expand(h.shape[0], -1, -1) * h,
    "narrowed": lambda m, h, i: h.narrow(0, 0, h.shape[0] // 2 + 1).exp(),
    "stacked_loop": lambda m, h, i: torch.stack([h[0] * 2, h[1]]),
}

LOOKUPS = {
    "fancy_none": lambda m, h, i: h[None, :, i[0]][0],
    "index_copy": lambda m, h, i: h.index_copy(1, i[0, :3], h[:, :3] * 2),
    "index_fill": lambda m, h, i: h.index_fill(1, i[0, :3], 0.0) * h,
    "index_add_scaled": lambda m, h, i: h.index_add(1, i[0, :3], h[:, :3].exp(), alpha=2),
    "take": lambda m, h, i: h.take(i) + h.take(i[0])[None],
    "scatter_reduce_sum": lambda m, h, i: torch.zeros_like(h).scatter_reduce(1, i[:, :, None].expand_as(h), h, "sum"),
    "scatter_reduce_mean": lambda m, h, i: torch.zeros_like(h).scatter_reduce(1, i[:, :, None].expand_as(h), h, "mean", include_self=False),
    "scatter_reduce_amax": lambda m, h, i: torch.zeros_like(h).scatter_reduce(1, i[:, :, None].expand_as(h), h, "amax", include_self=False),
    "scatter_reduce_amax_self": lambda m, h, i: h.exp().scatter_reduce(1, i[:, :, None].expand_as(h), h, "amax"),
    "scatter_reduce_prod": lambda m, h, i: torch.ones_like(h).scatter_reduce(1, i[:, :, None].expand_as(h), h, "prod"),
    "scatter_reduce_": lambda m, h, i: h.new_zeros(h.shape).scatter_reduce_(1, i[:, :, None].expand_as(h), h, "mean"),
    "scatter_add_part": lambda m, h, i: h.scatter_add(1, i[:, :3, None].expand(-1, -1, 24), h[:, :3] * 2),
    "select_scatter": lambda m, h, i: h.select_scatter(h[:, 0] * 2, 1, 3) + h.slice_scatter(h[:, :4].exp(), 1, 2, 6),
    "diagonal_scatter": lambda m, h, i: h[:, :, :12].diagonal_scatter(h[:, :, 0] * 2, 0, 1, 2).exp(),
    "diagonals": lambda m, h, i: h.diagonal(0, 1, 2).sum() + torch.diag_embed(h[:, 0]).sum() + torch.diag(m.bias).sum() + torch.diagonal(m.weight).exp().sum(),
    "windows": lambda m, h, i: h.unfold(1, 4, 2).exp() ,
    "moved": lambda m, h, i: h.movedim((0, 1), (1, 0)).exp() + torch.moveaxis(h, 0, 1),
    "parts": lambda m, h, i: torch.hstack([p.exp() for p in h.tensor_split(5, 1)]) + torch.cat(h.unbind(1)).view(-1, 12, 24)
    + torch.cat([p * 2 for p in h.tensor_split((3, 7), 1)], 1) + torch.cat(h.split_with_sizes([5, 7], 1), 1) + torch.cat(h.chunk(5, 1), 1),
    "stacks": lambda m, h, i: torch.vstack([h, h]).sum() + torch.dstack([h, h]).sum() + torch.column_stack([m.weight, m.weight]).sum() + torch.cat(torch.hsplit(h, 3), 1).sum() + torch.cat(torch.dsplit(h, 3), 1).sum() + torch.cat(torch.vsplit(m.table, 3), 1).sum(),
    "searches": lambda m, h, i: h + torch.searchsorted(m.bias.detach().abs().cumsum(0), h.detach())
    + torch.bucketize(h.detach(), m.bias.detach().abs().cumsum(0)) + torch.isin(i, i[0, :3])[:, :, None],
    "histograms": lambda m, h, i: h * torch.histc(h.detach(), 10, 0, 1).sum() + torch.bincount(i.reshape(-1), minlength=12)[None, :, None],
    "repeat_times": lambda m, h, i: h.repeat_interleave(torch.full((12,), 2, device=h.device), 1, output_size=24),
    "narrow_types": lambda m, h, i: h[:, i[0].int()] + h.index_select(1, i[0].int()) + F.embedding(i.int(), m.table),
    "embedding_padding": lambda m, h, i: F.embedding(i, m.table, padding_idx=0) + h,
    "bag_sum": lambda m, h, i: F.embedding_bag(i, m.table, mode="sum")[:, None] + h,
    "bag_mean": lambda m, h, i: F.embedding_bag(i, m.table, mode="mean")[:, None] + h,
    "bag_max": lambda m, h, i: F.embedding_bag(i, m.table, mode="max")[:, None] + h,
    "bag_weighted": lambda m, h, i: F.embedding_bag(i, m.table, mode="sum", per_sample_weights=h[:, :, 0])[:, None] + h,
    "bag_offsets": lambda m, h, i: F.embedding_bag(i.reshape(-1), m.table, torch.arange(0, h.shape[0] * 12, 12, device=h.device), mode="mean")[:, None] + h,
    "gather_narrow": lambda m, h, i: h.gather(1, i[:, :3, None].expand(-1, -1, 24)),
    "put_inside": lambda m, h, i: h.index_put((i[:, :3] * 0, i[:, :3]), h[:, :3] * 2) + h.index_put((i[:, :3] * 0, i[:, :3]), h[:, :3] * 2, accumulate=True),
    "put_": lambda m, h, i: h.clone().put_(i, h[:, :, 0], accumulate=True),
    "roll_index": lambda m, h, i: h[:, torch.arange(12, device=h.device).roll(1)],
}


# Of data: a stub finds nothing, so none of these rows exist there.
CHOSEN = {
    "mask_rows": lambda m, h, i: h[i > 3].exp().sum() + h.sum(),
    "mask_nonzero": lambda m, h, i: h.view(-1, 24)[(i > 3).view(-1).nonzero()[:, 0]].exp().sum() + h.sum(),
    "mask_where": lambda m, h, i: experts(m, h, i),
    "masked_select": lambda m, h, i: h.masked_select((i > 3)[:, :, None]).exp().sum() + h.sum(),
    "mask_assign": lambda m, h, i: mask_assigned(m, h, i),
    "unique": lambda m, h, i: m.table[i.unique().clamp(max=11)].sum() + h.sum(),
}


def experts(m, h, i):
    flat = h.view(-1, 24)
    out = torch.zeros_like(flat)
    for expert in range(3):
        rows = torch.where(i.view(-1) % 3 == expert)[0]
        out = out.index_add(0, rows, F.gelu(flat[rows] * m.core[expert, 0]))
    return out


def mask_assigned(m, h, i):
    out = torch.zeros_like(h)
    out[i > 3] = h[i > 3] * 2
    out[i < 2] = 1.0
    return out


EQUATIONS = {
    "scores": ("bnd,bmd->bnm", "hh"), "linear": ("bnd,df->bnf", "hw"), "turn": ("b n d -> b d n", "h"), "total": ("bnd->bn", "h"),
    "dots": ("bnd,bnd->bn", "hh"), "stacked": ("...nd,...md->...nm", "hh"), "three": ("bnd,bmd,bmd->bnd", "hhh"), "vector": ("bnd,d->bn", "hv"),
    "row": ("bnd,d->bnd", "hv"), "outer": ("i,j->ij", "vv"), "implicit": ("bnd,de", "hw"), "squares": ("ij,jk,kl->il", "www"),
    "diagonal": ("bii->bi", "s"), "trace": ("ii", "w"), "bilinear": ("bni,ijk,bnj->bnk", "hch"), "summed": ("bnd,bmd->bn", "hh"),
    "positions": ("bnd,nd->bn", "ht"), "apart": ("bnd,ne->bed", "ht"), "heads": ("bnhd,bmhd->bhnm", "qq"), "values": ("bhnm,bmhd->bnhd", "aq"),
    "broadcast": ("bnd,bnd->bnd", "hh"), "ellipsis": ("...d,de->...e", "hw"), "dot": ("i,i->", "vv"),
}


def einsum(equation: str, operands: str):
    def function(m, h, i):
        tensors = {
            "h": h, "w": m.weight, "v": m.bias, "c": m.core, "t": m.table, "s": h[:, :, :12], "q": h.view(-1, 12, 4, 6),
            "a": h[:, None, :, :12].expand(-1, 4, -1, -1), "1": h[:, :, 0], "g": h[:, 0],
        }
        return torch.einsum(equation, *(tensors[kind] for kind in operands))

    return function


PRODUCTS = {
    "mv": lambda m, h, i: (h.view(-1, 24).mv(m.bias)) + torch.addmv(h.view(-1, 24)[:, 0], h.view(-1, 24), m.bias),
    "dots": lambda m, h, i: m.bias.dot(m.weight[0]) + torch.inner(h, m.weight).mean() + torch.vdot(m.bias, m.weight[0]) + h.sum(),
    "outers": lambda m, h, i: torch.outer(h[:, 0, 0], m.bias).sum() + torch.ger(m.bias, m.bias).sum(),
    "tensordot": lambda m, h, i: torch.tensordot(h, m.core, dims=([2], [0])) + torch.tensordot(h, m.weight, 1)[..., None],
    "baddbmm": lambda m, h, i: torch.baddbmm(h[:, :, :12], h, h.transpose(1, 2), beta=0.5) + torch.baddbmm(m.table[None, :, :12], h, h.transpose(1, 2)),
    "cross": lambda m, h, i: torch.linalg.cross(h.view(-1, 3), h.view(-1, 3).exp()) + torch.cross(h.view(-1, 3), h.view(-1, 3), dim=1),
    "cdist": lambda m, h, i: torch.cdist(h, h.exp()),
    "cdist_small": lambda m, h, i: torch.cdist(h[:, :, :5], m.table[None, :, :5].expand(h.shape[0], -1, -1), p=1.0),
    "cdist_wide": lambda m, h, i: torch.cdist(h.repeat(1, 4, 1), h.repeat(1, 3, 1)),
    "matmuls": lambda m, h, i: (h @ m.weight) + (m.table[:, :12] @ h) + (h @ m.bias)[..., None] + torch.matmul(m.bias, h.transpose(1, 2))[..., None],
}


class Attending(nn.Module):
    def __init__(self, heads: int = 4, width: int = 8, kind: str = "plain", **options) -> None:
        super().__init__()
        self.heads, self.width, self.kind, self.options = heads, width, kind, options
        self.keys = options.pop("keys", heads)
        inside = 16
        self.q, self.k, self.v = nn.Linear(inside, heads * width), nn.Linear(inside, self.keys * width), nn.Linear(inside, self.keys * width)
        self.bias = nn.Parameter(torch.zeros(heads, 12, 12))
        self.out = nn.Linear(heads * width, 4)

    def forward(self, x, i):
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.heads, self.width).transpose(1, 2)
        k, v = (layer(x).view(b, n, self.keys, self.width).transpose(1, 2) for layer in (self.k, self.v))
        mask = {
            "plain": lambda: None,
            "bool": lambda: (i > 3)[:, None, None, :],
            "bool_rows": lambda: (i > 3)[:, None, None, :].expand(b, 1, n, n),
            "bool_full": lambda: (i[:, :, None] > i[:, None, :])[:, None].expand(b, self.heads, n, n),
            "float": lambda: torch.zeros(b, 1, n, n, device=x.device),
            "float_2d": lambda: torch.zeros(n, n, device=x.device),
            "trained": lambda: self.bias[None],
            "trained_batch": lambda: self.bias[None].expand(b, -1, -1, -1),
            "trained_3d": lambda: self.bias[0],
            "computed": lambda: (x.sum(-1)[:, None, None, :] * self.bias[None]),
            "last": lambda: (i > 3)[:, None, None, :],
            "three": lambda: None,
            "stack": lambda: None,
        }[self.kind]()
        if self.kind == "last":
            q = q[:, :, -1:]
        if self.kind == "three":
            q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)
        if self.kind == "three":
            y = y.view(b, self.heads, n, self.width)
        return self.out(y.transpose(1, 2).reshape(b, y.shape[2], -1)).mean()


def attending(*kinds, compute=(8, 0), precisions=("fp32", "amp_bf16"), **options) -> Model:
    return Model(lambda: Attending(**options), ["x=f32[B,12,16]", "i=i64[B,12]"], loss="model", precisions=precisions, batches=(7,), compute=compute)


ATTENTION = {
    **{kind: attending(kind=kind) for kind in ("plain", "bool", "bool_rows", "bool_full", "float", "float_2d", "trained", "trained_batch", "trained_3d", "computed", "last", "three")},
    "causal": attending(is_causal=True), "dropout": attending(dropout_p=0.1), "scale": attending(scale=0.3),
    "grouped": attending(keys=2, enable_gqa=True), "grouped_masked": attending(kind="bool", keys=2, enable_gqa=True),
    "grouped_causal": attending(keys=2, enable_gqa=True, is_causal=True, precisions=("fp32", "amp_fp16")),
    "one_key_head": attending(keys=1),
    "narrow": attending(width=6), "narrow_masked": attending(width=6, kind="bool"), "odd": attending(width=5, kind="float"),
    "wide": attending(width=144, kind="bool", precisions=("fp32", "amp_fp16")), "dropout_masked": attending(dropout_p=0.1, kind="bool"),
    "masked_half": attending(kind="trained", precisions=("bf16", "fp16")),
    "hopper": attending(kind="bool", compute=(9, 0), precisions=("fp32",)),
    "turing": attending(kind="bool", compute=(7, 5), precisions=("fp32", "amp_fp16")),
    "turing_trained": attending(kind="trained", compute=(7, 5), precisions=("fp32", "amp_fp16")),
    "turing_grouped": attending(keys=2, enable_gqa=True, compute=(7, 5), precisions=("fp32", "amp_fp16")),
}


class MultiHead(nn.Module):
    def __init__(self, weights: bool, mask: str = "", dropout: float = 0.1, heads: int = 4, **options) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, heads, dropout, batch_first=True, **options)
        self.weights, self.mask = weights, mask

    def forward(self, x, i):
        options = {}
        if "padding" in self.mask:
            options["key_padding_mask"] = i > 3
        if "causal" in self.mask:
            options["attn_mask"] = torch.triu(torch.ones(12, 12, dtype=torch.bool, device=x.device), 1)
        if "float" in self.mask:
            options["attn_mask"] = torch.zeros(12, 12, device=x.device)
        y, w = self.attention(x, x, x, need_weights=self.weights, **options)
        return y.mean() if w is None else y.mean() + w.mean()


def multi_head(*arguments, **options) -> Model:
    return Model(lambda: MultiHead(*arguments, **options), ["x=f32[B,12,16]", "i=i64[B,12]"], loss="model", precisions=("fp32", "amp_bf16"), batches=(7,), compute=(8, 0))


MULTI_HEAD = {
    "plain": multi_head(False), "weights": multi_head(True), "padding": multi_head(False, "padding"), "weights_padding": multi_head(True, "padding"),
    "causal": multi_head(False, "causal"), "both": multi_head(False, "padding causal"), "weights_causal": multi_head(True, "causal"), "float": multi_head(False, "float"),
    "bias_kv": multi_head(False, add_bias_kv=True), "kdim": multi_head(False, "", 0.0, kdim=16, vdim=16), "two": multi_head(False, heads=2),
}


def layer(kind: str) -> nn.Module:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if kind == "decoder":
                self.layer = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), 2)
            else:
                self.layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=kind == "first"), 2)

        def forward(self, x, i):
            if kind == "decoder":
                return self.layer(x, x.flip(1), tgt_mask=nn.Transformer.generate_square_subsequent_mask(12, device=x.device), tgt_is_causal=True).mean()
            if kind == "padded":
                return self.layer(x, src_key_padding_mask=i > 3).mean()
            return self.layer(x).mean()

    return Encoder()


# Types that PyTorch refuses under autocast.
IN_FLOAT32 = ("bag_weighted", "histograms", "index_add_scaled", "scatter_reduce_amax_self", "cross")


def precisions(name: str) -> tuple[str, ...]:
    return ("fp32",) if name in IN_FLOAT32 else ("fp32", "amp_bf16")


MODELS = {
    **{f"sizes_{name}": form(function) for name, function in SIZES.items()},
    **{f"lookup_{name}": form(function, precisions=precisions(name)) for name, function in LOOKUPS.items()},
    **{f"chosen_{name}": form(function) for name, function in CHOSEN.items()},
    **{f"einsum_{name}": form(einsum(*of), precisions=("fp32", "amp_bf16")) for name, of in EQUATIONS.items()},
    **{f"product_{name}": form(function, precisions=precisions(name)) for name, function in PRODUCTS.items()},
    **{f"attention_{name}": model for name, model in ATTENTION.items()},
    **{f"multi_head_{name}": model for name, model in MULTI_HEAD.items()},
    **{f"encoder_{kind}": Model(lambda kind=kind: layer(kind), ["x=f32[B,12,16]", "i=i64[B,12]"], loss="model", precisions=("fp32", "amp_bf16"), batches=(7,), compute=(8, 0))
       for kind in ("last", "padded", "decoder")},
}
