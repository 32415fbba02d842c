"""vit-pytorch: the many forms of the vision transformer."""

from __future__ import annotations

from . import model

IMAGE = ("x=f32[B,3,64,64]", "y=i64[B]")
SIZES = {"image_size": 64, "num_classes": 10}
BLOCK = {"dim": 64, "depth": 3, "heads": 4, "mlp_dim": 128}


def listed() -> None:
    """The variants that one constructor call makes."""
    plain = {**SIZES, **BLOCK, "patch_size": 8}
    variants = {
        "vit.ViT": {**plain, "dropout": 0.1, "emb_dropout": 0.1},
        "simple_vit.SimpleViT": plain,
        "deepvit.DeepViT": plain,
        "cait.CaiT": {**plain, "cls_depth": 2, "dropout": 0.1, "layer_dropout": 0.05},
        "t2t.T2TViT": {**SIZES, "dim": 64, "depth": 2, "heads": 4, "mlp_dim": 128, "t2t_layers": ((7, 4), (3, 2), (3, 2))},
        "cct.CCT": {"img_size": (64, 64), "embedding_dim": 64, "n_conv_layers": 2, "num_layers": 2, "num_heads": 4, "mlp_ratio": 2.0, "num_classes": 10, "positional_embedding": "learnable"},
        "cross_vit.CrossViT": {**SIZES, "depth": 2, "sm_dim": 32, "sm_patch_size": 8, "sm_enc_depth": 1, "sm_enc_heads": 4, "sm_enc_mlp_dim": 64, "lg_dim": 64, "lg_patch_size": 16, "lg_enc_depth": 1, "lg_enc_heads": 4, "lg_enc_mlp_dim": 128, "cross_attn_depth": 1, "cross_attn_heads": 4},
        "pit.PiT": {**SIZES, "patch_size": 8, "dim": 64, "depth": (1, 1, 1), "heads": 4, "mlp_dim": 128},
        "levit.LeViT": {**SIZES, "stages": 2, "dim": (64, 96), "depth": 2, "heads": (2, 3), "mlp_mult": 2},
        "cvt.CvT": {"num_classes": 10, "s1_emb_dim": 32, "s1_heads": 1, "s1_depth": 1, "s2_emb_dim": 64, "s2_heads": 2, "s2_depth": 1, "s3_emb_dim": 96, "s3_heads": 3, "s3_depth": 1},
        "twins_svt.TwinsSVT": {"num_classes": 10, "s1_emb_dim": 32, "s1_patch_size": 4, "s1_local_patch_size": 4, "s1_global_k": 4, "s1_depth": 1, "s2_emb_dim": 64, "s2_patch_size": 2, "s2_local_patch_size": 4, "s2_global_k": 4, "s2_depth": 1, "s3_emb_dim": 96, "s3_patch_size": 2, "s3_local_patch_size": 2, "s3_global_k": 2, "s3_depth": 1, "s4_emb_dim": 128, "s4_patch_size": 2, "s4_local_patch_size": 1, "s4_global_k": 1, "s4_depth": 1},
        "scalable_vit.ScalableViT": {"num_classes": 10, "dim": 32, "heads": (2, 4, 4, 8), "depth": (1, 1, 1, 1), "ssa_dim_key": (20, 20, 20, 20), "reduction_factor": (4, 2, 1, 1), "window_size": (8, 4, None, None)},
        "max_vit.MaxViT": {"num_classes": 10, "dim_conv_stem": 16, "dim": 32, "dim_head": 16, "depth": (1, 1), "window_size": 4},
        "nest.NesT": {**SIZES, "patch_size": 4, "dim": 32, "heads": 2, "num_hierarchies": 3, "block_repeats": (1, 1, 1)},
        "mobile_vit.MobileViT": {"image_size": (64, 64), "dims": [32, 48, 64], "channels": [8, 16, 24, 24, 32, 32, 48, 48, 64, 64, 96], "num_classes": 10},
        "xcit.XCiT": {**plain, "cls_depth": 1, "local_patch_kernel_size": 3},
        "learnable_memory_vit.ViT": plain,
        "simple_vit_with_fft.SimpleViT": {**plain, "freq_patch_size": 8},
        "look_vit.LookViT": {"dim": 64, "image_size": 64, "num_classes": 10, "depth": 2, "patch_size": 16, "heads": 4, "highres_patch_size": 8},
        "vit_for_small_dataset.ViT": plain,
        "rvt.RvT": {**SIZES, "patch_size": 8, "dim": 64, "depth": 2, "heads": 4, "mlp_dim": 128},
        "ats_vit.ViT": {**plain, "max_tokens_per_depth": (32, 16, 8)},
        "normalized_vit.nViT": {**SIZES, "patch_size": 8, "dim": 64, "depth": 2, "heads": 4, "mlp_dim": 128},
        "jumbo_vit.JumboViT": {**plain, "num_jumbo_cls": 1, "jumbo_cls_k": 3, "jumbo_ff_mult": 2},
    }  # fmt: skip
    for path, options in variants.items():
        _variant(path, options)


def _variant(path: str, options: dict) -> None:
    module, cls = path.split(".")

    def build():
        import importlib

        return getattr(importlib.import_module(f"vit_pytorch.{module}"), cls)(**options)

    build.__module__ = __name__
    name = module if cls in ("ViT", "SimpleViT") else cls.lower()
    model(f"vit-pytorch-{name}", "vit-pytorch", *IMAGE)(build)


listed()


@model("vit-pytorch-vivit", "vit-pytorch", "x=f32[B,3,8,64,64]", "y=i64[B]")
def vivit():
    from vit_pytorch.vivit import ViViT

    return ViViT(image_size=64, frames=8, image_patch_size=16, frame_patch_size=2, num_classes=10, dim=64, spatial_depth=2, temporal_depth=2, heads=4, mlp_dim=128)


@model("vit-pytorch-vit-3d", "vit-pytorch", "x=f32[B,1,16,32,32]", "y=i64[B]")
def vit_3d():
    from vit_pytorch.vit_3d import ViT

    return ViT(image_size=32, frames=16, image_patch_size=8, frame_patch_size=4, channels=1, num_classes=10, dim=64, depth=2, heads=4, mlp_dim=128)


@model("vit-pytorch-vit-1d", "vit-pytorch", "x=f32[B,3,256]", "y=i64[B]")
def vit_1d():
    from vit_pytorch.vit_1d import ViT

    return ViT(seq_len=256, patch_size=16, num_classes=10, dim=64, depth=2, heads=4, mlp_dim=128)
