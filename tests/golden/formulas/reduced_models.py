"""Reductions, normalizations, losses and products."""

import torch
import torch.nn.functional as F
from cases import BATCH, case, each
from torch import nn


def part(x):
    """A weight for each element, which differ."""
    return torch.cos(torch.arange(x.numel(), dtype=torch.float32).reshape(x.shape) * 0.7).to(x.dtype)


each("reductions", (4, 6), [
    lambda w, x: (w * x).mean(), lambda w, x: (w * x).mean((0, 2)), lambda w, x: (w * x).sum(1, keepdim=True), lambda w, x: (w + x).var(-1), lambda w, x: (w + x).transpose(0, 2).std((0, 1), correction=0),
    lambda w, x: torch.var_mean(w + x, 1, keepdim=True)[0] * torch.var_mean(w * x, 1, keepdim=True)[1], lambda w, x: (w + x).var(), lambda w, x: torch.std_mean(w + x, (0, 2))[0],
    lambda w, x: (w * x).logsumexp(1), lambda w, x: (w * x).logsumexp((0, 2), keepdim=True), lambda w, x: (w * x).amax((0, 2)), lambda w, x: (w * x).amin(1, keepdim=True), lambda w, x: (w * x).max(), lambda w, x: (w * x).min(),
    lambda w, x: (w + x).prod(1), lambda w, x: torch.relu(w).prod(0) + (w * 0.2 + 1).prod(), lambda w, x: (w * x).nansum(2), lambda w, x: torch.round(w * 2).amax(1), lambda w, x: w * torch.count_nonzero(torch.round(x), 1).unsqueeze(1),
    lambda w, x: w * torch.aminmax(x, dim=1, keepdim=True)[0] + torch.aminmax(x)[1], lambda w, x: w * torch.round(x * 5).long().sum(1, keepdim=True) + (x > 0).sum() * w, lambda w, x: w * torch.round(x * 5).long().prod(1, keepdim=True),
], x=(4, 6))  # fmt: skip

each("norms-of-vectors", (4, 6), [
    lambda w, x: torch.linalg.vector_norm(w * x, 2, -1), lambda w, x: torch.linalg.vector_norm(w * x, 1, (0, 1)), lambda w, x: torch.linalg.vector_norm(w * x, 3, 1, keepdim=True), lambda w, x: torch.linalg.vector_norm(w * x, 1.5, 2),
    lambda w, x: torch.linalg.vector_norm(w + x, 0.5, 2), lambda w, x: torch.linalg.vector_norm(w * x, float("inf"), 1), lambda w, x: torch.linalg.vector_norm(w * x, -float("inf"), (1, 2)), lambda w, x: (w * x).norm(), lambda w, x: (w * x).norm(dim=1),
    lambda w, x: torch.linalg.matrix_norm(w * x), lambda w, x: F.normalize(w * x, dim=1), lambda w, x: torch.linalg.vector_norm(x, 0, 1) * w.sum(), lambda w, x: torch.linalg.vector_norm(w * x, 4.0),
])  # fmt: skip

each("reductions-bf16", (4, 8), [
    lambda w, x: (w * x).mean((0, 2)), lambda w, x: (w * x).sum(1), lambda w, x: (w + x).std(-1), lambda w, x: (w * x).logsumexp(1), lambda w, x: torch.linalg.vector_norm(w * x, 2, -1), lambda w, x: (w + x).softmax(1),
    lambda w, x: F.layer_norm(w + x, (8,)), lambda w, x: F.rms_norm(w * x, (8,)), lambda w, x: F.group_norm(w + x, 2), lambda w, x: F.mse_loss(w * x, x), lambda w, x: F.smooth_l1_loss(w * x, x, beta=0.3),
], dtype=torch.bfloat16)  # fmt: skip

