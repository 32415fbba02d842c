//! `torchvision/models/segmentation/`: `fcn.py`, `deeplabv3.py` and `lraspp.py`

use crate::presets::convolutional::{mobilenet, resnet};
use crate::presets::layers::{Sequence, new_relu, sigmoid};
use crate::presets::prelude::*;
use crate::shape::Extent;

/// torchvision's segmenters.
pub(in crate::presets) const PRESETS: &[Entry] = &[
    entry(
        "fcn_resnet50",
        "torchvision's FCN on a dilated ResNet-50, without auxiliary classifier; loss: cross entropy of each pixel",
        32_957_013,
        AT_480,
        |sizes| fcn(sizes, [3, 4, 6, 3]),
    ),
    entry(
        "fcn_resnet101",
        "torchvision's FCN on a dilated ResNet-101, without auxiliary classifier; loss: cross entropy of each pixel",
        51_949_141,
        AT_480,
        |sizes| fcn(sizes, [3, 4, 23, 3]),
    ),
    entry(
        "deeplabv3_resnet50",
        "torchvision's DeepLabV3 on a dilated ResNet-50, without auxiliary classifier; loss: cross entropy of each pixel",
        39_638_869,
        AT_480,
        |sizes| deeplab(sizes, [3, 4, 6, 3]),
    ),
    entry(
        "deeplabv3_resnet101",
        "torchvision's DeepLabV3 on a dilated ResNet-101, without auxiliary classifier; loss: cross entropy of each pixel",
        58_630_997,
        AT_480,
        |sizes| deeplab(sizes, [3, 4, 23, 3]),
    ),
    entry(
        "deeplabv3_mobilenet_v3_large",
        "torchvision's DeepLabV3 on a dilated MobileNetV3, without auxiliary classifier; loss: cross entropy of each pixel",
        11_025_477,
        AT_480,
        |sizes| {
            build(
                sizes,
                DEEPLAB,
                |at, x| mobilenet(at, sizes, &[16], x),
                (960, deeplab_head),
            )
        },
    ),
    entry(
        "lraspp_mobilenet_v3_large",
        "torchvision's Lite R-ASPP on a dilated MobileNetV3; loss: cross entropy of each pixel",
        3_221_538,
        AT_480,
        lraspp,
    ),
];

/// The crops that torchvision trains segmenters with, and the classes of its weights.
const AT_480: &[Override] = &image(480, 21);

const FCN: &str = "torchvision.models.segmentation.fcn.FCN";
const DEEPLAB: &str = "torchvision.models.segmentation.deeplabv3.DeepLabV3";

/// What calls a backbone: modules one after the other, some of whose results are kept.
const BACKBONE: &str = "torchvision.models._utils.IntermediateLayerGetter";

fn resnet(at: &Frame, sizes: &Sizes, layers: [u64; 4], x: &Tensor) -> Vec<Tensor> {
    let shape = resnet::Shape::bottleneck(layers).dilated([false, true, true]);
    at.call_of("backbone", BACKBONE, |at| {
        vec![resnet::body(at, sizes.channels, &shape, x)]
    })
}

fn mobilenet(at: &Frame, sizes: &Sizes, kept: &[usize], x: &Tensor) -> Vec<Tensor> {
    let mut out = Vec::new();
    let mut count = 0;
    let last = sequential_of(at, ("backbone", BACKBONE), x, |features| {
        mobilenet::features(features, sizes.channels, &mobilenet::large(2), |x| {
            out.extend(kept.contains(&count).then(|| x.clone()));
            count += 1;
        });
    });
    drop(last);
    out
}

fn fcn(sizes: &Sizes, layers: [u64; 4]) -> Result<Graph, GraphError> {
    build(
        sizes,
        FCN,
        |at, x| resnet(at, sizes, layers, x),
        (2048, fcn_head),
    )
}

fn deeplab(sizes: &Sizes, layers: [u64; 4]) -> Result<Graph, GraphError> {
    build(
        sizes,
        DEEPLAB,
        |at, x| resnet(at, sizes, layers, x),
        (2048, deeplab_head),
    )
}

/// What makes classes of the last result of a backbone, from its channels and how many classes there are.
type Head = fn(&Frame, [u64; 2], &Tensor) -> Tensor;

/// A model with one result of its backbone, of so many channels, and a head.
fn build(
    sizes: &Sizes,
    class: &str,
    backbone: impl FnOnce(&Frame, &Tensor) -> Vec<Tensor>,
    (channels, head): (u64, Head),
) -> Result<Graph, GraphError> {
    segmenter(sizes, class, |at, x| {
        let input_shape = [x.size(2), x.size(3)];
        let features = backbone(at, x);
        let Some(out) = features.last() else {
            return x.clone();
        };
        let mut x = head(at, [channels, sizes.classes], out);
        x = interpolate(&x, input_shape);
        x.and_drop(features)
    })
}

/// `F.interpolate(x, size=size, mode="bilinear", align_corners=False)`
fn interpolate(x: &Tensor, size: [Extent; 2]) -> Tensor {
    x.tracer().call(
        "aten.upsample_bilinear2d.vec",
        &[
            ("input", Argument::Tensor(x)),
            (
                "output_size",
                Argument::Sizes(size.map(Size::from).to_vec()),
            ),
            ("align_corners", Argument::Bool(false)),
            ("scale_factors", Argument::None),
        ],
    )
}

