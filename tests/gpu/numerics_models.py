"""The models whose training steps numerics.py compares: a small member of every family, without dropout.

Dropout draws differ from PyTorch's, so there is none. Weights are random, and larger than a usual start where that would leave
attention uniform, which hides mistakes.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

AMP = ("fp32", "amp_fp16", "amp_bf16")


@dataclass(frozen=True)
class Input:
    """A tensor of the batch: normal values, or integers below a bound."""
    shape: tuple[int, ...]
    below: int | None = None

    def make(self, batch: int) -> torch.Tensor:
        shape = (batch, *self.shape)
        return torch.randn(shape) if self.below is None else torch.randint(self.below, shape)


@dataclass(frozen=True)
class Model:
    build: Callable[[], nn.Module]
    # By name; the value may be another's name, for one tensor under two names.
    inputs: dict[str, Input | str]
    batch: int
    loss: str | Callable[..., torch.Tensor] = "cross_entropy"
    precisions: tuple[str, ...] = AMP
    # Of AdamW, in the comparison of losses: one at which they fall steadily.
    rate: float = 1e-3
    # The class of the blocks that batchfit checkpoints for `per_block`.
    block: str | None = None
    # By how much weights are larger than they are made.
    gain: float = 1.0
    # Whether twenty steps of training are compared as well.
    curve: bool = False

    def make_batch(self, batch: int) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = {}
        for name, what in self.inputs.items():
            made[name] = made[what] if isinstance(what, str) else what.make(batch)
        return made


def scaled_cross_entropy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As a `GradScaler` has it, for gradients that would lie below the smallest numbers of float16."""
    return 256 * F.cross_entropy(model(x), y)


class CifarNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2, 2)
        self.fc = nn.Linear(64 * 16 * 16, 10)

    def forward(self, x):
        return self.fc(self.pool(self.relu(self.conv1(x))).flatten(1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(512, 512) for _ in range(3)])
        self.head = nn.Linear(512, 100)

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.head(x)


class Transformer(nn.Module):
    """One block on 64 positions of 128 features, in 4 heads."""
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(128), nn.LayerNorm(128)
        self.qkv, self.out = nn.Linear(128, 384), nn.Linear(128, 128)
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)
        self.head = nn.Linear(64 * 128, 10)

    def forward(self, x):
        parts = self.qkv(self.norm1(x)).split(128, dim=2)
        query, key, value = (part.view(x.shape[0], 64, 4, 32).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape[0], 64, 128))
        x = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return self.head(x.flatten(1))


class DoubleConv(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
                         nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class UNet(nn.Module):
    """Four levels, transposed convolutions up, skips joined by concatenation."""
    def __init__(self, classes=21, base=16):
        super().__init__()
        c = [base * 2 ** i for i in range(5)]
        self.inc = DoubleConv(3, c[0])
        self.down = nn.ModuleList([DoubleConv(c[i], c[i + 1]) for i in range(4)])
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList([nn.ConvTranspose2d(c[i + 1], c[i], 2, stride=2) for i in reversed(range(4))])
        self.dec = nn.ModuleList([DoubleConv(c[i + 1], c[i]) for i in reversed(range(4))])
        self.out = nn.Conv2d(c[0], classes, 1)

    def forward(self, x):
        skips = [self.inc(x)]
        for down in self.down:
            skips.append(down(self.pool(skips[-1])))
        x = skips.pop()
        for up, dec in zip(self.up, self.dec):
            x = dec(torch.cat([skips.pop(), up(x)], 1))
        return self.out(x)


def resnet18():
    import torchvision
    return torchvision.models.resnet18()


def bottlenecks():
    from torchvision.models.resnet import Bottleneck, ResNet
    return ResNet(Bottleneck, [1, 2, 1, 1], num_classes=100)


def vgg11():
    import torchvision
    model = torchvision.models.vgg11(num_classes=10, dropout=0.0)
    # The same layers, narrower: the original's have 100 million weights.
    model.classifier[0], model.classifier[3] = nn.Linear(512 * 7 * 7, 256), nn.Linear(256, 256)
    model.classifier[6] = nn.Linear(256, 10)
    return model


def mobilenet_v2():
    import torchvision
    return torchvision.models.mobilenet_v2(num_classes=100, dropout=0.0)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(
        n_layer=2, n_embd=256, n_head=4, n_positions=128, vocab_size=1000, initializer_range=0.05, use_cache=False,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0))


def bert():
    from transformers import BertConfig, BertForSequenceClassification
    return BertForSequenceClassification(BertConfig(
        num_hidden_layers=2, hidden_size=256, num_attention_heads=4, intermediate_size=1024, vocab_size=1000,
        max_position_embeddings=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.05))


def vit():
    from transformers import ViTConfig, ViTForImageClassification
    return ViTForImageClassification(ViTConfig(
        num_hidden_layers=2, hidden_size=256, num_attention_heads=4, intermediate_size=1024, image_size=64, patch_size=16,
        num_labels=100, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.05))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    return LlamaForCausalLM(LlamaConfig(
        num_hidden_layers=2, hidden_size=256, num_attention_heads=4, num_key_value_heads=2, intermediate_size=704,
        vocab_size=1000, max_position_embeddings=128, initializer_range=0.05, use_cache=False))


def image(size: int, classes: int) -> dict[str, Input]:
    return {"x": Input((3, size, size)), "y": Input((), below=classes)}


_TOKENS = {"input_ids": Input((128,), below=1000), "labels": "input_ids"}

MODELS = {
    "cifarnet": Model(CifarNet, image(32, 10), 64),
    "mlp": Model(Mlp, {"x": Input((512,)), "y": Input((), below=100)}, 96, precisions=(*AMP, "bf16")),
    "transformer": Model(Transformer, {"x": Input((64, 128)), "y": Input((), below=10)}, 24),
    "resnet18": Model(resnet18, image(224, 1000), 16, rate=3e-5, block="BasicBlock", curve=True),
    "bottlenecks": Model(bottlenecks, image(64, 100), 16, block="Bottleneck"),
    "vgg11": Model(vgg11, image(224, 10), 4),
    "mobilenet_v2": Model(mobilenet_v2, image(96, 100), 16),
    "unet": Model(UNet, {"x": Input((3, 64, 64)), "y": Input((64, 64), below=21)}, 8),
    "gpt2": Model(gpt2, _TOKENS, 8, loss="model", block="GPT2Block", curve=True),
    "bert": Model(bert, {"input_ids": Input((128,), below=1000), "labels": Input((), below=2)}, 8, loss="model"),
    "vit": Model(vit, {"pixel_values": Input((3, 64, 64)), "labels": Input((), below=100)}, 16, loss="model"),
    "llama": Model(llama, _TOKENS, 8, loss="model", precisions=(*AMP, "bf16")),
}


def weights(spec: Model) -> nn.Module:
    """The model with the values that both sides start from, always the same."""
    torch.manual_seed(0)
    model = spec.build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim <= 1 or not parameter.var() > 0:  # ones and zeros would hide mistakes
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(spec.gain)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d) and module.affine:  # away from the kinks of the activations behind
                module.bias.add_(3.0)
    return model
