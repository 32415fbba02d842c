"""Models of 2026 and what their training does: checkpointing that a module was given, weights in bfloat16, biased and capped attention,
delta rules, long audio, foreach operators in a loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from . import PRECISIONS, model

HF, DIFFUSERS = "transformers", "diffusers"
BF16 = torch.bfloat16
# Those with all weights in bfloat16, without and with autocast.
HALF = ("bf16", "amp_bf16")
TEXT = ("input_ids=i64[B,256]", "labels=input_ids")
# Random features instead of tokens, so that experts share the work as real text makes them.
EMBEDDED = ("inputs_embeds=f32[B,128,256]", "labels=i64[B,128]")
BASE = {
    "vocab_size": 4096, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 768,
    "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**BASE, "num_key_value_heads": 4}


def _hf(name: str, kind: str, batch: tuple[str, ...] = TEXT, *, dtype=None, checkpointed: bool = False, loss: object = "model", **options) -> None:
    """A model of transformers; `kind` is its class, whose config is called as it is up to `For` or `Model`."""

    def build():
        import transformers

        stem = kind.removesuffix("Model").split("For")[0]
        config = getattr(transformers, f"{stem}TextConfig", None) or getattr(transformers, f"{stem}Config")
        built = getattr(transformers, kind)._from_config(config(**options), **({} if dtype is None else {"dtype": dtype}))
        if checkpointed:
            built.gradient_checkpointing_enable()
        return built

    build.__module__ = __name__
    model(f"transformers-{name}", HF, *batch, loss=loss, batches=(2, 8), on_gpu=True, precisions=PRECISIONS if dtype is None else HALF)(build)


_hf("smollm3-checkpointed", "SmolLM3ForCausalLM", checkpointed=True, **GROUPED)
_hf("eurobert-checkpointed", "EuroBertForMaskedLM", checkpointed=True, **BASE)
_hf("olmo3-bf16", "Olmo3ForCausalLM", dtype=BF16, sliding_window=64, **GROUPED)
_hf("apertus-bf16-checkpointed", "ApertusForCausalLM", dtype=BF16, checkpointed=True, **GROUPED)
_hf("vaultgemma-eager-caps", "VaultGemmaForCausalLM", head_dim=32, sliding_window=64, attn_implementation="eager", **GROUPED)
_hf("lfm2", "Lfm2ForCausalLM", layer_types=["conv", "full_attention", "conv", "conv"], **GROUPED)
_hf("falcon-h1", "FalconH1ForCausalLM", mamba_d_ssm=256, mamba_n_heads=8, mamba_d_head=32, mamba_d_state=64, mamba_chunk_size=64, **GROUPED)
_hf("olmo-hybrid", "OlmoHybridForCausalLM", linear_num_key_heads=4, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=64, layer_types=["linear_attention", "full_attention"] * 2, **GROUPED)
_hf("qwen3.5-checkpointed", "Qwen3_5ForCausalLM", checkpointed=True, head_dim=32, linear_key_head_dim=32, linear_value_head_dim=32, linear_num_key_heads=4, linear_num_value_heads=8, **GROUPED)
_hf("qwen3.5-bf16", "Qwen3_5ForCausalLM", dtype=BF16, head_dim=32, linear_key_head_dim=32, linear_value_head_dim=32, linear_num_key_heads=4, linear_num_value_heads=8, **GROUPED)
_hf("kimi-linear", "KimiLinearForCausalLM", EMBEDDED, num_local_experts=8, num_experts_per_tok=2, moe_intermediate_size=256, linear_head_dim=32, linear_num_heads=8, kv_lora_rank=64, qk_rope_head_dim=16, v_head_dim=32, qk_nope_head_dim=32, num_key_value_heads=8, **BASE)
_hf("glm4-moe", "Glm4MoeForCausalLM", EMBEDDED, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=256, first_k_dense_replace=1, head_dim=32, **GROUPED)
_hf("ernie4.5-moe-checkpointed", "Ernie4_5_MoeForCausalLM", EMBEDDED, checkpointed=True, moe_num_experts=8, moe_k=2, moe_intermediate_size=256, **GROUPED)
_hf("esmc", "EsmcForMaskedLM", **BASE)
_hf("dinov3-bf16", "DINOv3ViTModel", ("pixel_values=bf16[B,3,224,224]",), dtype=BF16, loss=lambda m, x: m(x).pooler_output.float().square().mean(), num_hidden_layers=4, num_register_tokens=4)
_hf("vjepa2-classifier", "VJEPA2ForVideoClassification", ("pixel_values_videos=f32[B,8,3,128,128]", "labels=i64[B]"), crop_size=128, frames_per_clip=8, hidden_size=256, num_attention_heads=8, num_hidden_layers=4, num_pooler_layers=2, pred_num_hidden_layers=1)
_hf("swin2sr", "Swin2SRForImageSuperResolution", ("x=f32[B,3,64,64]", "y=f32[B,3,128,128]"), loss=lambda m, x, y: F.l1_loss(m(x).reconstruction, y), embed_dim=60, depths=[2, 2], num_heads=[6, 6], drop_path_rate=0.0)
SPOKEN = {"apply_spec_augment": False, "layerdrop": 0.0, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 768, "vocab_size": 32}
_hf("wav2vec2-bert", "Wav2Vec2BertForCTC", ("input_features=f32[B,400,160]", "labels=i64[B,40]=1"), **SPOKEN)
_hf("wavlm-bf16", "WavLMForCTC", ("input_values=bf16[B,80000]", "labels=i64[B,40]=1"), dtype=BF16, **SPOKEN)
_hf("moonshine", "MoonshineForConditionalGeneration", ("input_values=f32[B,160000]", "labels=i64[B,64]"), use_cache=False, pad_token_id=0)
_hf("moonshine-bf16", "MoonshineForConditionalGeneration", ("input_values=bf16[B,160000]", "labels=i64[B,64]"), dtype=BF16, use_cache=False, pad_token_id=0)
_hf("dac", "DacModel", ("x=f32[B,1,32768]",), loss=lambda m, x: (lambda out: F.l1_loss(out.audio_values, x[:, 0]) + out.loss.mean())(m(x)), encoder_hidden_size=32, decoder_hidden_size=512)
_hf("mimi-bf16", "MimiModel", ("x=bf16[B,1,96000]",), dtype=BF16, loss=lambda m, x: F.l1_loss(m.decoder(m.encoder(x)), x), num_hidden_layers=2, num_filters=32)


def _adapted(base, checkpointed: bool, targets):
    import peft

    if checkpointed:
        base.gradient_checkpointing_enable()
        base.enable_input_require_grads()
    return peft.get_peft_model(base, peft.LoraConfig(r=16, target_modules=targets))


@model("peft-lora-mistral-bf16-checkpointed", "peft", *TEXT, loss="model", batches=(2, 8), on_gpu=True)
def lora_mistral():
    from transformers import MistralConfig, MistralForCausalLM

    return _adapted(MistralForCausalLM._from_config(MistralConfig(**GROUPED), dtype=BF16), True, "all-linear")


@model("peft-lora-qwen3-checkpointed", "peft", *TEXT, loss="model", batches=(2, 8), on_gpu=True)
def lora_qwen3():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return _adapted(Qwen3ForCausalLM(Qwen3Config(head_dim=32, **GROUPED)), True, ["q_proj", "v_proj", "down_proj"])


def _timm(name: str, title: str, dtype=torch.float32, checkpointed: bool = False, side: int = 224, **options) -> None:
    def build():
        import timm

        built = timm.create_model(name, num_classes=10, **options).to(dtype)
        if checkpointed:
            built.set_grad_checkpointing()
        return built

    build.__module__ = __name__
    kind = "bf16" if dtype == BF16 else "f32"
    model(f"timm-{title}", "timm", f"x={kind}[B,3,{side},{side}]", "y=i64[B]", batches=(2, 8), on_gpu=True, precisions=HALF if dtype == BF16 else PRECISIONS)(build)


_timm("vit_base_patch16_siglip_224", "siglip-map-head", depth=3)
_timm("vit_base_patch16_siglip_224", "siglip-map-head-bf16-checkpointed", BF16, True, depth=3)
_timm("convnextv2_femto", "convnextv2-checkpointed", checkpointed=True)
_timm("mambaout_femto", "mambaout-bf16", BF16)


def flow(model, x, t, text, y):
    return F.mse_loss(model(hidden_states=x, timestep=t, encoder_hidden_states=text, return_dict=False)[0].float(), y)


def _wan(dtype, checkpointed: bool):
    from diffusers import WanTransformer3DModel

    built = WanTransformer3DModel(num_attention_heads=4, attention_head_dim=64, text_dim=256, ffn_dim=768, num_layers=4).to(dtype)
    if checkpointed:
        built.enable_gradient_checkpointing()
    return built


@model("diffusers-wan-checkpointed", DIFFUSERS, "x=f32[B,16,4,16,16]", "t=i64[B]", "text=f32[B,64,256]", "y=f32[B,16,4,16,16]", loss=flow, batches=(2, 8), on_gpu=True)
def wan():
    return _wan(torch.float32, True)


@model("diffusers-wan-bf16-lora-checkpointed", DIFFUSERS, "x=bf16[B,16,4,16,16]", "t=i64[B]", "text=bf16[B,64,256]", "y=f32[B,16,4,16,16]", loss=flow, batches=(2, 8), on_gpu=True, precisions=HALF)
def wan_lora():
    import peft

    built = _wan(BF16, True)
    built.requires_grad_(False)
    built.add_adapter(peft.LoraConfig(r=8, target_modules=["to_q", "to_k", "to_v", "to_out.0"]))
    return built


@model("diffusers-sana", DIFFUSERS, "x=f32[B,32,32,32]", "t=i64[B]", "text=f32[B,64,256]", "y=f32[B,32,32,32]", loss=flow, batches=(2, 8), on_gpu=True)
def sana():
    from diffusers import SanaTransformer2DModel

    return SanaTransformer2DModel(num_attention_heads=8, num_layers=4, num_cross_attention_heads=4, cross_attention_head_dim=64, cross_attention_dim=256, caption_channels=256)


@model("diffusers-cogvideox-checkpointed", DIFFUSERS, "x=f32[B,5,16,16,16]", "t=i64[B]", "text=f32[B,32,128]", "y=f32[B,5,16,16,16]", loss=flow, batches=(2, 8), on_gpu=True)
def cogvideox():
    from diffusers import CogVideoXTransformer3DModel

    built = CogVideoXTransformer3DModel(num_attention_heads=4, num_layers=4, text_embed_dim=128, sample_width=16, sample_height=16, sample_frames=17, max_text_seq_length=32)
    built.enable_gradient_checkpointing()
    return built


@model("diffusers-unet2d-condition-checkpointed", DIFFUSERS, "x=f32[B,4,32,32]", "t=i64[B]", "text=f32[B,77,128]", "y=f32[B,4,32,32]", loss=lambda m, x, t, text, y: F.mse_loss(m(x, t, text).sample, y), batches=(2, 8), max_batch=63, on_gpu=True)
def unet():
    from diffusers import UNet2DConditionModel

    built = UNet2DConditionModel(sample_size=32, block_out_channels=(64, 128), down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=128, attention_head_dim=8)
    built.enable_gradient_checkpointing()
    return built


@model("diffusers-oobleck", DIFFUSERS, "x=f32[B,2,65536]", loss=lambda m, x: F.l1_loss(m(x).sample, x), batches=(1, 4), on_gpu=True)
def oobleck():
    from diffusers import AutoencoderOobleck

    return AutoencoderOobleck(encoder_hidden_size=32, decoder_channels=32, decoder_input_channels=16)


@model("diffusers-dc-ae-bf16", DIFFUSERS, "x=bf16[B,3,128,128]", precisions=HALF, loss=lambda m, x: F.mse_loss(m(x).sample, x), batches=(2, 8), on_gpu=True)
def dc_ae():
    from diffusers import AutoencoderDC

    blocks = {"block_types": ("ResBlock", "ResBlock", "EfficientViTBlock"), "block_out_channels": (64, 128, 256), "layers_per_block": (1, 1, 1), "qkv_multiscales": ((), (), (5,))}
    return AutoencoderDC(**{f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in blocks.items()}).to(BF16)


class Norm(nn.Module):
    """RMS norm in float32, where autocast is off."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            y = x.float()
            return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * self.weight).to(x.dtype)


