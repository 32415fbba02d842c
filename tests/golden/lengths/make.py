"""Writes the graphs of this folder: one small decoder, exported with an open length, and at two lengths.

    python tests/golden/lengths/make.py        # PyTorch 2.11, on the CPU

`open.json.gz` leaves the batch and the length open; `24.json.gz` and `64.json.gz` the batch alone. A request about the first at a
length has to be answered as one about the graph of that length.
"""

import gzip
import pathlib

import torch
from torch import nn
from torch._export.serde.serialize import serialize
from torch.export import Dim


class Decoder(nn.Module):
    """Positions and a causal mask, so that sizes depend on the length in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(512, 64), nn.Embedding(256, 64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down, self.norm = nn.Linear(64, 256), nn.Linear(256, 64), nn.LayerNorm(64)
        self.head = nn.Linear(64, 512, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        x = self.tokens(ids) + self.positions(torch.arange(length, device=ids.device))
        query, key, value = self.qkv(x).view(batch, length, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, 64))
        x = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return nn.functional.cross_entropy(self.head(x).view(-1, 512), labels.view(-1))


def write(name: str, length: int, *, is_open: bool) -> None:
    ids = torch.zeros(4, length, dtype=torch.long)
    sizes = {0: Dim("batch", min=2)}
    if is_open:
        sizes[1] = Dim("length", min=2, max=256)
    exported = torch.export.export(Decoder(), (ids, ids.clone()), dynamic_shapes=(sizes, sizes))
    text = serialize(exported).exported_program
    path = pathlib.Path(__file__).parent / f"{name}.json.gz"
    path.write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    torch.manual_seed(0)
    write("open", 16, is_open=True)
    for length in (24, 64):
        write(str(length), length, is_open=False)
