"""Click-through models: embeddings of many features and their products."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import model

FIELDS = (100, 50, 1000, 20, 10)
BATCH = ("x=i64[B,5]", "y=f32[B]")
SIZES = (128, 1024)


def _torchfm(module: str, cls: str, **options) -> None:
    def build():
        import importlib

        return getattr(importlib.import_module(f"torchfm.model.{module}"), cls)(list(FIELDS), **options)

    build.__module__ = __name__
    model(f"torchfm-{module}", "torchfm", *BATCH, loss=F.binary_cross_entropy, batches=SIZES)(build)


_torchfm("dfm", "DeepFactorizationMachineModel", embed_dim=16, mlp_dims=(32, 16), dropout=0.2)
_torchfm("xdfm", "ExtremeDeepFactorizationMachineModel", embed_dim=16, mlp_dims=(32, 16), dropout=0.2, cross_layer_sizes=(16, 16))
_torchfm("dcn", "DeepCrossNetworkModel", embed_dim=16, num_layers=3, mlp_dims=(32, 16), dropout=0.2)
_torchfm("afi", "AutomaticFeatureInteractionModel", embed_dim=16, atten_embed_dim=32, num_heads=2, num_layers=2, mlp_dims=(32, 16), dropouts=(0.1, 0.1, 0.1))
_torchfm("afm", "AttentionalFactorizationMachineModel", embed_dim=16, attn_size=16, dropouts=(0.2, 0.2))
_torchfm("pnn", "ProductNeuralNetworkModel", embed_dim=16, mlp_dims=(32, 16), dropout=0.2)
_torchfm("wd", "WideAndDeepModel", embed_dim=16, mlp_dims=(32, 16), dropout=0.2)


def _deepctr(cls: str) -> None:
    def build():
        from deepctr_torch import models
        from deepctr_torch.inputs import DenseFeat, SparseFeat

        columns = [SparseFeat(f"c{i}", size, embedding_dim=8) for i, size in enumerate(FIELDS)] + [DenseFeat("d", 3)]
        return getattr(models, cls)(columns, columns, task="binary", dnn_hidden_units=(64, 32), device="cpu")

    build.__module__ = __name__
    model(f"deepctr-{cls.lower()}", "deepctr-torch", "x=f32[B,8]", "y=f32[B,1]", loss=F.binary_cross_entropy, batches=SIZES)(build)


for _cls in ("DeepFM", "DCN", "xDeepFM", "AutoInt", "FiBiNET"):
    _deepctr(_cls)


class Dlrm(torch.nn.Module):
    """Dense features through an MLP, sparse ones through embedding bags, and all their products."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = torch.nn.Sequential(torch.nn.Linear(13, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16), torch.nn.ReLU())
        self.bags = torch.nn.ModuleList(torch.nn.EmbeddingBag(1000, 16, mode="sum") for _ in range(6))
        self.top = torch.nn.Sequential(torch.nn.Linear(16 + 21, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        rows = torch.stack([x, *(bag(sparse[:, i]) for i, bag in enumerate(self.bags))], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        i, j = torch.tril_indices(7, 7, offset=-1, device=x.device)
        return self.top(torch.cat([x, products[:, i, j]], 1))


@model("dlrm", "torch", "dense=f32[B,13]", "sparse=i64[B,6,4]", "y=f32[B,1]", loss="bce_with_logits", batches=SIZES)
def dlrm():
    return Dlrm()


@model("two-towers", "torch", "user=i64[B]", "item=i64[B]", loss=lambda m, user, item: (lambda s: F.cross_entropy(s, torch.arange(s.shape[0], device=s.device)))(m(user, item)), batches=SIZES)
def two_towers():
    class Towers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item = torch.nn.Embedding(10000, 64), torch.nn.Embedding(5000, 64)

        def forward(self, user, item):
            return F.normalize(self.user(user), dim=-1) @ F.normalize(self.item(item), dim=-1).T / 0.05

    return Towers()


@model("neural-matrix-factorization-bpr", "torch", "user=i64[B]", "positive=i64[B]", "negative=i64[B]", loss=lambda m, user, positive, negative: -F.logsigmoid(m(user, positive) - m(user, negative)).mean(), batches=SIZES)
def ncf():
    class Ncf(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.users, self.items = torch.nn.Embedding(10000, 64), torch.nn.Embedding(5000, 64)
            self.mlp, self.out = torch.nn.Sequential(torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1)), torch.nn.Linear(128, 1)

        def forward(self, user, item):
            u, i = self.users(user), self.items(item)
            return self.out(torch.cat([u * i, self.mlp(torch.cat([u, i], -1))], -1)).squeeze(-1)

    return Ncf()


@model("sasrec", "torch", "history=i64[B,50]", "positive=i64[B,50]", "negative=i64[B,50]", loss=lambda m, history, positive, negative: sasrec_loss(m, history, positive, negative))
def sasrec():
    class SasRec(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.items, self.positions = torch.nn.Embedding(1000, 64, padding_idx=0), torch.nn.Embedding(50, 64)
            self.attention = torch.nn.ModuleList(torch.nn.MultiheadAttention(64, 2, 0.1, batch_first=True) for _ in range(2))
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(64) for _ in range(2))
            self.feed = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Conv1d(64, 64, 1), torch.nn.ReLU(), torch.nn.Conv1d(64, 64, 1)) for _ in range(2))

        def forward(self, history):
            x = self.items(history) * 8.0 + self.positions(torch.arange(50, device=history.device))
            padding = history == 0
            x = x * ~padding.unsqueeze(-1)
            mask = ~torch.tril(torch.ones(50, 50, dtype=torch.bool, device=x.device))
            for attention, norm, feed in zip(self.attention, self.norms, self.feed):
                x = norm(x + attention(x, x, x, attn_mask=mask, need_weights=False)[0])
                x = x + feed(x.transpose(1, 2)).transpose(1, 2)
            return x

    return SasRec()


def sasrec_loss(model, history, positive, negative):
    features = model(history)
    good = (features * model.items(positive)).sum(-1)
    bad = (features * model.items(negative)).sum(-1)
    weight = (positive != 0).float()
    losses = F.binary_cross_entropy_with_logits(good, torch.ones_like(good), reduction="none") + F.binary_cross_entropy_with_logits(bad, torch.zeros_like(bad), reduction="none")
    return (losses * weight).sum() / weight.sum()