/// Calls a convolution without bias and its normalization.
fn conv_norm(layers: &mut Sequence<'_>, channels: [u64; 2], kernel: u64) {
    dilated(layers, channels, kernel, 1);
}

fn dilated(layers: &mut Sequence<'_>, channels: [u64; 2], kernel: u64, by: u64) {
    layers.then(|at, name, x| {
        let conv = at.conv(name, channels, &[kernel; 2], false);
        conv.padding(kernel / 2 * by).dilation(by).forward(x)
    });
    layers.then(|at, name, x| batch_norm(at, name, channels[1], x));
}

/// `FCNHead`.
fn fcn_head(at: &Frame, [channels, classes]: [u64; 2], x: &Tensor) -> Tensor {
    let class = "torchvision.models.segmentation.fcn.FCNHead";
    sequential_of(at, ("classifier", class), x, |layers| {
        let inner = channels / 4;
        conv_norm(layers, [channels, inner], 3);
        layers.then(new_relu);
        layers.dropout(0.1);
        layers.then(|at, name, x| pixelwise(at, name, [inner, classes], x));
    })
}

/// `nn.Conv2d(input, output, 1)`
fn pixelwise(at: &Frame, name: &str, channels: [u64; 2], x: &Tensor) -> Tensor {
    at.conv(name, channels, &[1, 1], true).forward(x)
}

/// `DeepLabHead`.
fn deeplab_head(at: &Frame, [channels, classes]: [u64; 2], x: &Tensor) -> Tensor {
    let class = "torchvision.models.segmentation.deeplabv3.DeepLabHead";
    sequential_of(at, ("classifier", class), x, |layers| {
        layers.then(|at, name, x| at.call(name, "ASPP", |at| aspp(at, channels, x)));
        conv_norm(layers, [ASPP, ASPP], 3);
        layers.then(new_relu);
        layers.then(|at, name, x| pixelwise(at, name, [ASPP, classes], x));
    })
}

/// Channels of each of its branches, and of its result.
const ASPP: u64 = 256;

/// `ASPP`.
fn aspp(at: &Frame, channels: u64, x: &Tensor) -> Tensor {
    let tracer = at.tracer();
    let first = sequential(at, "convs.0", x, |first| {
        conv_norm(first, [channels, ASPP], 1);
        first.then(new_relu);
    });
    let mut results = vec![first];
    for (index, rate) in (1..).zip([12, 24, 36]) {
        let class = "torchvision.models.segmentation.deeplabv3.ASPPConv";
        results.push(sequential_of(
            at,
            (&format!("convs.{index}"), class),
            x,
            |conv| {
                dilated(conv, [channels, ASPP], 3, rate);
                conv.then(new_relu);
            },
        ));
    }
    results.push(at.call("convs.4", "ASPPPooling", |at| {
        let mut pooled = adaptive_pool(at, "0", 1, x);
        pooled = at
            .conv("1", [channels, ASPP], &[1, 1], false)
            .forward(pooled);
        pooled = batch_norm(at, "2", ASPP, &pooled);
        pooled = new_relu(at, "3", &pooled);
        interpolate(&pooled, [x.size(2), x.size(3)])
    }));
    let all: Vec<&Tensor> = results.iter().collect();
    let res = tracer.cat_of(&all, 1);
    let projected = sequential(at, "project", &res, |project| {
        conv_norm(project, [5 * ASPP, ASPP], 1);
        project.then(new_relu);
        project.dropout(0.5);
    });
    // Python lets go of a list's last item first.
    results.into_iter().rev().for_each(drop);
    projected.and_drop(res)
}

fn lraspp(sizes: &Sizes) -> Result<Graph, GraphError> {
    let class = "torchvision.models.segmentation.lraspp.LRASPP";
    segmenter(sizes, class, |at, input| {
        let features = mobilenet(at, sizes, &[4, 16], input);
        let [low, high] = features.as_slice() else {
            return input.clone();
        };
        let mut out = at.call("classifier", "LRASPPHead", |at| {
            lraspp_head(at, sizes.classes, low, high)
        });
        out = interpolate(&out, [input.size(2), input.size(3)]);
        out.and_drop(features)
    })
}

/// `LRASPPHead`.
fn lraspp_head(at: &Frame, classes: u64, low: &Tensor, high: &Tensor) -> Tensor {
    let inter = 128;
    let mut x = sequential(at, "cbr", high, |cbr| {
        conv_norm(cbr, [960, inter], 1);
        cbr.then(relu);
    });
    let s = sequential(at, "scale", high, |scale| {
        scale.then(|at, name, x| adaptive_pool(at, name, 1, x));
        scale.then(|at, name, x| at.conv(name, [960, inter], &[1, 1], false).forward(x));
        scale.then(sigmoid);
    });
    x = (&x).mul(&s);
    x = interpolate(&x, [low.size(2), low.size(3)]);
    let of_low = pixelwise(at, "low_classifier", [40, classes], low);
    let classes = of_low.add(pixelwise(at, "high_classifier", [inter, classes], &x));
    classes.and_drop((x, s))
}
