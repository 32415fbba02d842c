"""Small members of the families of torchvision, timm and transformers, for numerics.py.

Dropout and stochastic depth are off, because their draws differ from PyTorch's; `numerics_operators.py` has their arithmetic.
"""
from __future__ import annotations

import functools

from numerics_models import Input, Model, image, scaled_cross_entropy

WORDS = 500
WORDS_IN = Input((48,), below=WORDS)
TOKENS = {"input_ids": WORDS_IN, "labels": WORDS_IN}
MASKED = {"input_ids": WORDS_IN, "attention_mask": Input((48,), below=2), "labels": WORDS_IN}
SOUND = {"input_values": Input((4000,)), "labels": Input((), below=10)}
SMALL = {"vocab_size": WORDS, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256,
         "max_position_embeddings": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.05,
         "pad_token_id": 0}  # fmt: skip
CAUSAL = {**{name: value for name, value in SMALL.items() if "dropout" not in name}, "num_key_value_heads": 2, "use_cache": False,
          "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
SEQ2SEQ = {"vocab_size": WORDS, "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "use_cache": False,
           "decoder_attention_heads": 4, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "dropout": 0.0, "attention_dropout": 0.0,
           "activation_dropout": 0.0, "init_std": 0.05, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
           "decoder_start_token_id": 1}  # fmt: skip
SPEECH = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "conv_dim": (32, 32, 32, 32),
          "conv_kernel": (10, 3, 3, 2), "conv_stride": (5, 2, 2, 2), "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
          "num_labels": 10, "apply_spec_augment": False, "layerdrop": 0.0, "hidden_dropout": 0.0, "attention_dropout": 0.0,
          "activation_dropout": 0.0, "feat_proj_dropout": 0.0, "final_dropout": 0.0, "initializer_range": 0.05,
          "classifier_proj_size": 32}  # fmt: skip


def small_timm(name: str, **options):
    import timm

    return timm.create_model(name, num_classes=10, **options)


def timm_class(path: str, **options):
    """A model by its class, where the functions that make it set what is to be small."""
    import importlib

    module, name = path.split(".")
    return getattr(importlib.import_module(f"timm.models.{module}"), name)(num_classes=10, **options)


def small_torchvision(name: str, **options):
    import torchvision

    return torchvision.models.get_model(name, weights=None, num_classes=10, **options)


def small_transformers(kind: str, purpose: str, **options):
    import transformers

    return getattr(transformers, f"{kind}{purpose}")(getattr(transformers, f"{kind}Config")(**options))


def vision(name: str, size: int = 64, batch: int = 8, gain: float = 1.0, rate: float = 1e-3, curve: bool = False, loss="cross_entropy",
           **options) -> Model:  # fmt: skip
    """A model of timm: the name of one, or of a file and a class."""
    build = timm_class if "." in name else small_timm
    return Model(functools.partial(build, name, **options), image(size, 10), batch, loss, rate=rate, gain=gain, curve=curve)


def of_torchvision(name: str, size: int = 64, rate: float = 1e-3, curve: bool = False, **options) -> Model:
    return Model(functools.partial(small_torchvision, name, **options), image(size, 10), 8, rate=rate, curve=curve)


def language(kind: str, purpose: str, inputs: dict, rate: float = 1e-3, curve: bool = False, **options) -> Model:
    return Model(functools.partial(small_transformers, kind, purpose, **options), inputs, 8, loss="model", rate=rate, curve=curve)


def maxvit():
    from timm.models.maxxvit import MaxxVit, MaxxVitCfg, MaxxVitTransformerCfg

    blocks = MaxxVitTransformerCfg(window_size=(4, 4), grid_size=(4, 4), dim_head=16)
    return MaxxVit(MaxxVitCfg(embed_dim=(32, 64), depths=(1, 1), block_type=("M", "M"), stem_width=16, transformer_cfg=blocks),
                   img_size=64, num_classes=10)


def resmlp():
    from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock

    return MlpMixer(num_classes=10, img_size=64, embed_dim=64, num_blocks=2, mlp_ratio=4, block_layer=ResBlock, norm_layer=Affine)


def gmlp():
    from timm.layers import GatedMlp
    from timm.models.mlp_mixer import MlpMixer, SpatialGatingBlock

    return MlpMixer(num_classes=10, img_size=64, embed_dim=64, num_blocks=2, mlp_ratio=4, block_layer=SpatialGatingBlock, mlp_layer=GatedMlp)


def caformer():
    from timm.models.metaformer import Attention, LayerNorm2dNoBias, LayerNormNoBias, MetaFormer, SepConv

    return MetaFormer(num_classes=10, depths=(1, 1), dims=(32, 64), token_mixers=[SepConv, Attention],
                      norm_layers=[LayerNorm2dNoBias, LayerNormNoBias], res_scale_init_values=(None, 1.0))