each("reductions-f64", (4, 6), [
    lambda w, x: (w.double() * x).mean(), lambda w, x: (w.double() * x).sum(1), lambda w, x: (w.double() + x).var(-1), lambda w, x: (w.double() * x).logsumexp(1), lambda w, x: (w.double() * x).norm(dim=1), lambda w, x: (w.double() + x).transpose(1, 2).softmax(1), lambda w, x: (w.double() + x).log_softmax(0),
    lambda w, x: F.layer_norm(w.double() + x, (6,)), lambda w, x: F.group_norm(w.double() + x, 2), lambda w, x: F.mse_loss(w.double() * x, x.double()), lambda w, x: (w.double() * x).amax(2),
])  # fmt: skip


class Normalizations(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 5, 6))
        self.layer = nn.LayerNorm((5, 6), bias=False)
        self.bare = nn.LayerNorm(6, elementwise_affine=False, eps=1e-3)
        self.whole = nn.LayerNorm(6)
        self.group, self.flat_group = nn.GroupNorm(2, 4), nn.GroupNorm(4, 4, affine=False, eps=1e-2)
        self.rms, self.bare_rms = nn.RMSNorm(6, eps=1e-4), nn.RMSNorm((5, 6), elementwise_affine=False)
        self.instance, self.plain_instance = nn.InstanceNorm1d(4, affine=True), nn.InstanceNorm2d(3)
        self.batch, self.plain_batch, self.alone = nn.BatchNorm1d(4), nn.BatchNorm2d(4, affine=False, momentum=0.3), nn.BatchNorm2d(4, track_running_stats=False)
        self.frozen = nn.BatchNorm2d(4).eval()
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2), dim=1)

    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x):
        x = x * self.w
        total = 0.0
        for layer in (self.layer, self.bare, self.whole, self.group, self.flat_group, self.rms, self.bare_rms, self.instance, self.batch):
            y = layer(x if layer not in (self.instance, self.batch, self.group, self.flat_group) else x.transpose(2, 3).flatten(2))
            total = total + (y * part(y)).sum() if y.shape == x.shape else total + (y * torch.cos(y.detach())).sum()
        for layer in (self.plain_batch, self.alone, self.frozen, self.plain_instance):
            y = layer(x if layer is not self.plain_instance else x[:, :3])
            total = total + (y * torch.cos(y.detach() * 3)).sum()
        y = self.last(self.normed(x))
        return total + (y * torch.cos(y.detach() * 3)).sum()


@case("normalizations")
def normalizations():
    return Normalizations(), {"x": torch.randn(BATCH, 4, 5, 6)}


each("losses-of-pairs", (4, 6), [
    lambda w, x: F.mse_loss(w * x, x), lambda w, x: F.mse_loss(w * x, x, reduction="sum"), lambda w, x: F.mse_loss(w * x, w + x, reduction="none"), lambda w, x: F.l1_loss(w * x, x), lambda w, x: F.smooth_l1_loss(w * x, w + x, beta=0.4),
    lambda w, x: F.smooth_l1_loss(w * x, x, reduction="none"), lambda w, x: F.huber_loss(w * x, x, delta=0.3), lambda w, x: F.huber_loss(w * x, w - x, reduction="sum"),
    lambda w, x: F.binary_cross_entropy(torch.sigmoid(w * x), torch.sigmoid(x)), lambda w, x: F.binary_cross_entropy(torch.sigmoid(w * x), torch.sigmoid(w + x), reduction="sum"),
    lambda w, x: F.binary_cross_entropy_with_logits(w * x, torch.sigmoid(x)), lambda w, x: F.binary_cross_entropy_with_logits(w * x, torch.sigmoid(w + x), pos_weight=torch.exp(x[0, 0])),
    lambda w, x: F.binary_cross_entropy_with_logits(w * x, torch.sigmoid(x), weight=torch.exp(x), reduction="none"), lambda w, x: F.soft_margin_loss(w * x, torch.sign(x)),
    lambda w, x: F.kl_div(F.log_softmax(w * x, -1), F.softmax(x, -1), reduction="batchmean"), lambda w, x: F.kl_div(F.log_softmax(w * x, -1), F.log_softmax(x, -1), log_target=True), lambda w, x: F.poisson_nll_loss(w * x, torch.exp(x), full=True),
    lambda w, x: F.poisson_nll_loss(torch.exp(w * x), torch.exp(x), log_input=False), lambda w, x: F.gaussian_nll_loss(w * x, x, torch.exp(w + x)), lambda w, x: F.hinge_embedding_loss(w * x, torch.sign(x)),
    lambda w, x: F.margin_ranking_loss(w * x, w + x, torch.sign(x), margin=0.1), lambda w, x: F.multilabel_soft_margin_loss(w * x, (x > 0).float()),
])  # fmt: skip