class Biased(nn.Module):
    """A block whose attention adds a bias that is trained; with `cap` written out, with tanh."""

    def __init__(self, width: int, heads: int, length: int, cap: float | None, rank: int | None) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm(width) for _ in range(2))
        self.qkv, self.out = Adapted(width, 3 * width, rank), Adapted(width, width, rank)
        self.mlp = nn.Sequential(Adapted(width, 3 * width, rank), nn.SiLU(), Adapted(3 * width, width, rank))
        self.bias = nn.Parameter(torch.zeros(heads, length, length))
        self.heads, self.cap = heads, cap

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1))
        if self.cap is None:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias.to(q.dtype))
        else:
            scores = self.cap * torch.tanh(q @ k.mT / (self.cap * q.shape[-1] ** 0.5)) + self.bias
            y = scores.softmax(-1).to(v.dtype) @ v
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Adapted(nn.Module):
    """A linear layer; with a rank it is frozen and has a low-rank one beside it."""

    def __init__(self, inputs: int, outputs: int, rank: int | None) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.base.requires_grad_(rank is None)
        self.low = nn.Sequential(nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)) if rank else None

    def forward(self, x):
        return self.base(x) if self.low is None else self.base(x) + self.low(x)


class Stack(nn.Module):
    def __init__(self, cap: float | None = None, rank: int | None = None, reentrant: bool | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Biased(256, 8, 196, cap, rank) for _ in range(4))
        self.reentrant = reentrant

    def forward(self, x):
        if self.reentrant:
            x = x.requires_grad_()
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return x


