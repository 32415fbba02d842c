"""Graph nets: nodes are the batch, and edges are four times as many or fixed."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import model

LIBRARY = "torch-geometric"
NODES = ("x=f32[B,32]", "edge_index=i64[2,4*B]", "y=i64[B]")
FIXED = ("x=f32[B,32]", "edge_index=i64[2,4096]", "y=i64[B]")
SIZES = (256, 1024)


def classified(model, x, edge_index, y):
    return F.cross_entropy(model(x, edge_index), y)


def _basic(cls: str, batch: tuple[str, ...] = NODES, **options) -> None:
    def build():
        from torch_geometric.nn import models

        return getattr(models, cls)(32, 64, 3, out_channels=7, **options)

    build.__module__ = __name__
    model(f"geometric-{cls.lower()}", LIBRARY, *batch, loss=classified, batches=SIZES)(build)


_basic("GCN", dropout=0.5)
_basic("GAT", heads=4, v2=True)
_basic("GraphSAGE")
_basic("GIN", FIXED, norm="batch_norm")
_basic("EdgeCNN", FIXED)


@model("geometric-pna", LIBRARY, *NODES, loss=classified, batches=SIZES)
def pna():
    from torch_geometric.nn.models import PNA

    return PNA(32, 30, 2, out_channels=7, aggregators=["mean", "max", "std"], scalers=["identity", "amplification"], deg=torch.tensor([0, 10, 20, 30]))


@model("geometric-transformer-conv", LIBRARY, *NODES, loss=classified, batches=SIZES)
def transformer_conv():
    from torch_geometric.nn import Sequential, TransformerConv

    return Sequential("x, edge_index", [(TransformerConv(32, 16, heads=4), "x, edge_index -> x"), torch.nn.ReLU(), (TransformerConv(64, 7), "x, edge_index -> x")])


@model("geometric-gatedgraph", LIBRARY, *NODES, loss=classified, batches=SIZES)
def gated():
    from torch_geometric.nn import GatedGraphConv, Sequential

    return Sequential("x, edge_index", [(GatedGraphConv(64, 3), "x, edge_index -> x"), torch.nn.Linear(64, 7)])


@model("geometric-pooled-graphs", LIBRARY, "x=f32[16*B,32]", "edge_index=i64[2,64*B]", "batch=i64[16*B]", "y=i64[B]", loss=lambda m, x, edge_index, batch, y: F.cross_entropy(m(x, edge_index, batch, y.shape[0]), y))
def pooled():
    from torch_geometric.nn import GCNConv, global_mean_pool

    class Graphs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = GCNConv(32, 64), GCNConv(64, 64), torch.nn.Linear(64, 7)

        def forward(self, x, edge_index, batch, size):
            x = self.second(self.first(x, edge_index).relu(), edge_index).relu()
            return self.head(global_mean_pool(x, batch, size))

    return Graphs()


@model("geometric-schnet-like", LIBRARY, "x=i64[B]", "edge_index=i64[2,8*B]", "distance=f32[8*B]", "y=f32[B,1]", loss="mse", batches=SIZES)
def schnet():
    from torch_geometric.nn.models.schnet import GaussianSmearing, InteractionBlock

    class Atoms(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.smear = torch.nn.Embedding(100, 64), GaussianSmearing(0.0, 10.0, 32)
            self.blocks = torch.nn.ModuleList(InteractionBlock(64, 32, 64, 10.0) for _ in range(2))
            self.head = torch.nn.Linear(64, 1)

        def forward(self, x, edge_index, distance):
            h, edges = self.embedding(x), self.smear(distance)
            for block in self.blocks:
                h = h + block(h, edge_index, distance, edges)
            return self.head(h)

    return Atoms()


@model("geometric-dynamic-edge-dense", LIBRARY, "x=f32[B,64,16]", "adjacency=f32[B,64,64]", "y=i64[B]", loss="cross_entropy")
def dense():
    from torch_geometric.nn import DenseGCNConv, dense_diff_pool

    class DiffPool(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.assign, self.second, self.head = DenseGCNConv(16, 32), DenseGCNConv(16, 8), DenseGCNConv(32, 32), torch.nn.Linear(32, 5)

        def forward(self, x, adjacency):
            pooled, adjacency, _, _ = dense_diff_pool(self.embed(x, adjacency).relu(), adjacency, self.assign(x, adjacency))
            return self.head(self.second(pooled, adjacency).mean(1))

    return DiffPool()


@model("egnn-pytorch", "egnn-pytorch", "feats=f32[B,32,64]", "coors=f32[B,32,3]", "y=f32[B,32,64]", loss=lambda m, feats, coors, y: F.mse_loss(m(feats, coors)[0], y))
def egnn():
    from egnn_pytorch import EGNN

    return EGNN(dim=64)
