"""Convolutional networks with widths and sizes that libraries do not have, for unrecorded.py."""
import torch, torch.nn as nn, torch.nn.functional as F


def block(i, o, k=3, s=1, d=1, g=1):
    return nn.Sequential(nn.Conv2d(i, o, k, s, d * (k - 1) // 2, d, g, bias=False), nn.BatchNorm2d(o), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, base=44, classes=11):
        super().__init__()
        w = [base, 2 * base, 4 * base, 8 * base]
        self.down = nn.ModuleList(nn.Sequential(block(a, b), block(b, b)) for a, b in zip([3] + w, w))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(w[:-1], w[1:]))
        self.join = nn.ModuleList(nn.Sequential(block(2 * a, a), block(a, a)) for a in w[:-1])
        self.head = nn.Conv2d(base, classes, 1)

    def forward(self, x):
        skips = []
        for i, d in enumerate(self.down):
            x = d(x if i == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for u, j, s in zip(reversed(self.up), reversed(self.join), reversed(skips[:-1])):
            x = j(torch.cat([u(x), s], 1))
        return self.head(x).mean((2, 3))


class Res(nn.Module):
    def __init__(self, i, o, s, g=1):
        super().__init__()
        self.a, self.b = block(i, o, 3, s, g=g), nn.Sequential(nn.Conv2d(o, o, 3, 1, 1, bias=False, groups=g), nn.BatchNorm2d(o))
        self.skip = nn.Identity() if (i, s) == (o, 1) else nn.Sequential(nn.Conv2d(i, o, 1, s, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        return F.relu(self.b(self.a(x)) + self.skip(x))


def odd_resnet(w=(72, 136, 264, 520), g=1):
    stages = [block(3, w[0], 7, 2), nn.MaxPool2d(3, 2, 1)]
    last = w[0]
    for n, width in enumerate(w):
        for i in range(2):
            stages.append(Res(last, width, 2 if i == 0 and n else 1, g)); last = width
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 37))


def dilated():
    return nn.Sequential(block(3, 56, 5, 2), block(56, 112, 3, 2), block(112, 112, 3, 1, 2), block(112, 112, 3, 1, 4), block(112, 168, 3, 1, 2),
                         block(168, 168, 1), nn.ConvTranspose2d(168, 56, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(56, 24, 4, 2, 1), nn.ReLU(),
                         nn.Conv2d(24, 19, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def cube():
    b = lambda i, o, s=1: nn.Sequential(nn.Conv3d(i, o, 3, s, 1, bias=False), nn.BatchNorm3d(o), nn.ReLU())
    return nn.Sequential(b(1, 20), b(20, 40, 2), b(40, 40), b(40, 80, 2), b(80, 80), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(80, 7))


def wave():
    b = lambda i, o, k, s, d=1: nn.Sequential(nn.Conv1d(i, o, k, s, d * (k - 1) // 2, d), nn.BatchNorm1d(o), nn.GELU())
    return nn.Sequential(b(1, 40, 15, 4), b(40, 80, 9, 4), b(80, 160, 5, 2), b(160, 160, 5, 1, 2), b(160, 160, 5, 1, 4), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(160, 35))


def plain(widths=(60, 120, 240, 480), classes=23):
    layers, last = [], 3
    for width in widths:
        layers += [block(last, width), block(width, width), nn.MaxPool2d(2)]
        last = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes))


def autoencoder(w=(36, 72, 144, 288)):
    down = [block(a, b, 4, 2) for a, b in zip((3, *w), w)]
    up = [nn.Sequential(nn.ConvTranspose2d(b, a, 4, 2, 1), nn.BatchNorm2d(a), nn.LeakyReLU(0.2)) for a, b in zip(w[:-1], w[1:])]
    return nn.Sequential(*down, *reversed(up), nn.ConvTranspose2d(w[0], 13, 4, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def large_kernels():
    return nn.Sequential(block(3, 50, 11, 4), block(50, 100, 7), block(100, 100, 5), block(100, 200, 7, 2), block(200, 200, 5), block(200, 300, 3, 2),
                         block(300, 300, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(300, 29))


class Logits(nn.Module):
    """A segmentation network, whose classes are averaged over the image."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)["out"].mean((2, 3))


def lraspp():
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large
    return Logits(lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=17))


def video():
    from torchvision.models.video import r3d_18
    return r3d_18(weights=None)


def tv(name):
    import torchvision
    return getattr(torchvision.models, name)(weights=None, **({"init_weights": False} if name in ("googlenet", "inception_v3") else {}))


def timm(name, **kw):
    import timm
    return timm.create_model(name, **kw)


# name: (build, shape of a sample, classes)
NETS = {
    "unet44": (UNet, (3, 208, 208), 11),
    "oddres": (odd_resnet, (3, 200, 200), 37),
    "oddresg": (lambda: odd_resnet((64, 128, 256, 512), 8), (3, 184, 184), 37),
    "dilated": (dilated, (3, 216, 216), 19),
    "cube": (cube, (1, 40, 40, 40), 7),
    "wave": (wave, (1, 12000), 35),
    "resnet50-176": (lambda: tv("resnet50"), (3, 176, 176), 1000),
    "vgg11bn-152": (lambda: tv("vgg11_bn"), (3, 152, 152), 1000),
    "densenet169-200": (lambda: tv("densenet169"), (3, 200, 200), 1000),
    "effb1-208": (lambda: timm("efficientnet_b1"), (3, 208, 208), 1000),
    "regnety016-232": (lambda: timm("regnety_016"), (3, 232, 232), 1000),
    "convnextn-200": (lambda: timm("convnext_nano"), (3, 200, 200), 1000),
    "mnv4s-184": (lambda: timm("mobilenetv4_conv_small"), (3, 184, 184), 1000),
    "seresnext26-216": (lambda: timm("seresnext26d_32x4d"), (3, 216, 216), 1000),
    # From here on: chosen when the rules for those above were done.
    "plain60": (plain, (3, 168, 168), 23),
    "auto36": (autoencoder, (3, 160, 160), 13),
    "kernels": (large_kernels, (3, 228, 228), 29),
    "hundreds": (lambda: odd_resnet((100, 200, 300, 400)), (3, 150, 150), 37),
    "lraspp-264": (lraspp, (3, 264, 264), 17),
    "video-100": (video, (3, 12, 100, 100), 400),
    "hrnet18-192": (lambda: timm("hrnet_w18_small"), (3, 192, 192), 1000),
    "xception-235": (lambda: timm("xception41"), (3, 235, 235), 1000),
    "repvgg-200": (lambda: timm("repvgg_a1"), (3, 200, 200), 1000),
    "regnetx-200": (lambda: timm("regnetx_016"), (3, 200, 200), 1000),
}


class ChannelsLast(nn.Module):
    """The same with weights and images in channels-last."""

    def __init__(self, model):
        super().__init__()
        self.model = model.to(memory_format=torch.channels_last)

    def forward(self, x):
        return self.model(x.contiguous(memory_format=torch.channels_last))


# Not in truth.json yet; `tests/it/compile/layouts.rs` reads one of them.
for _name in ("unet44", "oddres", "resnet50-176", "effb1-208"):
    NETS[f"last-{_name}"] = ((lambda build: lambda: ChannelsLast(build()))(NETS[_name][0]), *NETS[_name][1:])


def __getattr__(name):
    """`unrecorded_nets:build_NAME`, for the exporter."""
    if name.startswith("build_"):
        return NETS[name[6:].replace("_", "-")][0]
    raise AttributeError(name)
