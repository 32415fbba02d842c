"""128 models of torchvision, timm and transformers as their libraries make them, for public.py and timed.py.

    tests/models/run.py export OUT --list tests/gpu/public_models.py

Weights are random: nothing is downloaded. Sizes are the libraries' own, but for language models of a billion parameters, which
have fewer layers and features. A model's `area` is its family here: timed.py draws from each.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "models"))

from zoo import Model

BATCHES = (2, 8)

# Family, and names; a name may be followed by the length of an image's sides, 224 without.
TORCHVISION = {
    "classic": "alexnet vgg16 squeezenet1_1 googlenet inception_v3:299",
    "resnet": "resnet50 resnext50_32x4d wide_resnet50_2",
    "branched": "densenet121",
    "mobile": "mobilenet_v2 mobilenet_v3_large mnasnet1_0 shufflenet_v2_x1_0",
    "searched": "efficientnet_b0 efficientnet_v2_s regnet_x_1_6gf regnet_y_1_6gf",
    "modern": "convnext_tiny",
    "vit": "vit_b_16",
    "windowed": "swin_t swin_v2_t:256 maxvit_t",
    "segmentation": "deeplabv3_resnet50 fcn_resnet50 lraspp_mobilenet_v3_large",
}

TIMM = {
    "classic": "inception_v4:299 xception41:299",
    "resnet": "resnet26d resnetblur50 seresnet50 skresnet34 resnest26d res2net50_26w_4s resnetv2_50 tresnet_m botnet26t_256:256",
    "branched": "dla34 dpn68b hrnet_w18_small selecsls42b ese_vovnet19b_dw cspdarknet53 rdnet_tiny",
    "mobile": "mobilenetv3_large_100 mobilenetv4_conv_medium ghostnet_100 mixnet_s lcnet_100 rexnet_100 mobileone_s1",
    "searched": "tf_efficientnet_b0 tf_efficientnetv2_b0 regnetz_b16 fbnetv3_b",
    "modern": "convnextv2_nano nf_resnet50 eca_nfnet_l0 inception_next_tiny convmixer_768_32 focalnet_tiny_srf",
    "vit": "vit_small_patch16_224 deit_tiny_distilled_patch16_224 deit3_small_patch16_224 eva02_tiny_patch14_224 cait_xxs24_224 xcit_tiny_12_p16_224 volo_d1_224",
    "windowed": "swinv2_cr_tiny_ns_224 twins_svt_small nest_tiny pvt_v2_b1 hiera_tiny_224 davit_tiny pit_s_224 crossvit_9_240:240 coat_lite_tiny",
    "hybrid": "coatnet_0_rw_224 levit_128s mobilevit_s edgenext_small efficientformer_l1 fastvit_t8 repvit_m1 tiny_vit_5m_224 visformer_tiny",
    "mixing": "mixer_s16_224 resmlp_12_224 gmlp_s16_224 poolformer_s12 caformer_s18 sequencer2d_s",
}  # fmt: skip

TEXT = ("input_ids=i64[B,128]", "labels=i64[B,128]")
MASKED = ("input_ids=i64[B,128]", "attention_mask=i64[B,128]=1", "labels=i64[B,128]")
CLASSIFIED = ("input_ids=i64[B,128]", "attention_mask=i64[B,128]=1", "labels=i64[B]")
CAUSAL = ("input_ids=i64[B,256]", "labels=input_ids")
ASKED = ("input_ids=i64[B,128]", "attention_mask=i64[B,128]=1", "start_positions=i64[B]", "end_positions=i64[B]")
SPOKEN = ("input_values=f32[B,16000]", "labels=i64[B]")
PICTURE = ("pixel_values=f32[B,3,224,224]", "labels=i64[B]")

WIDE = {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "use_cache": False}
LLAMA = {**WIDE, "intermediate_size": 2816, "num_key_value_heads": 4, "vocab_size": 32000}
TRANSLATOR = {"encoder_layers": 6, "decoder_layers": 6, "use_cache": False}

# Family, name, what it is for, its configuration where that is not the default, and the batch.
TRANSFORMERS = [
    ("encoder", "Bert", "ForSequenceClassification", {}, CLASSIFIED),
    ("encoder", "Roberta", "ForMaskedLM", {}, MASKED),
    ("encoder", "DistilBert", "ForMaskedLM", {}, MASKED),
    ("encoder", "Albert", "ForMaskedLM", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}, MASKED),
    ("encoder", "Electra", "ForTokenClassification", {}, MASKED),
    ("encoder", "Deberta", "ForSequenceClassification", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, CLASSIFIED),
    ("encoder", "DebertaV2", "ForSequenceClassification", {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True}, CLASSIFIED),
    ("encoder", "MPNet", "ForMaskedLM", {}, MASKED),
    ("encoder", "MobileBert", "ForQuestionAnswering", {}, ASKED),
    ("encoder", "Funnel", "ForTokenClassification", {}, MASKED),
    ("encoder", "SqueezeBert", "ForMaskedLM", {}, MASKED),
    ("encoder", "LayoutLM", "ForTokenClassification", {}, MASKED),
    ("decoder", "GPT2", "LMHeadModel", {"use_cache": False}, CAUSAL),
    ("decoder", "GPTNeo", "ForCausalLM", {"hidden_size": 768, "num_layers": 6, "num_heads": 12, "attention_types": [[["global", "local"], 3]], "use_cache": False}, CAUSAL),
    ("decoder", "GPTNeoX", "ForCausalLM", {**WIDE, "intermediate_size": 4096}, CAUSAL),
    ("decoder", "GPTJ", "ForCausalLM", {"n_embd": 1024, "n_layer": 4, "n_head": 16, "use_cache": False}, CAUSAL),
    ("decoder", "OPT", "ForCausalLM", {"use_cache": False}, CAUSAL),
    ("decoder", "Bloom", "ForCausalLM", {"vocab_size": 50000, "hidden_size": 1024, "n_layer": 6, "n_head": 16, "use_cache": False}, CAUSAL),
    ("decoder", "Llama", "ForCausalLM", LLAMA, CAUSAL),
    ("decoder", "Mistral", "ForCausalLM", {**LLAMA, "sliding_window": 128}, CAUSAL),
    ("decoder", "Qwen2", "ForCausalLM", LLAMA, CAUSAL),
    ("decoder", "Qwen3", "ForCausalLM", {**LLAMA, "head_dim": 64}, CAUSAL),
    ("decoder", "Gemma", "ForCausalLM", {**LLAMA, "head_dim": 64}, CAUSAL),
    ("decoder", "Phi", "ForCausalLM", {**LLAMA, "num_key_value_heads": 16}, CAUSAL),
    ("decoder", "Falcon", "ForCausalLM", {**WIDE, "vocab_size": 32000}, CAUSAL),
    ("translation", "T5", "ForConditionalGeneration", {"use_cache": False, "decoder_start_token_id": 0}, MASKED),
    ("translation", "Bart", "ForConditionalGeneration", {**TRANSLATOR, "d_model": 768, "encoder_attention_heads": 12, "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}, MASKED),
    ("translation", "Pegasus", "ForConditionalGeneration", {**TRANSLATOR, "vocab_size": 32000, "decoder_start_token_id": 0}, TEXT),
    ("translation", "Marian", "MTModel", {**TRANSLATOR, "decoder_start_token_id": 0}, TEXT),
    ("vit", "ViT", "ForImageClassification", {}, PICTURE),
    ("vit", "Beit", "ForImageClassification", {"use_relative_position_bias": True}, PICTURE),
    ("vit", "Dinov2", "ForImageClassification", {"image_size": 224}, PICTURE),
    ("segmentation", "Segformer", "ForSemanticSegmentation", {"num_labels": 21}, ("pixel_values=f32[B,3,256,256]", "labels=i64[B,256,256]")),
    ("speech and more", "Wav2Vec2", "ForSequenceClassification", {"apply_spec_augment": False, "layerdrop": 0.0}, SPOKEN),
    ("speech and more", "Hubert", "ForSequenceClassification", {"apply_spec_augment": False, "layerdrop": 0.0}, SPOKEN),
    ("speech and more", "Whisper", "ForConditionalGeneration", {"use_cache": False}, ("input_features=f32[B,80,3000]", "labels=i64[B,128]")),
    ("speech and more", "CLIP", "Model", {}, ("input_ids=i64[B,77]", "pixel_values=f32[B,3,224,224]")),
]  # fmt: skip


def auxiliary(model, x, y):
    """As the models with further classifiers along the way are trained."""
    from torch.nn.functional import cross_entropy

    first, *others = (logits for logits in model(x) if logits is not None)
    return sum((0.3 * cross_entropy(logits, y) for logits in others), cross_entropy(first, y))


def both_ways(model, input_ids, pixel_values):
    return model(input_ids=input_ids, pixel_values=pixel_values, return_loss=True).loss


def torchvision_model(name: str, segments: bool):
    from torchvision import models

    if segments:
        return models.get_model(name, weights=None, weights_backbone=None, num_classes=21)
    given = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return models.get_model(name, weights=None, **given)


def timm_model(name: str):
    import timm

    return timm.create_model(name)


def transformers_model(kind: str, purpose: str, options: dict):
    import transformers

    # What the tests' batches lead to is the same with any special token, but small vocabularies lack some models' defaults.
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, f"{kind}Config")(**{**tokens, **options})
    return getattr(transformers, f"{kind}{purpose}")(config)


def load() -> dict[str, Model]:
    """All models, by name."""
    found: dict[str, Model] = {}

    def add(name: str, library: str, family: str, build: Callable, batch: tuple[str, ...], loss: object) -> None:
        if name in found:
            raise ValueError(f"two models are called {name}")
        found[name] = Model(name, library, family, build, batch, loss, BATCHES, None, True)

    def images(library: str, families: dict[str, str]):
        for family, names in families.items():
            for name in names.split():
                name, _, side = name.partition(":")
                yield family, name, f"{library}-{name}", int(side or 224)

    for family, name, full, side in images("torchvision", TORCHVISION):
        segments = family == "segmentation"
        target = f"y=i64[B,{side},{side}]" if segments else "y=i64[B]"
        loss = auxiliary if name in ("googlenet", "inception_v3") else "cross_entropy"
        build = functools.partial(torchvision_model, name, segments)
        add(full, "torchvision", family, build, (f"x=f32[B,3,{side},{side}]", target), loss)
    for family, name, full, side in images("timm", TIMM):
        add(full, "timm", family, functools.partial(timm_model, name), (f"x=f32[B,3,{side},{side}]", "y=i64[B]"), "cross_entropy")
    for family, kind, purpose, options, batch in TRANSFORMERS:
        loss = both_ways if kind == "CLIP" else "model"
        build = functools.partial(transformers_model, kind, purpose, options)
        add(f"transformers-{kind.lower()}", "transformers", family, build, batch, loss)
    return found