each("losses-of-rows", (4, 6), [
    lambda w, x: F.cosine_embedding_loss((w * x)[:, 0], (w + x)[:, 1], torch.sign(x[:, 0, 0]), margin=-0.2), lambda w, x: F.triplet_margin_loss((w * x)[:, 0], (w + x)[:, 1], (w - x)[:, 2], swap=True),
    lambda w, x: F.cosine_similarity(w * x, w + x, dim=1), lambda w, x: F.pairwise_distance(w * x, w + x, p=3), lambda w, x: F.multi_margin_loss((w * x)[:, 0], (x[:, 0, 0] * 3 + 3).long()), lambda w, x: F.multi_margin_loss((w * x)[:, 1], (x[:, 0, 0] * 3 + 3).long(), p=2, margin=0.7, weight=torch.arange(6).float(), reduction="none"),
    lambda w, x: F.multilabel_margin_loss((w * x)[:, 0], (x[:, 0] * 4 + 2).long().clamp(-1, 5)), lambda w, x: F.multilabel_margin_loss((w * x)[:, 2], (x[:, 1] * 4 + 3).long().clamp(-1, 5), reduction="none"),
])  # fmt: skip


class CrossEntropies(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(5))
        self.register_buffer("of_class", torch.rand(5) + 0.5)

    def forward(self, x, target, map_target):
        y = x * self.w
        z = y.movedim(2, 1)
        total = 0.0
        for number, reduction in enumerate(("mean", "sum", "none")):
            kind = {"reduction": reduction}
            for loss in (
                F.cross_entropy(y[:, 0], target, **kind), F.cross_entropy(z, map_target, **kind), F.cross_entropy(y[:, 0], target, weight=self.of_class, **kind), F.cross_entropy(z, map_target, weight=self.of_class, **kind),
                F.cross_entropy(y[:, 1], target, label_smoothing=0.2, **kind), F.cross_entropy(y[:, 0], target, weight=self.of_class, label_smoothing=0.1, **kind),
                F.nll_loss(torch.log_softmax(y[:, 2], -1), target, ignore_index=1, **kind),
            ):  # fmt: skip
                total = total + (loss * torch.cos(loss.detach() + number)).sum()
        return total


@case("cross-entropies")
def cross_entropies():
    return CrossEntropies(), {"x": torch.randn(BATCH, 4, 5), "target": torch.tensor([1, 4, 2]), "map_target": torch.tensor([[1, 0, 2, -100], [4, 4, 3, 1], [2, 2, 0, 0]])}


each("extremes", (4, 6), [
    lambda w, x: (w * x).max(1)[0], lambda w, x: (w * x).min(-1, keepdim=True)[0] * (w * x).min(-1)[1].unsqueeze(-1), lambda w, x: (w * x).transpose(0, 2).max(0)[0], lambda w, x: (w * x).median(2)[0], lambda w, x: (w * x).nanmedian(1)[0],
    lambda w, x: (w * x).kthvalue(2, 1)[0], lambda w, x: w * x.argmax(1, keepdim=True) + x.argmin(), lambda w, x: w * (x > 0.9).any(1, keepdim=True) + (x > -2).all() * w, lambda w, x: w * torch.histc(x, 6, -1, 1),
    lambda w, x: w * torch.histc((x * 2).long().float(), 6).sum(), lambda w, x: torch.round(x * 2).mode(1)[0] * w[0], lambda w, x: w * torch.round(x * 3).argmax(2, keepdim=True),
])  # fmt: skip

