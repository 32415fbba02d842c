#!/usr/bin/env python3
"""Convolutions of models of public libraries, a line each, as `batchfit calibrate --layers` reads them.

    layers_models.py > layers.txt        what is there of torchvision, timm, transformers, diffusers, segmentation-models-pytorch and ultralytics

Models are built and run on PyTorch's meta device, which has shapes and no memory, at the sides that people train at. Lines that a table has
already are left out where the table is named: `--known TABLE.txt.gz`.
"""
import argparse
import contextlib
import gzip
import importlib
import sys
import warnings

import torch
import torch.nn.functional as F

SIDES = {"classifier": (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 384, 448, 512), "dense": (128, 224, 256, 320, 384, 512, 640, 768), "few": (224, 256, 384)}
BIG = 40e9  # multiplications of a sample beyond which a model is left out


class Recorder(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        plain = {F.conv1d: (1, 0), F.conv2d: (2, 0), F.conv3d: (3, 0), torch.conv1d: (1, 0), torch.conv2d: (2, 0), torch.conv3d: (3, 0)}
        turned = {F.conv_transpose1d: (1, 1), F.conv_transpose2d: (2, 1), F.conv_transpose3d: (3, 1)}
        if function in plain or function in turned:
            dims, transposed = (plain | turned)[function]
            names = ["input", "weight", "bias", "stride", "padding"] + (["output_padding", "groups", "dilation"] if transposed else ["dilation", "groups"])
            given = dict(zip(names, args)) | kwargs
            self.add(dims, transposed, given)
        return result

    def add(self, dims, transposed, given):
        x, w = given["input"], given["weight"]
        many = lambda name, default: (lambda v: tuple(v) * (dims if len(tuple(v)) == 1 else 1) if isinstance(v, (tuple, list)) else (v,) * dims)(given.get(name, default))
        padding = given.get("padding", 0)
        stride, dilation, more = many("stride", 1), many("dilation", 1), many("output_padding", 0) if transposed else (0,) * dims
        kernel = tuple(w.shape[2:])
        if padding == "same":
            if any(d * (k - 1) % 2 for d, k in zip(dilation, kernel)):
                return  # PyTorch pads the input itself
            padding = tuple(d * (k - 1) // 2 for d, k in zip(dilation, kernel))
        padding = (0,) * dims if padding == "valid" else many("padding", 0)
        groups = given.get("groups", 1)
        if x.dim() != dims + 2 or x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return
        cin = w.shape[0] if transposed else w.shape[1] * groups
        cout = w.shape[1] * groups if transposed else w.shape[0]
        sides = tuple(x.shape[2:])
        if dims == 1:
            sides, kernel, stride, padding, dilation, more = (1, *sides), (1, *kernel), (1, *stride), (0, *padding), (1, *dilation), (0, *more)
        last = int(dims > 1 and x.is_contiguous(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d) and not x.is_contiguous())
        numbers = [cin, cout, groups, *sides, *kernel, *stride, *padding, *dilation, transposed]
        if dims == 3:
            numbers += [last, *more]
        elif any(more):
            numbers += [last, *more]
        elif last:
            numbers.append(1)
        self.found.add(",".join(map(str, numbers)))


def models():
    """Name, what makes it, sides, and what it is given."""
    image = lambda side: (torch.empty(2, 3, side, side),)
    with contextlib.suppress(ImportError):
        import torchvision

        for name in torchvision.models.list_models(module=torchvision.models):
            if not any(part in name for part in ("vit_h", "vit_l", "regnet_y_128", "swin_", "quantized")):
                yield f"torchvision.{name}", lambda name=name: torchvision.models.get_model(name), "classifier", image
        for name in torchvision.models.list_models(module=torchvision.models.segmentation):
            yield f"torchvision.{name}", lambda name=name: torchvision.models.get_model(name, weights_backbone=None), "dense", image
    with contextlib.suppress(ImportError):
        import segmentation_models_pytorch as smp

        encoders = ["resnet18", "resnet34", "resnet50", "resnet101", "resnext50_32x4d", "efficientnet-b0", "efficientnet-b3", "efficientnet-b4", "mobilenet_v2", "vgg16_bn", "densenet121", "se_resnext50_32x4d", "mit_b0", "mit_b2", "tu-convnext_tiny"]
        for family in ("Unet", "UnetPlusPlus", "FPN", "PSPNet", "DeepLabV3", "DeepLabV3Plus", "Linknet", "MAnet", "PAN", "UPerNet", "Segformer"):
            for encoder in encoders:
                make = lambda family=family, encoder=encoder: getattr(smp, family)(encoder, encoder_weights=None, classes=1)
                yield f"smp.{family}.{encoder}", make, "dense", image
    with contextlib.suppress(ImportError):
        import timm

        for name in timm.list_models():
            if not any(part in name for part in ("giant", "huge", "gigantic", "enormous", "_6b", "xxlarge", "so400m")):
                yield f"timm.{name}", lambda name=name: timm.create_model(name), "few", image
    with contextlib.suppress(ImportError):
        import ultralytics.nn.tasks as tasks

        for name in [f"yolov8{size}{task}" for size in "nsmlx" for task in ("", "-seg", "-pose")] + [f"yolo11{size}{task}" for size in "nsmlx" for task in ("", "-seg")] + ["yolov5n", "yolov5s", "yolov5m", "yolov5l"]:
            kind = tasks.SegmentationModel if "-seg" in name else tasks.PoseModel if "-pose" in name else tasks.DetectionModel
            yield f"ultralytics.{name}", lambda name=name, kind=kind: kind(f"{name}.yaml", verbose=False), "dense", image
    with contextlib.suppress(ImportError):
        import diffusers

        denoiser = lambda side: (torch.empty(2, 3, side, side), torch.tensor(1))
        latent = lambda channels: lambda side: (torch.empty(2, channels, side // 8, side // 8), torch.tensor(1), torch.empty(2, 77, 768))
        for width in (32, 64, 128, 192):
            yield f"diffusers.unet2d-{width}", lambda width=width: diffusers.UNet2DModel(block_out_channels=(width, 2 * width, 2 * width, 4 * width), down_block_types=("DownBlock2D",) * 3 + ("AttnDownBlock2D",), up_block_types=("AttnUpBlock2D",) + ("UpBlock2D",) * 3, norm_num_groups=16), "classifier", denoiser
        yield "diffusers.sd15", lambda: diffusers.UNet2DConditionModel(cross_attention_dim=768), "dense", latent(4)
        yield "diffusers.vae", lambda: diffusers.AutoencoderKL(block_out_channels=(128, 256, 512, 512), down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=2), "dense", image
        yield "diffusers.vae-default", diffusers.AutoencoderKL, "dense", image
        yield "diffusers.vq", diffusers.VQModel, "dense", image
    import transformers

    speech = lambda length: lambda side: (torch.empty(2, length * side // 224),)
    for name, given in {
        "ResNet": image, "RegNet": image, "ConvNext": image, "ConvNextV2": image, "EfficientNet": image, "MobileNetV1": image, "MobileNetV2": image, "MobileViT": image, "MobileViTV2": image,
        "PoolFormer": image, "VAN": image, "Cvt": image, "LeViT": image, "Levit": image, "FocalNet": image, "Bit": image, "PvtV2": image, "Segformer": image, "EfficientFormer": image, "Swiftformer": image,
        "Wav2Vec2": speech(160_000), "Hubert": speech(160_000), "WavLM": speech(160_000), "Data2VecAudio": speech(160_000), "SEW": speech(160_000),
        "Encodec": lambda side: (torch.empty(2, 1, 24_000 * side // 224),), "Dac": lambda side: (torch.empty(2, 1, 44_032 * side // 224),),
    }.items():  # fmt: skip
        with contextlib.suppress(AttributeError):
            config = getattr(transformers, f"{name}Config")
            model = getattr(transformers, f"{name}Model")
            yield f"transformers.{name}", lambda model=model, config=config: model(config()), "classifier", given


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", action="append", default=[], help="a table whose layers are left out")
    parser.add_argument("--only", default="", help="models whose names begin so")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    known = set()
    for table in options.known:
        known |= {line.split()[1] for line in gzip.open(table, "rt") if line.startswith("layer ")}
    seen, failed, count = {}, 0, 0
    for name, make, sides, given in models():
        if not name.startswith(options.only):
            continue
        try:
            with torch.device("meta"):
                model = make().train()
        except Exception as error:  # a library that has changed
            failed += 1
            print(f"{name}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
            continue
        count += 1
        for side in SIDES[sides]:
            recorder = Recorder()
            try:
                with torch.device("meta"), torch.no_grad(), recorder:
                    model(*given(side))
            except Exception:
                pass  # sides that a model does not take, and outputs that need values: what ran until then counts
            for line in recorder.found:
                seen[line] = seen.get(line, 0) + 1
    new = [line for line in seen if line not in known]
    print(f"{count} models, {failed} could not be built, {len(seen)} layers, {len(new)} of them new", file=sys.stderr)
    # Those of most models first.
    print(*sorted(new, key=lambda line: (-seen[line], line)), sep="\n")


if __name__ == "__main__":
    main()
