"""Detectors: backbones with their heads, and losses on dense targets."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import model

IMAGE = "x=f32[B,3,128,128]"


class Heads(torch.nn.Module):
    """A feature pyramid and the heads of a torchvision detector."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
        from torchvision.models.detection.fcos import FCOSHead
        from torchvision.models.detection.retinanet import RetinaNetHead
        from torchvision.models.detection.rpn import RPNHead

        self.backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
        made = {"retinanet": lambda: RetinaNetHead(256, 9, 10), "fcos": lambda: FCOSHead(256, 1, 10, 2), "rpn": lambda: RPNHead(256, 3)}
        self.head = made[kind]()

    def forward(self, x):
        found = self.head(list(self.backbone(x).values()))
        return list(found.values()) if isinstance(found, dict) else [part for parts in found for part in parts]


def focal_and_boxes(model, x, y):
    """Sigmoid focal loss on the scores, L1 on the rest."""
    from torchvision.ops import sigmoid_focal_loss

    scores, *rest = model(x)
    target = y[:, :1, None].expand_as(scores)
    return sigmoid_focal_loss(scores, target, reduction="mean") + sum(part.abs().mean() for part in rest)


def squares(model, x):
    return sum(part.square().mean() for part in model(x))


@model("torchvision-retinanet-heads", "torchvision", IMAGE, "y=f32[B,1]", loss=focal_and_boxes, batches=(1, 4), on_gpu=True)
def retinanet():
    return Heads("retinanet")


@model("torchvision-fcos-heads", "torchvision", IMAGE, "y=f32[B,1]", loss=focal_and_boxes, batches=(1, 4))
def fcos():
    return Heads("fcos")


@model("torchvision-rpn", "torchvision", IMAGE, loss=squares, batches=(1, 4))
def rpn():
    return Heads("rpn")


@model("torchvision-ssdlite-backbone", "torchvision", IMAGE, loss=lambda m, x: sum(f.square().mean() for f in m(x).values()), batches=(2, 8))
def ssdlite():
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    return ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None).backbone


class Yolo(torch.nn.Module):
    """A small YOLO: cross-stage blocks, a spatial pyramid pool, a head that decodes on a grid."""

    def __init__(self) -> None:
        super().__init__()
        conv = lambda a, b, k=3, s=1: torch.nn.Sequential(torch.nn.Conv2d(a, b, k, s, k // 2, bias=False), torch.nn.BatchNorm2d(b), torch.nn.SiLU(inplace=True))  # noqa: E731
        self.stem = torch.nn.Sequential(conv(3, 16, 3, 2), conv(16, 32, 3, 2))
        self.split, self.inner, self.join = conv(32, 32, 1), torch.nn.ModuleList(conv(16, 16) for _ in range(2)), conv(64, 64, 1)
        self.down, self.pool_in, self.pool_out = conv(64, 64, 3, 2), conv(64, 32, 1), conv(128, 64, 1)
        self.lateral, self.heads = conv(128, 64, 1), torch.nn.ModuleList(torch.nn.Conv2d(64, 3 * 15, 1) for _ in range(2))

    def forward(self, x):
        parts = list(self.split(self.stem(x)).chunk(2, 1))
        for inner in self.inner:
            parts.append(inner(parts[-1]))
        fine = self.join(torch.cat(parts, 1))
        coarse = [self.pool_in(self.down(fine))]
        for _ in range(3):
            coarse.append(F.max_pool2d(coarse[-1], 5, 1, 2))
        coarse = self.pool_out(torch.cat(coarse, 1))
        fine = self.lateral(torch.cat([fine, F.interpolate(coarse, scale_factor=2)], 1))
        out = []
        for head, features in zip(self.heads, (fine, coarse)):
            size, _, height, width = features.shape
            y = head(features).view(size, 3, 15, height, width).permute(0, 1, 3, 4, 2).contiguous()
            rows, columns = torch.meshgrid(torch.arange(height, device=x.device), torch.arange(width, device=x.device), indexing="ij")
            grid = torch.stack((columns, rows), 2).view(1, 1, height, width, 2).float()
            xy, wh, rest = y.sigmoid().split((2, 2, 11), 4)
            out.append(torch.cat(((xy * 2 - 0.5 + grid) / width, (wh * 2) ** 2, rest), 4).view(size, -1, 15))
        return torch.cat(out, 1)


def box_loss(model, x, boxes, classes):
    """Complete IoU of decoded boxes with a target each, and a loss on the classes."""
    from torchvision.ops import complete_box_iou_loss

    out = model(x)
    xy, wh = out[..., :2], out[..., 2:4]
    decoded = torch.cat([xy - wh / 2, xy + wh / 2], -1)
    iou = complete_box_iou_loss(decoded, boxes[:, None].expand_as(decoded), reduction="mean")
    return iou + F.binary_cross_entropy(out[..., 5:].mean(1), F.one_hot(classes, 10).float())


@model("yolo-like", "torch", IMAGE, "boxes=f32[B,4]", "classes=i64[B]", loss=box_loss, on_gpu=True)
def yolo():
    return Yolo()


@model("transformers-yolos", "transformers", "pixel_values=f32[B,3,64,64]", loss=lambda m, x: (lambda out: out.logits.square().mean() + out.pred_boxes.mean())(m(x)))
def yolos():
    from transformers import YolosConfig, YolosForObjectDetection

    return YolosForObjectDetection(YolosConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=[64, 64], patch_size=16, num_detection_tokens=10))
