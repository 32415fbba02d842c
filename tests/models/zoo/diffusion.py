"""Denoisers and autoencoders of diffusion models, trained to predict noise."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import model

LIBRARY = "diffusers"


def noise(model, x, t, y):
    return F.mse_loss(model(x, t).sample, y)


def conditioned(model, x, t, text, y):
    return F.mse_loss(model(x, t, text).sample, y)


@model("diffusers-unet2d", LIBRARY, "x=f32[B,3,32,32]", "t=i64[B]", "y=f32[B,3,32,32]", loss=noise, max_batch=63, on_gpu=True)
def unet_2d():
    from diffusers import UNet2DModel

    return UNet2DModel(sample_size=32, block_out_channels=(32, 64, 64), down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"), norm_num_groups=8)


@model("diffusers-unet2d-condition", LIBRARY, "x=f32[B,4,32,32]", "t=i64[B]", "text=f32[B,77,64]", "y=f32[B,4,32,32]", loss=conditioned, max_batch=63, on_gpu=True)
def unet_2d_condition():
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(sample_size=32, block_out_channels=(32, 64), down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=64, attention_head_dim=8, norm_num_groups=8)


@model("diffusers-unet1d", LIBRARY, "x=f32[B,2,256]", "t=i64[B]", "y=f32[B,2,256]", loss=noise)
def unet_1d():
    from diffusers import UNet1DModel

    return UNet1DModel(sample_size=256, in_channels=2, out_channels=2, extra_in_channels=32, block_out_channels=(16, 32, 32), down_block_types=("DownBlock1DNoSkip", "DownBlock1D", "AttnDownBlock1D"), up_block_types=("AttnUpBlock1D", "UpBlock1D", "UpBlock1DNoSkip"))


@model("diffusers-dit", LIBRARY, "x=f32[B,4,16,16]", "t=i64[B]", "label=i64[B]", "y=f32[B,8,16,16]", loss=lambda m, x, t, label, y: F.mse_loss(m(x, t, label).sample, y))
def dit():
    from diffusers import DiTTransformer2DModel

    return DiTTransformer2DModel(num_attention_heads=4, attention_head_dim=32, in_channels=4, out_channels=8, num_layers=4, sample_size=16, num_embeds_ada_norm=100)


@model("diffusers-pixart", LIBRARY, "x=f32[B,4,16,16]", "t=i64[B]", "text=f32[B,32,64]", "y=f32[B,8,16,16]", loss=lambda m, x, t, text, y: F.mse_loss(m(x, encoder_hidden_states=text, timestep=t, added_cond_kwargs={"resolution": None, "aspect_ratio": None}).sample, y))
def pixart():
    from diffusers import PixArtTransformer2DModel

    return PixArtTransformer2DModel(num_attention_heads=4, attention_head_dim=32, in_channels=4, out_channels=8, num_layers=3, sample_size=16, cross_attention_dim=128, caption_channels=64)


@model("diffusers-sd3", LIBRARY, "x=f32[B,16,16,16]", "t=i64[B]", "text=f32[B,32,64]", "pooled=f32[B,64]", "y=f32[B,16,16,16]", loss=lambda m, x, t, text, pooled, y: F.mse_loss(m(x, encoder_hidden_states=text, pooled_projections=pooled, timestep=t).sample, y))
def sd3():
    from diffusers import SD3Transformer2DModel

    return SD3Transformer2DModel(sample_size=16, num_layers=3, attention_head_dim=32, num_attention_heads=4, joint_attention_dim=64, caption_projection_dim=128, pooled_projection_dim=64)


@model("diffusers-flux", LIBRARY, "x=f32[B,64,16]", "text=f32[B,16,64]", "pooled=f32[B,32]", "t=f32[B]", "txt_ids=f32[16,3]", "img_ids=f32[64,3]", "y=f32[B,64,16]", loss=lambda m, x, text, pooled, t, txt_ids, img_ids, y: F.mse_loss(m(x, encoder_hidden_states=text, pooled_projections=pooled, timestep=t, txt_ids=txt_ids, img_ids=img_ids).sample, y))
def flux():
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel(patch_size=1, in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=4, joint_attention_dim=64, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8))


@model("diffusers-vae", LIBRARY, "x=f32[B,3,64,64]", loss=lambda m, x: (m(x).sample - x).abs().mean(), max_batch=63, on_gpu=True)
def vae():
    from diffusers import AutoencoderKL

    return AutoencoderKL(block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"), up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"), latent_channels=4, norm_num_groups=8)


@model("diffusers-vq", LIBRARY, "x=f32[B,3,32,32]", loss=lambda m, x: (lambda out: F.mse_loss(out.sample, x) + out.commit_loss.mean())(m(x)), max_batch=63)
def vq():
    from diffusers import VQModel

    return VQModel(block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"), up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"), latent_channels=3, num_vq_embeddings=64, norm_num_groups=8)


@model("diffusers-controlnet", LIBRARY, "x=f32[B,4,16,16]", "t=i64[B]", "text=f32[B,32,64]", "hint=f32[B,3,128,128]", loss=lambda m, x, t, text, hint: sum(s.square().mean() for s in m(x, t, text, hint).down_block_res_samples), max_batch=63)
def controlnet():
    from diffusers import ControlNetModel

    return ControlNetModel(block_out_channels=(32, 64), down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), cross_attention_dim=64, attention_head_dim=8, norm_num_groups=8, conditioning_embedding_out_channels=(16, 16, 32, 32))


@model("denoising-diffusion-pytorch-unet", "denoising-diffusion-pytorch", "x=f32[B,3,32,32]", "t=i64[B]", "y=f32[B,3,32,32]", loss=lambda m, x, t, y: F.mse_loss(m(x, t), y), on_gpu=True)
def lucidrains_unet():
    from denoising_diffusion_pytorch import Unet

    return Unet(dim=32, dim_mults=(1, 2, 4), flash_attn=False)


@model("denoising-diffusion-pytorch-gaussian", "denoising-diffusion-pytorch", "x=f32[B,3,32,32]", loss=lambda m, x: m(x))
def gaussian_diffusion():
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    return GaussianDiffusion(Unet(dim=16, dim_mults=(1, 2)), image_size=32, timesteps=100)
