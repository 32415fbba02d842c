"""Classification of images: torchvision, timm, vit-pytorch and others."""

from __future__ import annotations

import torch.nn.functional as F

from . import model

IMAGE = ("x=f32[B,3,64,64]", "y=i64[B]")
LARGE = ("x=f32[B,3,224,224]", "y=i64[B]")


def timm_models() -> None:
    for name in ("convnextv2_atto", "efficientnetv2_rw_t", "regnety_002", "mobilenetv4_conv_small", "ghostnetv3_100", "edgenext_xx_small"):
        _timm(name, IMAGE)
    for name in ("swinv2_tiny_window8_256", "maxvit_nano_rw_256", "xcit_nano_12_p8_224", "volo_d1_224", "eva02_tiny_patch14_224",
                 "cait_xxs24_224", "convit_tiny", "gmlp_s16_224", "davit_tiny", "focalnet_tiny_srf", "levit_128s", "hiera_tiny_224"):  # fmt: skip
        size = 256 if name.endswith("256") else 224
        _timm(name, (f"x=f32[B,3,{size},{size}]", "y=i64[B]"))


def _timm(name: str, batch: tuple[str, ...]) -> None:
    def build():
        import timm

        return timm.create_model(name, num_classes=10)

    build.__module__ = __name__
    model(f"timm-{name}", "timm", *batch, batches=(2, 8))(build)


timm_models()


def _torchvision(name: str, **options: object) -> None:
    def build():
        import torchvision

        return getattr(torchvision.models, name)(weights=None, num_classes=10)

    build.__module__ = __name__
    model(f"torchvision-{name}", "torchvision", *LARGE, batches=(2, 8), **options)(build)


for _name in ("shufflenet_v2_x0_5", "squeezenet1_1", "densenet121", "swin_v2_t", "vgg11_bn"):
    _torchvision(_name, on_gpu=_name in ("densenet121", "shufflenet_v2_x0_5"))


@model("torchvision-googlenet", "torchvision", *LARGE, loss=lambda m, x, y: (lambda o: F.cross_entropy(o.logits, y) + 0.3 * (F.cross_entropy(o.aux_logits1, y) + F.cross_entropy(o.aux_logits2, y)))(m(x)), batches=(2, 8), on_gpu=True)
def googlenet():
    from torchvision.models import googlenet

    return googlenet(weights=None, num_classes=10, init_weights=False, aux_logits=True)


@model("torchvision-inception-v3", "torchvision", "x=f32[B,3,299,299]", "y=i64[B]", loss=lambda m, x, y: (lambda o: F.cross_entropy(o.logits, y) + 0.4 * F.cross_entropy(o.aux_logits, y))(m(x)), batches=(2, 8))
def inception():
    from torchvision.models import inception_v3

    return inception_v3(weights=None, num_classes=10, init_weights=False, aux_logits=True)


@model("efficientnet-pytorch-b0", "efficientnet_pytorch", *LARGE, batches=(2, 8), on_gpu=True)
def efficientnet_b0():
    from efficientnet_pytorch import EfficientNet

    return EfficientNet.from_name("efficientnet-b0", num_classes=10)


@model("resnest50", "resnest", *LARGE, batches=(2, 8))
def resnest():
    from resnest.torch import resnest50

    return resnest50(pretrained=False, num_classes=10)


@model("kornia-vit-augmented", "kornia", "x=f32[B,3,32,32]", "y=i64[B]", loss=lambda m, x, y: F.cross_entropy(m(x)[:, 0], y))
def kornia_vit():
    from kornia.models.vit import VisionTransformer

    return VisionTransformer(image_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4)


@model("kornia-filters", "kornia", "x=f32[B,3,64,64]", "y=f32[B,3,64,64]", loss="mse", on_gpu=True)
def kornia_filters():
    import torch
    from kornia.filters import Laplacian, Sobel

    return torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3, padding=1), Laplacian(5), Sobel())


@model("kornia-ssim-loss", "kornia", "x=f32[B,3,64,64]", "y=f32[B,3,64,64]", loss=lambda m, x, y: __import__("kornia").losses.ssim_loss(m(x), y, 11))
def kornia_ssim():
    import torch

    return torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.GELU(), torch.nn.Conv2d(16, 3, 3, padding=1), torch.nn.Sigmoid())


@model("swin-transformer-pytorch", "swin-transformer-pytorch", *LARGE, batches=(2, 8))
def swin_pytorch():
    from swin_transformer_pytorch import SwinTransformer

    return SwinTransformer(hidden_dim=48, layers=(2, 2, 2, 2), heads=(3, 6, 12, 24), num_classes=10)


@model("mlp-mixer-pytorch", "mlp-mixer-pytorch", *IMAGE)
def mlp_mixer():
    from mlp_mixer_pytorch import MLPMixer

    return MLPMixer(image_size=64, channels=3, patch_size=8, dim=128, depth=4, num_classes=10)


@model("perceiver-pytorch", "perceiver-pytorch", "x=f32[B,32,32,3]", "y=i64[B]")
def perceiver():
    from perceiver_pytorch import Perceiver

    return Perceiver(num_freq_bands=4, depth=2, max_freq=10.0, num_latents=32, latent_dim=64, latent_heads=4, latent_dim_head=16, cross_dim_head=16, num_classes=10, input_axis=2, input_channels=3)


@model("metric-learning-contrastive", "pytorch-metric-learning", "x=f32[B,3,32,32]", "x2=f32[B,3,32,32]", loss=lambda m, x, x2: info_nce(m(x), m(x2)))
def contrastive():
    import torch

    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))


def info_nce(a, b, temperature: float = 0.1):
    """SimCLR's NT-Xent, as its scripts write it."""
    import torch

    features = F.normalize(torch.cat([a, b]), dim=1)
    similarity = features @ features.T / temperature
    size = a.shape[0]
    itself = torch.eye(2 * size, dtype=torch.bool, device=a.device)
    similarity = similarity.masked_fill(itself, float("-inf"))
    target = torch.cat([torch.arange(size, 2 * size), torch.arange(size)]).to(a.device)
    return F.cross_entropy(similarity, target)