FEATURES = ("x=f32[B,196,256]", "y=f32[B,196,256]")


@model("attention-trained-bias", "torch", *FEATURES, loss="mse", batches=(4, 16), on_gpu=True)
def trained_bias():
    return Stack()


@model("attention-soft-cap", "torch", *FEATURES, loss="mse", batches=(4, 16), on_gpu=True)
def soft_cap():
    return Stack(cap=30.0)


@model("own-lora-checkpointed", "torch", *FEATURES, loss="mse", batches=(4, 16), on_gpu=True)
def own_lora():
    return Stack(rank=8, reentrant=False)


@model("own-lora-checkpointed-reentrant", "torch", *FEATURES, loss="mse", batches=(4, 16), on_gpu=True)
def own_lora_reentrant():
    return Stack(cap=30.0, rank=8, reentrant=True)


class Pooled(nn.Module):
    """A few trained queries that attend to a long sequence."""

    def __init__(self, queries: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(queries, 256))
        self.q, self.kv, self.head = nn.Linear(256, 256), nn.Linear(256, 512), nn.Linear(256, 10)

    def forward(self, x):
        q = self.q(self.latents).unflatten(-1, (4, 64)).transpose(0, 1).expand(x.shape[0], -1, -1, -1)
        k, v = (part.unflatten(-1, (4, 64)).transpose(1, 2) for part in self.kv(x).chunk(2, -1))
        return self.head(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).mean(1))


