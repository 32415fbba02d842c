"""Video and motion."""

from __future__ import annotations

from . import model

CLIP = ("x=f32[B,3,8,64,64]", "y=i64[B]")


def _torchvision(name: str, batch: tuple[str, ...] = CLIP, on_gpu: bool = False) -> None:
    def build():
        import torchvision

        return getattr(torchvision.models.video, name)(weights=None, num_classes=10)

    build.__module__ = __name__
    model(f"torchvision-{name}", "torchvision", *batch, batches=(1, 4), on_gpu=on_gpu)(build)


_torchvision("r3d_18", on_gpu=True)
_torchvision("r2plus1d_18")
_torchvision("mc3_18")
_torchvision("s3d", ("x=f32[B,3,16,224,224]", "y=i64[B]"), on_gpu=True)
_torchvision("swin3d_t", on_gpu=True)
_torchvision("mvit_v1_b", ("x=f32[B,3,16,224,224]", "y=i64[B]"))


@model("torchvision-raft", "torchvision", "a=f32[B,3,128,128]", "b=f32[B,3,128,128]", "y=f32[B,2,128,128]", loss=lambda m, a, b, y: sum(0.8 ** (3 - i) * (flow - y).abs().mean() for i, flow in enumerate(m(a, b, num_flow_updates=3))), batches=(1, 4), on_gpu=True)
def raft():
    from torchvision.models.optical_flow import raft_small

    return raft_small(weights=None)


@model("pytorchvideo-x3d", "pytorchvideo", "x=f32[B,3,4,64,64]", "y=i64[B]", batches=(1, 4), on_gpu=True)
def x3d():
    from pytorchvideo.models.x3d import create_x3d

    return create_x3d(input_clip_length=4, input_crop_size=64, model_num_class=10)


@model("pytorchvideo-slow", "pytorchvideo", *CLIP, batches=(1, 4))
def slow():
    from pytorchvideo.models.resnet import create_resnet

    return create_resnet(model_num_class=10, model_depth=50, head_pool_kernel_size=(8, 2, 2))


@model("pytorchvideo-csn", "pytorchvideo", *CLIP, batches=(1, 4))
def csn():
    from pytorchvideo.models.csn import create_csn

    return create_csn(model_num_class=10, model_depth=50, head_pool_kernel_size=(1, 2, 2))


@model("transformers-videomae", "transformers", "pixel_values=f32[B,8,3,32,32]", "labels=i64[B]", loss="model")
def videomae():
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    return VideoMAEForVideoClassification(VideoMAEConfig(image_size=32, patch_size=8, num_frames=8, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, num_labels=5))


@model("transformers-timesformer", "transformers", "pixel_values=f32[B,8,3,32,32]", "labels=i64[B]", loss="model")
def timesformer():
    from transformers import TimesformerConfig, TimesformerForVideoClassification

    return TimesformerForVideoClassification(TimesformerConfig(image_size=32, patch_size=8, num_frames=8, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, num_labels=5))
