"""Semantic segmentation of images."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import model

SMP = "segmentation-models-pytorch"
IMAGE = ("x=f32[B,3,128,128]", "y=i64[B,128,128]")


def dice(model, x, y):
    """Soft Dice loss over classes, as training scripts write it."""
    probabilities = model(x).softmax(1)
    target = F.one_hot(y, probabilities.shape[1]).permute(0, 3, 1, 2).float()
    overlap = (probabilities * target).sum((0, 2, 3))
    total = probabilities.sum((0, 2, 3)) + target.sum((0, 2, 3))
    return 1 - (2 * overlap / (total + 1e-6)).mean()


def dice_and_focal(model, x, y):
    """smp's own losses, added up."""
    from segmentation_models_pytorch.losses import DiceLoss, FocalLoss

    out = model(x)
    return DiceLoss("multiclass")(out, y) + FocalLoss("multiclass")(out, y)


@model("smp-unet-resnet34", SMP, *IMAGE, loss=dice, on_gpu=True)
def smp_unet():
    import segmentation_models_pytorch as smp

    return smp.Unet("resnet34", encoder_weights=None, classes=5)


@model("smp-unetplusplus-efficientnet-b0", SMP, *IMAGE)
def smp_unetplusplus():
    import segmentation_models_pytorch as smp

    return smp.UnetPlusPlus("efficientnet-b0", encoder_weights=None, classes=5)


@model("smp-deeplabv3plus-mobilenetv2", SMP, *IMAGE, on_gpu=True)
def smp_deeplab():
    import segmentation_models_pytorch as smp

    return smp.DeepLabV3Plus("mobilenet_v2", encoder_weights=None, classes=5)


@model("smp-fpn-resnext50", SMP, *IMAGE)
def smp_fpn():
    import segmentation_models_pytorch as smp

    return smp.FPN("resnext50_32x4d", encoder_weights=None, classes=5)


@model("smp-pspnet-resnet18", SMP, *IMAGE)
def smp_pspnet():
    import segmentation_models_pytorch as smp

    return smp.PSPNet("resnet18", encoder_weights=None, classes=5)


@model("smp-segformer-mit-b0", SMP, *IMAGE, loss=dice_and_focal)
def smp_segformer():
    import segmentation_models_pytorch as smp

    return smp.Segformer("mit_b0", encoder_weights=None, classes=5)


@model("smp-upernet-convnext", SMP, *IMAGE)
def smp_upernet():
    import segmentation_models_pytorch as smp

    return smp.UPerNet("tu-convnext_atto", encoder_weights=None, classes=5)


@model("torchvision-deeplabv3", "torchvision", "x=f32[B,3,128,128]", "y=i64[B,128,128]", on_gpu=True)
def torchvision_deeplab():
    from torchvision.models.segmentation import deeplabv3_resnet50

    return deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=5)


@model("torchvision-lraspp", "torchvision", *IMAGE)
def torchvision_lraspp():
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    return lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)


@model("transformers-mask2former-pixel-decoder", "transformers", "pixel_values=f32[B,3,128,128]", loss=lambda m, x: m(x).transformer_decoder_last_hidden_state.square().mean())
def transformers_mask2former():
    from transformers import Mask2FormerConfig, Mask2FormerModel, SwinConfig

    backbone = SwinConfig(image_size=128, embed_dim=32, depths=[1, 1, 2, 1], num_heads=[1, 2, 4, 8], window_size=4, out_features=["stage1", "stage2", "stage3", "stage4"])
    return Mask2FormerModel(Mask2FormerConfig(backbone_config=backbone, hidden_dim=64, encoder_layers=2, decoder_layers=2, encoder_feedforward_dim=128, dim_feedforward=128, mask_feature_size=64, feature_size=64, num_queries=20, num_attention_heads=4))


@model("transformers-segformer", "transformers", "pixel_values=f32[B,3,128,128]", "labels=i64[B,128,128]", loss="model")
def transformers_segformer():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return SegformerForSemanticSegmentation(SegformerConfig(depths=[1, 1, 1, 1], num_labels=5))


@model("transformers-dpt-depth", "transformers", "x=f32[B,3,64,64]", "y=f32[B,64,64]", loss=lambda m, x, y: F.l1_loss(m(x).predicted_depth, y))
def transformers_dpt():
    from transformers import DPTConfig, DPTForDepthEstimation

    return DPTForDepthEstimation(DPTConfig(hidden_size=96, num_hidden_layers=4, num_attention_heads=4, intermediate_size=192, image_size=64, patch_size=16, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[24, 48, 96, 96], fusion_hidden_size=48, is_hybrid=False))


@model("transformers-depth-anything", "transformers", "x=f32[B,3,70,70]", "y=f32[B,70,70]", loss=lambda m, x, y: (m(x).predicted_depth - y).abs().clamp(max=5).mean())
def transformers_depth_anything():
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    backbone = Dinov2Config(hidden_size=96, num_hidden_layers=4, num_attention_heads=4, image_size=70, patch_size=14, out_features=["stage1", "stage2", "stage3", "stage4"], reshape_hidden_states=False)
    return DepthAnythingForDepthEstimation(DepthAnythingConfig(backbone_config=backbone, reassemble_hidden_size=96, neck_hidden_sizes=[24, 48, 96, 96], fusion_hidden_size=32, patch_size=14))


@model("segment-anything-encoder", "segment-anything", "x=f32[B,3,256,256]", loss=lambda m, x: m(x).square().mean(), batches=(1, 4))
def segment_anything():
    from segment_anything.modeling.image_encoder import ImageEncoderViT

    return ImageEncoderViT(img_size=256, embed_dim=96, depth=4, num_heads=4, use_rel_pos=True, window_size=7, global_attn_indexes=(3,), out_chans=64)


class Hourglass(torch.nn.Module):
    """An hourglass of residual blocks around itself, for key points."""

    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.above = self._block(width)
        self.down = self._block(width)
        self.inside = Hourglass(width, depth - 1) if depth > 1 else self._block(width)
        self.up = self._block(width)

    @staticmethod
    def _block(width: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Conv2d(width, width, 3, padding=1), torch.nn.BatchNorm2d(width), torch.nn.ReLU())

    def forward(self, x):
        inside = self.up(self.inside(self.down(F.max_pool2d(x, 2))))
        return self.above(x) + F.interpolate(inside, scale_factor=2, mode="nearest")


@model("hourglass-keypoints", "torch", "x=f32[B,3,64,64]", "y=f32[B,17,64,64]", loss="mse", on_gpu=True)
def hourglass():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, padding=1), Hourglass(), torch.nn.Conv2d(32, 17, 1))
