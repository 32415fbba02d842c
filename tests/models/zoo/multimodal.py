"""Images with text."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import model

HF = "transformers"
TEXT = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
VISION = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 64, "patch_size": 16}
BOTH = ("pixel_values=f32[B,3,64,64]", "input_ids=i64[B,32]")


def contrastive(model, pixel_values, input_ids):
    return model(pixel_values=pixel_values, input_ids=input_ids, return_loss=True).loss


@model("transformers-clip", HF, *BOTH, loss=contrastive)
def clip():
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

    text = CLIPTextConfig(**TEXT, max_position_embeddings=32, eos_token_id=2)
    return CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=CLIPVisionConfig(**VISION).to_dict(), projection_dim=32))


@model("transformers-siglip", HF, *BOTH, loss=contrastive)
def siglip():
    from transformers import SiglipConfig, SiglipModel

    return SiglipModel(SiglipConfig(text_config={**TEXT, "max_position_embeddings": 32}, vision_config=VISION))


@model("transformers-blip", HF, *BOTH, loss=lambda m, pixel_values, input_ids: m(pixel_values=pixel_values, input_ids=input_ids, labels=input_ids).loss)
def blip():
    from transformers import BlipConfig, BlipForConditionalGeneration

    return BlipForConditionalGeneration(BlipConfig(text_config={**TEXT, "encoder_hidden_size": 64, "max_position_embeddings": 64}, vision_config=VISION))


@model("transformers-vilt", HF, "input_ids=i64[B,32]", "pixel_values=f32[B,3,64,64]", "y=i64[B]", loss=lambda m, input_ids, pixel_values, y: F.cross_entropy(m(input_ids=input_ids, pixel_values=pixel_values, pixel_mask=torch.ones_like(pixel_values[:, 0], dtype=torch.long)).pooler_output, y))
def vilt():
    from transformers import ViltConfig, ViltModel

    return ViltModel(ViltConfig(**TEXT, image_size=64, patch_size=16))


@model("transformers-llava", HF, *BOTH, loss=lambda m, pixel_values, input_ids: m(pixel_values=pixel_values, input_ids=input_ids, labels=input_ids).loss)
def llava():
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    text = LlamaConfig(**TEXT, num_key_value_heads=2, use_cache=False)
    return LlavaForConditionalGeneration(LlavaConfig(vision_config=CLIPVisionConfig(**VISION), text_config=text, image_token_id=511, image_seq_length=16))


@model("transformers-detr", HF, "pixel_values=f32[B,3,128,128]", loss=lambda m, x: m(pixel_values=x, pixel_mask=torch.ones_like(x[:, 0], dtype=torch.long)).logits.square().mean())
def detr():
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1], out_features=["stage4"])
    return DetrForObjectDetection(DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_queries=20))


def _open_clip(name: str, loss) -> None:
    def build():
        from open_clip.model import CLIP

        if name == "vit":
            return CLIP(32, {"image_size": 64, "layers": 2, "width": 64, "head_width": 16, "patch_size": 16}, {"context_length": 32, "vocab_size": 512, "width": 64, "heads": 4, "layers": 2})
        return CLIP(32, {"image_size": 64, "layers": (1, 1, 1, 1), "width": 16, "head_width": 16}, {"context_length": 32, "vocab_size": 512, "width": 64, "heads": 4, "layers": 2})

    build.__module__ = __name__
    model(f"open-clip-{name}", "open_clip_torch", "image=f32[B,3,64,64]", "text=i64[B,32]", loss=loss)(build)


def clip_loss(model, image, text):
    from open_clip.loss import ClipLoss

    image_features, text_features, scale = model(image, text)
    return ClipLoss()(image_features, text_features, scale)


def siglip_loss(model, image, text):
    from open_clip.loss import SigLipLoss

    image_features, text_features, scale = model(image, text)
    return SigLipLoss()(image_features, text_features, scale, torch.zeros((), device=image.device))


_open_clip("vit", clip_loss)
_open_clip("resnet", siglip_loss)
