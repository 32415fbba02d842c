"""Generators: super-resolution, adversarial nets, autoencoders."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import model

SPANDREL = "spandrel"
UPSCALED = ("x=f32[B,3,32,32]", "y=f32[B,3,64,64]")


def _spandrel(path: str, cls: str, batch: tuple[str, ...] = UPSCALED, on_gpu: bool = False, **options) -> None:
    def build():
        import importlib

        return getattr(importlib.import_module(f"spandrel.architectures.{path}"), cls)(**options)

    build.__module__ = __name__
    model(f"spandrel-{cls.lower()}", SPANDREL, *batch, loss=F.l1_loss, batches=(2, 8), on_gpu=on_gpu)(build)


_spandrel("ESRGAN.__arch.RRDB", "RRDBNet", in_nc=3, out_nc=3, num_filters=16, num_blocks=2, scale=2, on_gpu=True)
_spandrel("SwinIR.__arch.SwinIR", "SwinIR", img_size=32, window_size=8, depths=[2, 2], embed_dim=24, num_heads=[2, 2], mlp_ratio=2, upscale=2, upsampler="pixelshuffle", on_gpu=True)
_spandrel("HAT.__arch.HAT", "HAT", img_size=32, window_size=8, depths=[2], embed_dim=24, num_heads=[2], compress_ratio=3, squeeze_factor=6, upscale=2)
_spandrel("Uformer.__arch.Uformer", "Uformer", ("x=f32[B,3,128,128]", "y=f32[B,3,128,128]"), img_size=128, embed_dim=16, depths=[1] * 9, win_size=8)
_spandrel("NAFNet.__arch.NAFNet_arch", "NAFNet", ("x=f32[B,3,32,32]", "y=f32[B,3,32,32]"), width=16, middle_blk_num=1, enc_blk_nums=[1, 1], dec_blk_nums=[1, 1])
_spandrel("DAT.__arch.DAT", "DAT", img_size=32, split_size=[8, 8], depth=[2], embed_dim=24, num_heads=[2], upscale=2)
_spandrel("OmniSR.__arch.OmniSR", "OmniSR", num_feat=16, res_num=1, up_scale=2)


def hinge(model, z, real):
    """Generator and discriminator in one step, as a script that adds both losses up."""
    fake = model.generator(z)
    discriminator = F.relu(1 - model.discriminator(real)).mean() + F.relu(1 + model.discriminator(fake.detach())).mean()
    return discriminator - model.discriminator(fake).mean()


class Dcgan(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        up = lambda a, b, s, p: [torch.nn.ConvTranspose2d(a, b, 4, s, p, bias=False), torch.nn.BatchNorm2d(b), torch.nn.ReLU(True)]  # noqa: E731
        self.generator = torch.nn.Sequential(*up(64, 64, 1, 0), *up(64, 32, 2, 1), *up(32, 16, 2, 1), torch.nn.ConvTranspose2d(16, 3, 4, 2, 1), torch.nn.Tanh())
        down = lambda a, b: [torch.nn.utils.parametrizations.spectral_norm(torch.nn.Conv2d(a, b, 4, 2, 1)), torch.nn.LeakyReLU(0.2, True)]  # noqa: E731
        self.discriminator = torch.nn.Sequential(*down(3, 16), *down(16, 32), *down(32, 64), torch.nn.Conv2d(64, 1, 4), torch.nn.Flatten())


class ModulatedConv(torch.nn.Module):
    """StyleGAN2's convolution: weights by style for each sample, one grouped convolution for all."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.weight, self.style, self.noise = torch.nn.Parameter(torch.randn(1, b, a, 3, 3)), torch.nn.Linear(64, a), torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, w):
        size, width, height, _ = x.shape
        weight = self.weight * (self.style(w) + 1)[:, None, :, None, None]
        weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False).reshape(1, size * width, 2 * height, 2 * height)
        x = F.conv2d(x, weight.flatten(0, 1), padding=1, groups=size).view(size, -1, 2 * height, 2 * height)
        return F.leaky_relu(x + self.noise * torch.randn_like(x[:, :1]), 0.2)


class StyleGenerator(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mapping = torch.nn.Sequential(*(m for _ in range(3) for m in (torch.nn.Linear(64, 64), torch.nn.LeakyReLU(0.2))))
        self.constant = torch.nn.Parameter(torch.randn(1, 64, 4, 4))
        self.layers, self.to_rgb = torch.nn.ModuleList(ModulatedConv(64, 64) for _ in range(3)), torch.nn.Conv2d(64, 3, 1)

    def forward(self, z):
        w = self.mapping(z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8))
        x = self.constant.expand(z.shape[0], -1, -1, -1)
        for layer in self.layers:
            x = layer(x, w)
        return self.to_rgb(x)


