"""Medical images in two and three dimensions."""

from __future__ import annotations

from . import model

VOLUME = ("x=f32[B,1,32,32,32]", "y=i64[B,32,32,32]")


def monai_dice(model, x, y):
    """MONAI's Dice and cross entropy of one-hot labels."""
    from monai.losses import DiceCELoss

    out = model(x)
    out = out[0] if isinstance(out, (tuple, list)) else out
    return DiceCELoss(to_onehot_y=True, softmax=True)(out, y.unsqueeze(1))


@model("monai-unet-3d", "monai", *VOLUME, loss=monai_dice, on_gpu=True)
def unet():
    from monai.networks.nets import UNet

    return UNet(spatial_dims=3, in_channels=1, out_channels=3, channels=(16, 32, 64), strides=(2, 2), num_res_units=2)


@model("monai-unet-2d", "monai", "x=f32[B,1,128,128]", "y=i64[B,128,128]")
def unet_2d():
    from monai.networks.nets import UNet

    return UNet(spatial_dims=2, in_channels=1, out_channels=3, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2, norm="batch")


@model("monai-attention-unet", "monai", *VOLUME)
def attention_unet():
    from monai.networks.nets import AttentionUnet

    return AttentionUnet(spatial_dims=3, in_channels=1, out_channels=3, channels=(8, 16, 32), strides=(2, 2))


@model("monai-unetr", "monai", *VOLUME, loss=monai_dice, on_gpu=True)
def unetr():
    from monai.networks.nets import UNETR

    return UNETR(in_channels=1, out_channels=3, img_size=(32, 32, 32), feature_size=8, hidden_size=96, mlp_dim=192, num_heads=4, spatial_dims=3)


@model("monai-swin-unetr", "monai", "x=f32[B,1,64,64,64]", "y=i64[B,64,64,64]", batches=(1, 4), on_gpu=True)
def swin_unetr():
    from monai.networks.nets import SwinUNETR

    return SwinUNETR(in_channels=1, out_channels=3, feature_size=12, spatial_dims=3)


@model("monai-segresnet", "monai", *VOLUME, loss=monai_dice, on_gpu=True)
def segresnet():
    from monai.networks.nets import SegResNet

    return SegResNet(spatial_dims=3, init_filters=8, in_channels=1, out_channels=3, dropout_prob=0.1)


@model("monai-vnet", "monai", *VOLUME, on_gpu=True)
def vnet():
    from monai.networks.nets import VNet

    return VNet(spatial_dims=3, in_channels=1, out_channels=3)


@model("monai-dynunet", "monai", *VOLUME, on_gpu=True)
def dynunet():
    from monai.networks.nets import DynUNet

    return DynUNet(spatial_dims=3, in_channels=1, out_channels=3, kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2], filters=[8, 16, 32])


@model("monai-basicunetplusplus", "monai", "x=f32[B,1,64,64]", "y=i64[B,64,64]")
def basic_unet_plus_plus():
    from monai.networks.nets import BasicUNetPlusPlus

    return BasicUNetPlusPlus(spatial_dims=2, in_channels=1, out_channels=3, features=(8, 8, 16, 32, 64, 8))


@model("monai-densenet-3d", "monai", "x=f32[B,1,32,32,32]", "y=i64[B]")
def densenet():
    from monai.networks.nets import DenseNet

    return DenseNet(spatial_dims=3, in_channels=1, out_channels=3, init_features=16, growth_rate=8, block_config=(2, 4, 4, 2))


@model("monai-autoencoderkl", "monai", "x=f32[B,1,64,64]", loss=lambda m, x: sum((a - b).abs().mean() for a, b in zip(m(x)[:1], [x])) + m(x)[2].square().mean())
def autoencoder_kl():
    from monai.networks.nets import AutoencoderKL

    return AutoencoderKL(spatial_dims=2, in_channels=1, out_channels=1, channels=(16, 32), latent_channels=4, num_res_blocks=(1, 1), attention_levels=(False, True), norm_num_groups=8)