each("products", (4, 6), [
    lambda w, x: torch.mv((w * x)[:, 0], w[0]), lambda w, x: torch.outer((w * x)[:, 0, 0], w[1]), lambda w, x: torch.dot((w * x)[0, 0], (x + 0.5)[0, 1]), lambda w, x: torch.addmv((w * x)[:, 0, 0], (w + x)[:, 1], w[0], beta=0.5),
    lambda w, x: (w * x) @ w[2], lambda w, x: w[:, 0] @ (w * x), lambda w, x: torch.baddbmm((w * x)[:, :, :4], w * x, x.transpose(1, 2), beta=0.3, alpha=0.7),
    lambda w, x: torch.linalg.cross((w * x)[..., :3], (w + x)[..., 3:]), lambda w, x: torch.linalg.cross((w * x)[:, :3], (w + x)[:, 1:], dim=1),
])  # fmt: skip

each("distances", (4, 6), [
    lambda w, x: torch.cdist(w * x, w + x), lambda w, x: torch.cdist(w * x, w + x, p=1.0), lambda w, x: torch.cdist(w * x, w[:3], p=3.0), lambda w, x: torch.cdist((w * x).repeat(1, 7, 1), w + 1),
])  # fmt: skip

each("contractions", (4, 6), [
    lambda w, x: torch.einsum("bij,kj->bik", w * x, w), lambda w, x: torch.einsum("bii,bjj->bij", (w * x)[:, :, :4], (w + x)[:, :, 2:]), lambda w, x: torch.einsum("bij,bij->b", w * x, w + x), lambda w, x: torch.tensordot(w * x, w, ([1, 2], [0, 1])),
])  # fmt: skip


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.rnn, self.plain = nn.LSTMCell(6, 5), nn.GRUCell(6, 5), nn.RNNCell(6, 5, nonlinearity="relu"), nn.RNNCell(6, 5)
        self.bare_lstm, self.bare_gru = nn.LSTMCell(6, 5, bias=False), nn.GRUCell(6, 5, bias=False)

    def forward(self, x):
        hidden, cell = self.lstm(x[:, 0])
        hidden, cell = self.lstm(x[:, 1], (hidden, cell))
        other, last = self.bare_lstm(x[:, 2], (hidden, cell))
        gru = self.bare_gru(x[:, 3], self.gru(x[:, 0], hidden))
        rnn = self.plain(x[:, 1], self.rnn(x[:, 0], other))
        return (gru * torch.cos(gru.detach() * 5)).sum() + (rnn * torch.cos(rnn.detach() * 5)).sum() + (last * 0.3).sum()


@case("cells")
def cells():
    return Cells(), {"x": torch.randn(BATCH, 4, 6)}


class Attentions(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.few = nn.Linear(8, 4)

    def forward(self, x):
        heads = lambda y, width=2: y.unflatten(-1, (-1, width)).transpose(1, 2)  # noqa: E731
        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        few = heads(self.few(x))
        results = [
            F.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7), F.scaled_dot_product_attention(q[:, :, 1:], few, few, enable_gqa=True),
            F.scaled_dot_product_attention(heads(self.q(x), 4), heads(self.k(x), 4)[:, :, :3], heads(self.v(x), 4)[:, :, :3]),
        ]  # fmt: skip
        return sum((y * torch.cos(y.detach() * 5)).sum() for y in results)


@case("attentions")
def attentions():
    return Attentions(), {"x": torch.randn(BATCH, 5, 8)}


@case("attentions-bf16", dtype=torch.bfloat16)
def attentions_in_half():
    return Attentions(), {"x": torch.randn(BATCH, 5, 8)}


@case("ctc", loss=lambda m, x, target, times, counts: m(x, target, times, counts))
def ctc():
    class Ctc(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(5))

        def forward(self, x, target, times, counts):
            y = torch.log_softmax(x * self.w, -1).transpose(0, 1)
            return F.ctc_loss(y, target, times, counts, zero_infinity=True) + F.ctc_loss(y, target, times, counts, blank=4, reduction="sum")

    return Ctc(), {"x": torch.randn(BATCH, 7, 5), "target": torch.tensor([[1, 2, 2], [3, 1, 1], [1, 3, 3]]), "times": torch.tensor([7, 6, 5]), "counts": torch.tensor([3, 2, 1])}
