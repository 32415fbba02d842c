"""Exports the graph of every preset described here with batchfit's Python client, for tests/it/model/presets.rs.

    PYTHONPATH=clients/python/src python tests/golden/presets/make.py [NAME ...]

NAME.json is {"preset": ..., "image_size": ..., "num_classes": ...}: a model of a request. NAME.graph.json.gz is what the
exporter made of torchvision's model of that name (PyTorch 2.11, torchvision 0.26) or, for `unet`, of the model below.
"""

import gzip
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torchvision
from batchfit.export.batches import parse_batch
from batchfit.export.exporting import export_built
from torch import nn
from torch.nn.functional import cross_entropy

HERE = Path(__file__).parent
SEGMENTERS = ("fcn_", "deeplabv3_", "lraspp_", "unet")


class DoubleConv(nn.Sequential):
    def __init__(self, i: int, o: int) -> None:
        super().__init__(
            nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
        )  # fmt: skip


class UNet(nn.Module):
    """Four levels, transposed convolutions on the way up, skip connections by concatenation."""

    def __init__(self, classes: int, base: int = 64) -> None:
        super().__init__()
        c = [base * 2**i for i in range(5)]
        self.inc = DoubleConv(3, c[0])
        self.down = nn.ModuleList([DoubleConv(c[i], c[i + 1]) for i in range(4)])
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList([nn.ConvTranspose2d(c[i + 1], c[i], 2, stride=2) for i in reversed(range(4))])
        self.dec = nn.ModuleList([DoubleConv(c[i + 1], c[i]) for i in reversed(range(4))])
        self.out = nn.Conv2d(c[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = [self.inc(x)]
        for d in self.down:
            skips.append(d(self.pool(skips[-1])))
        x = skips.pop()
        for up, dec in zip(self.up, self.dec):
            x = dec(torch.cat([skips.pop(), up(x)], 1))
        return self.out(x)


def googlenet_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The weights of the auxiliary classifiers in "Going Deeper with Convolutions"."""
    outputs = model(x)
    loss = cross_entropy(outputs.logits, y)
    aux1 = cross_entropy(outputs.aux_logits1, y)
    aux2 = cross_entropy(outputs.aux_logits2, y)
    return loss + 0.3 * (aux1 + aux2)


def inception_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As PyTorch's tutorial on finetuning computes it."""
    outputs, aux_outputs = model(x)
    loss1 = cross_entropy(outputs, y)
    loss2 = cross_entropy(aux_outputs, y)
    return loss1 + 0.4 * loss2


LOSSES = {"googlenet": googlenet_loss, "inception_v3": inception_loss}


def builder(preset: str, image_size: list[int], num_classes: int) -> Callable[[], nn.Module]:
    if preset == "unet":
        return partial(UNet, num_classes)
    name = preset.removesuffix("_no_aux")
    options: dict[str, object] = {"weights": None, "num_classes": num_classes}
    if preset.startswith(SEGMENTERS):
        options["weights_backbone"] = None
    if preset.startswith(("googlenet", "inception_v3")):
        options |= {"init_weights": False, "aux_logits": not preset.endswith("_no_aux")}
    if preset.startswith("vit_"):
        options["image_size"] = image_size[0]
    if preset.startswith("maxvit_"):
        options["input_size"] = tuple(image_size)
    return partial(torchvision.models.get_model, name, **options)


def export(name: str) -> None:
    model = json.loads((HERE / f"{name}.json").read_text())
    preset, size, classes = model["preset"], model["image_size"], model["num_classes"]
    height, width = size if isinstance(size, list) else (size, size)
    image = f"{height},{width}"
    target = f"y=i64[B,{image}]" if preset.startswith(SEGMENTERS) else "y=i64[B]"
    batch = parse_batch([f"x=f32[B,3,{image}]", target])
    exported = export_built(builder(preset, [height, width], classes), batch, LOSSES.get(preset, "cross_entropy"))
    text = json.dumps(exported.document, separators=(",", ":"), sort_keys=True).encode()
    (HERE / f"{name}.graph.json.gz").write_bytes(gzip.compress(text, 9, mtime=0))


if __name__ == "__main__":
    names = sys.argv[1:] or sorted(path.stem for path in HERE.glob("*.json"))
    for name in names:
        export(name)
        print(name, flush=True)