@model("dcgan", "torch", "z=f32[B,64,1,1]", "real=f32[B,3,32,32]", loss=hinge, on_gpu=True)
def dcgan():
    return Dcgan()


@model("stylegan2-like", "torch", "z=f32[B,64]", "y=f32[B,3,32,32]", loss=lambda m, z, y: F.mse_loss(m(z), y), on_gpu=True)
def style():
    return StyleGenerator()


@model("cyclegan-generator", "torch", "x=f32[B,3,64,64]", loss=lambda m, x: F.l1_loss(m(x), x), on_gpu=True)
def cyclegan():
    layers = [torch.nn.ReflectionPad2d(3), torch.nn.Conv2d(3, 16, 7), torch.nn.InstanceNorm2d(16), torch.nn.ReLU(True)]
    for width in (16, 32):
        layers += [torch.nn.Conv2d(width, 2 * width, 3, 2, 1), torch.nn.InstanceNorm2d(2 * width), torch.nn.ReLU(True)]
    for width in (64, 32):
        layers += [torch.nn.ConvTranspose2d(width, width // 2, 3, 2, 1, output_padding=1), torch.nn.InstanceNorm2d(width // 2), torch.nn.ReLU(True)]
    return torch.nn.Sequential(*layers, torch.nn.ReflectionPad2d(3), torch.nn.Conv2d(16, 3, 7), torch.nn.Tanh())


def elbo(model, x):
    out, mean, log_variance = model(x)
    reconstruction = F.binary_cross_entropy_with_logits(out, x, reduction="sum")
    return reconstruction - 0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())


@model("variational-autoencoder", "torch", "x=f32[B,784]", loss=elbo, batches=(64, 256))
def vae():
    class Vae(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.mean, self.log_variance = torch.nn.Linear(784, 400), torch.nn.Linear(400, 20), torch.nn.Linear(400, 20)
            self.decoder = torch.nn.Sequential(torch.nn.Linear(20, 400), torch.nn.ReLU(), torch.nn.Linear(400, 784))

        def forward(self, x):
            h = F.relu(self.encoder(x))
            mean, log_variance = self.mean(h), self.log_variance(h)
            z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(log_variance)
            return self.decoder(z), mean, log_variance

    return Vae()


@model("vector-quantize-pytorch-fsq", "vector-quantize-pytorch", "x=f32[B,64,32]", "y=f32[B,64,32]", loss=lambda m, x, y: F.mse_loss(m(x), y))
def fsq():
    from vector_quantize_pytorch import FSQ

    class Quantized(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.quantizer, self.second = torch.nn.Linear(32, 64), FSQ(levels=[8, 5, 5, 5], dim=64), torch.nn.Linear(64, 32)

        def forward(self, x):
            return self.second(self.quantizer(self.first(x))[0])

    return Quantized()


@model("vector-quantize-pytorch-lookup-free", "vector-quantize-pytorch", "x=f32[B,64,32]", "y=f32[B,64,32]", loss=lambda m, x, y: (lambda out: F.mse_loss(out[0], y) + out[1])(m(x)))
def lookup_free():
    from vector_quantize_pytorch import LFQ

    class Quantized(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.quantizer = torch.nn.Linear(32, 32), LFQ(codebook_size=256, dim=32, entropy_loss_weight=0.1)

        def forward(self, x):
            quantized, _, loss = self.quantizer(self.first(x))
            return quantized, loss

    return Quantized()


@model("perceptual-loss", "lpips", "x=f32[B,3,64,64]", "y=f32[B,3,64,64]", loss=lambda m, x, y: m["perceptual"](m["generator"](x), y).mean(), on_gpu=True)
def perceptual():
    import lpips

    frozen = lpips.LPIPS(net="alex", pretrained=False, pnet_rand=True, verbose=False).requires_grad_(False)
    generator = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.PReLU(), torch.nn.Conv2d(16, 3, 3, padding=1))
    return torch.nn.ModuleDict({"generator": generator, "perceptual": frozen})


@model("masked-autoencoder-transformers", "transformers", "pixel_values=f32[B,3,64,64]", loss="model")
def masked_autoencoder():
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    return ViTMAEForPreTraining(ViTMAEConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=64, patch_size=8, decoder_hidden_size=32, decoder_num_hidden_layers=2, decoder_num_attention_heads=4, decoder_intermediate_size=64))