@model("attention-pool-one-query", "torch", "x=f32[B,2048,256]", "y=i64[B]", batches=(4, 16), on_gpu=True)
def one_query():
    return Pooled(1)


@model("attention-pool-queries", "torch", "x=f32[B,2048,256]", "y=i64[B]", batches=(4, 16), on_gpu=True)
def queries():
    return Pooled(48)


class Teacher(nn.Module):
    """A student and its moving average, which follows with foreach operators; targets are smoothed by a scatter of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = (nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1000)) for _ in range(2))
        self.teacher.requires_grad_(False)
        self.register_buffer("confidence", torch.tensor(0.9))

    def forward(self, x, y):
        with torch.no_grad():
            torch._foreach_lerp_(list(self.teacher.parameters()), list(self.student.parameters()), 0.01)
            aim = self.teacher(x).softmax(-1)
        logits = self.student(x)
        smooth = torch.full_like(logits, 1e-4).scatter(1, y[:, None], self.confidence.to(logits.dtype).expand(y.shape[0], 1))
        decay = torch.stack(torch._foreach_norm(list(self.student.parameters()))).square().sum()
        return -((smooth + aim) * logits.log_softmax(-1)).sum(-1).mean() + 1e-4 * decay


@model("moving-average-teacher", "torch", "x=f32[B,512]", "y=i64[B]", loss=lambda m, x, y: m(x, y), batches=(512, 2048), on_gpu=True)
def teacher():
    return Teacher()


class LongAudio(nn.Module):
    """Dilated 1-d convolutions over ten seconds, with a group norm."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((1, 64, 10, 5, 1), (64, 128, 8, 4, 1), (128, 128, 3, 1, 4), (128, 256, 4, 2, 1), (256, 256, 3, 1, 16))
        self.layers = nn.Sequential(*[
            layer
            for inputs, outputs, kernel, stride, dilation in sizes
            for layer in (nn.Conv1d(inputs, outputs, kernel, stride, dilation=dilation), nn.GroupNorm(8, outputs), nn.SiLU())
        ])  # fmt: skip
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.layers(x).mean(-1))


@model("long-audio-conv", "torch", "x=f32[B,1,160000]", "y=i64[B]", batches=(2, 8), on_gpu=True)
def long_audio():
    return LongAudio()


@model("long-audio-conv-bf16", "torch", "x=bf16[B,1,160000]", "y=i64[B]", precisions=HALF, batches=(2, 8), on_gpu=True)
def long_audio_bf16():
    return LongAudio().to(BF16)
