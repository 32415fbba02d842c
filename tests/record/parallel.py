"""Steps that two GPUs trained together: graphs of small models, and what the allocator of the first rank was asked for.

    PYTHONPATH=clients/python/src python tests/record/parallel.py TRACES tests/golden/steps/parallel

TRACES is a folder of traces of small models under `DistributedDataParallel`, `ZeroRedundancyOptimizer` and `fully_shard`, recorded on two H200s
with PyTorch 2.11 and NCCL 2.28.9 (NVLink SHARP off), named VARIANT-w2-rRANK-bBATCH.txt.gz: a line with a JSON header, then `action address size
stream` for each event. Models are exported here by batchfit's own exporter; their batches are as in the traces. Needs no GPU.
"""

from __future__ import annotations

import glob
import gzip
import json
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

from batchfit.export.batches import parse_batch
from batchfit.export.exporting import export_built
from steps import without_traces


class Mlp(nn.Module):
    def __init__(self, width: int = 1024, depth: int = 6, classes: int = 1000) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.head(x)


class Odd(nn.Module):
    """Layers whose parameters two ranks cannot share evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(37, 1031), nn.Linear(1031, 517), nn.Linear(517, 1)])
        self.head = nn.Linear(1, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.head(x)


class Unused(Mlp):
    """A layer that the loss does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(512, 512)


class ConvBN(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def block(i: int, o: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())

        self.body = nn.Sequential(block(3, 32), block(32, 64), block(64, 128))
        self.fc = nn.Linear(128, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.n1, self.qkv, self.o = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.n2, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.h = h

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        q, k, v = [t.view(b, s, self.h, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1)]
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class TinyLM(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self, d: int = 256, h: int = 4, n: int = 3, vocab: int = 5003, seq: int = 64) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(seq, d)
        self.blocks = nn.ModuleList([Block(d, h) for _ in range(n)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def of_tokens(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids).view(-1, 5003).float(), ids.view(-1))


VECTORS = ["x=f32[B,1024]", "y=i64[B]"]
MODELS = {
    "mlp": (Mlp, VECTORS, "cross_entropy"),
    "odd": (Odd, ["x=f32[B,37]", "y=i64[B]"], "cross_entropy"),
    "unused": (Unused, VECTORS, "cross_entropy"),
    "convbn": (ConvBN, ["x=f32[B,3,32,32]", "y=i64[B]"], "cross_entropy"),
    "tinylm": (TinyLM, ["ids=i64[B,64]"], of_tokens),
}


def exported(name: str) -> dict:
    build, batch, loss = MODELS[name]
    return without_traces(export_built(build, parse_batch(batch), loss, None).document)


# Streams of `fully_shard`, as programs number them.
STREAMS = {"all_gather_copy_in_stream": 1, "reduce_scatter_stream": 2}

# Not among the steps: a model that is on the GPU before it is sharded, and one whose first forward pass fails, as PyTorch's does under
# batch norm with parameters in bfloat16.
LEFT_OUT = {"fsdp2-mlp-init-cuda", "fsdp2-convbn-bf16mp"}


def header_of(path: str) -> dict:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.loads(file.readline()[1:])


def recorded(path: str) -> tuple[dict, list[str]]:
    """The header, and the allocations and frees. Where processes had run before, what was there then is not part of it."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        header = json.loads(file.readline()[1:])
        events = [line.split() for line in file]
    streams = {stream: f"@{STREAMS[names[0]]}" for stream, names in header["streams"].items() if names[0] in STREAMS}
    live: dict[str, str] = {}
    found = []
    for action, address, size, stream, *_ in events:
        if action == "alloc":
            live[address] = size + ("" if stream == "0" else streams[stream])
            found.append(f"+{live[address]}")
        elif action == "free_requested" and address in live:
            found.append(f"-{live.pop(address)}")
    return header, found


def main() -> int:
    traces, out = sys.argv[1:]
    sequences = []
    graphs = {}
    for path in sorted(glob.glob(os.path.join(traces, "*-w2-r0-b*.txt.gz"))):
        name = os.path.basename(path)
        if name.startswith("trace-") or ".stacks." in name:
            continue
        header = header_of(path)
        kind = (header["parallel"] or {"kind": "none"})["kind"]
        if header["model"] not in MODELS or header["case"] in LEFT_OUT or kind not in ("none", "ddp", "fsdp2"):
            continue
        header, events = recorded(path)
        if header["model"] not in graphs:
            graphs[header["model"]] = exported(header["model"])
        kept = ("case", "model", "precision", "optimizer", "accum", "parallel", "world", "rank", "batch")
        sequences += ["# " + json.dumps({key: header.get(key) for key in kept}), *events]
    os.makedirs(out, exist_ok=True)
    files = {"graphs.json.gz": json.dumps(graphs, separators=(",", ":")), "sequences.txt.gz": "\n".join(sequences) + "\n"}
    for name, text in files.items():
        with open(os.path.join(out, name), "wb") as file:
            file.write(gzip.compress(text.encode(), mtime=0))
    print(f"{len(graphs)} graphs, {sum(line[0] == '#' for line in sequences)} sequences")
    return 0


if __name__ == "__main__":
    sys.exit(main())