def densenet():
    from torchvision.models import DenseNet

    return DenseNet(growth_rate=8, block_config=(2, 2), num_init_features=16, num_classes=10)


NO_PATH = {"drop_path_rate": 0.0}
MODELS = {
    # Convolutional networks.
    "densenet": Model(densenet, image(64, 10), 8, curve=True),
    "squeezenet": of_torchvision("squeezenet1_1", dropout=0.0),
    "mobilenet_v3": vision("mobilenetv3_small_050", 96),
    "shufflenet": of_torchvision("shufflenet_v2_x0_5", rate=3e-4),
    "efficientnet": vision("test_efficientnet", 96, rate=5e-5, curve=True),
    "efficientnet_gn": vision("test_efficientnet_gn", 96),
    "efficientnet_evos": vision("test_efficientnet_evos", 96),
    "byobnet": vision("test_byobnet", 96),
    "nfnet": vision("test_nfnet", 96, rate=3e-4, curve=True),
    "convnext": vision("test_convnext", 64, ls_init_value=0.5, curve=True),
    "convnextv2": vision("test_convnext3", 64, ls_init_value=None, use_grn=True, norm_eps=1e-6),
    "mambaout": vision("test_mambaout", 64),
    "focalnet": vision("focalnet.FocalNet", 64, depths=(1, 1), embed_dim=32, focal_levels=(2, 2), focal_windows=(3, 3), gain=2.0, **NO_PATH),
    "repvit": vision("repvit_m0_9", 64, embed_dim=(16, 32), depth=(1, 1)),
    "fastvit": vision("fastvit_t8", 64, layers=(1, 1, 1, 1), embed_dims=(48, 96, 96, 96), layer_scale_init_value=0.5),
    # Vision transformers.
    "vit_layer_scale": vision("vit_tiny_patch16_224", 64, img_size=64, embed_dim=64, depth=2, num_heads=4, init_values=0.5, gain=3.0, curve=True),
    "beit": vision("beit_base_patch16_224", 64, img_size=64, embed_dim=64, depth=2, num_heads=4, init_values=0.5, head_init_scale=1.0, gain=3.0),
    "eva02": vision("eva02_tiny_patch14_224", 56, img_size=56, embed_dim=64, depth=2, num_heads=4, head_init_scale=1.0, gain=3.0),
    "cait": vision("cait_xxs24_224", 64, img_size=64, embed_dim=64, depth=2, num_heads=4, init_values=0.5, gain=3.0),
    "xcit": vision("xcit_nano_12_p16_224", 64, embed_dim=64, depth=2, num_heads=4, cls_attn_layers=1, eta=0.5, gain=2.0, curve=True),
    "volo": vision("volo.VOLO", 64, img_size=64, layers=(1, 1), embed_dims=(32, 64), num_heads=(2, 4), mlp_ratio=2.0, outlook_attention=(True, False), downsamples=(True, False), use_aux_head=False, stem_hidden_dim=16, gain=2.0),
    "crossvit": vision("crossvit.CrossVit", 64, img_size=64, img_scale=(1.0, 0.75), embed_dim=(32, 64), depth=((1, 1, 0),), num_heads=(2, 4), mlp_ratio=(2, 2, 1), gain=3.0),
    # In windows and in stages.
    "swin": vision("swin_tiny_patch4_window7_224", 64, img_size=64, window_size=4, embed_dim=32, depths=(2, 2), num_heads=(2, 4), gain=3.0, curve=True, **NO_PATH),
    # The gradients of its table of positions are around 1e-7, two steps of float16.
    "swinv2": vision("swinv2_tiny_window8_256", 64, loss=scaled_cross_entropy, img_size=64, window_size=4, embed_dim=32, depths=(2, 2), num_heads=(2, 4), **NO_PATH),
    "maxvit": Model(maxvit, image(64, 10), 8, curve=True),
    "twins": vision("twins_svt_small", 64, img_size=64, patch_size=4, embed_dims=(32, 64), num_heads=(2, 4), mlp_ratios=(2, 2), depths=(2, 2), sr_ratios=(4, 2), wss=(4, 4), gain=2.0),
    "nest": vision("nest.Nest", 64, img_size=64, embed_dims=(32, 64, 64), num_heads=(2, 4, 4), depths=(1, 1, 1), gain=2.0, **NO_PATH),
    "pvt": vision("pvt_v2_b0", 64, depths=(1, 1, 1, 1), embed_dims=(16, 32, 48, 64), num_heads=(1, 2, 4, 4), gain=2.0),
    "hiera": vision("hiera_tiny_224", 64, img_size=(64, 64), embed_dim=32, stages=(1, 1), q_pool=1, mask_unit_size=(4, 4), mask_unit_attn=(True, False), head_init_scale=1.0, global_pos_size=(4, 4), gain=2.0),
    "davit": vision("davit_tiny", 64, depths=(1, 1), embed_dims=(32, 64), num_heads=(2, 4), window_size=4, gain=2.0),
    # Convolutions and attention, and neither.
    "coatnet": vision("coatnet_pico_rw_224", 64, img_size=64, gain=1.0),
    "levit": vision("levit_128s", 64, img_size=64, embed_dim=(32, 64, 96), num_heads=(2, 4, 4), depth=(1, 1, 1), key_dim=16),
    "mobilevit": vision("mobilevit_xxs", 64),
    "efficientformer": vision("efficientformer_l1", 224, batch=4, depths=(1, 1, 1, 2), embed_dims=(16, 32, 48, 64), layer_scale_init_value=0.5),
    "edgenext": vision("edgenext_xx_small", 64, dims=(16, 24, 32, 48), depths=(1, 1, 1, 1), heads=(4, 4, 4, 4), ls_init_value=0.5),
    "mixer": vision("mlp_mixer.MlpMixer", 64, img_size=64, embed_dim=64, num_blocks=2, gain=1.5, curve=True),
    "resmlp": Model(resmlp, image(64, 10), 8),
    "gmlp": Model(gmlp, image(64, 10), 8),
    "poolformer": vision("metaformer.MetaFormer", 64, depths=(1, 1), dims=(16, 32), res_scale_init_values=(None, 1.0), layer_scale_init_values=(0.5, None)),
    "caformer": Model(caformer, image(64, 10), 8),
    "sequencer": vision("sequencer2d_s", 56, img_size=56, layers=(1, 1, 1, 1), embed_dims=(32, 48, 48, 48), hidden_sizes=(8, 12, 12, 12)),
    # Text.
    "bert_masked": language("Bert", "ForMaskedLM", MASKED, curve=True, **SMALL),
    "deberta": language("DebertaV2", "ForMaskedLM", MASKED, curve=True, **SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=16, norm_rel_ebd="layer_norm", share_att_key=True),
    "mpnet": language("MPNet", "ForMaskedLM", MASKED, **SMALL),
    "squeezebert": language("SqueezeBert", "ForMaskedLM", MASKED, **SMALL, embedding_size=128),
    "gpt_neox": language("GPTNeoX", "ForCausalLM", TOKENS, curve=True, **{name: value for name, value in CAUSAL.items() if name != "num_key_value_heads"}, hidden_dropout=0.0, attention_dropout=0.0),
    "gpt_neo": language("GPTNeo", "ForCausalLM", TOKENS, vocab_size=WORDS, hidden_size=128, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=16, max_position_embeddings=64, embed_dropout=0.0, resid_dropout=0.0, attention_dropout=0.0, initializer_range=0.05, use_cache=False, bos_token_id=1, eos_token_id=2),
    "opt": language("OPT", "ForCausalLM", TOKENS, vocab_size=WORDS, hidden_size=128, word_embed_proj_dim=128, num_hidden_layers=2, num_attention_heads=4, ffn_dim=256, max_position_embeddings=64, dropout=0.0, layerdrop=0.0, init_std=0.05, use_cache=False),
    "bloom": language("Bloom", "ForCausalLM", TOKENS, vocab_size=WORDS, hidden_size=128, n_layer=2, n_head=4, initializer_range=0.05, use_cache=False, hidden_dropout=0.0, attention_dropout=0.0),
    "gemma": language("Gemma", "ForCausalLM", TOKENS, **CAUSAL, head_dim=32),
    "qwen3": language("Qwen3", "ForCausalLM", TOKENS, **CAUSAL, head_dim=32),
    "mistral": language("Mistral", "ForCausalLM", TOKENS, **CAUSAL, sliding_window=16),
    "t5": language("T5", "ForConditionalGeneration", MASKED, curve=True, vocab_size=WORDS, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, dropout_rate=0.0, use_cache=False, decoder_start_token_id=0),
    "bart": language("Bart", "ForConditionalGeneration", MASKED, curve=True, **SEQ2SEQ, max_position_embeddings=64),
    "marian": language("Marian", "MTModel", TOKENS, **SEQ2SEQ, max_position_embeddings=64),
    # Sound, and pictures by the pixel.
    "wav2vec2": language("Wav2Vec2", "ForSequenceClassification", SOUND, curve=True, **SPEECH),
    "wav2vec2_layer_norm": language("Wav2Vec2", "ForSequenceClassification", SOUND, **SPEECH, feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True),
    "whisper": language("Whisper", "ForConditionalGeneration", {"input_features": Input((20, 100)), "labels": WORDS_IN}, curve=True, **SEQ2SEQ, num_mel_bins=20, max_source_positions=50, max_target_positions=64),
    "segformer": language("Segformer", "ForSemanticSegmentation", {"pixel_values": Input((3, 64, 64)), "labels": Input((64, 64), below=10)}, curve=True, num_labels=10, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 4, 4], decoder_hidden_size=32, classifier_dropout_prob=0.0, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, drop_path_rate=0.0, initializer_range=0.05),
}  # fmt: skip
