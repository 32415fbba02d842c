//! `torchvision/models/segmentation/`: `fcn.py`, `deeplabv3.py` and `lraspp.py`

use crate::presets::convolutional::{mobilenet, resnet};
use crate::presets::layers::{new_relu, sigmoid};
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
                |tracer| mobilenet(tracer, sizes, &[16]),
                deeplab_head,
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

/// `IntermediateLayerGetter`: modules one after the other, and after which of them their results are kept.
struct Backbone {
    place: ModulePath,
    modules: Vec<AnyModule>,
    kept: &'static [usize],
    /// Channels of the last result.
    channels: u64,
}

fn backbone_place() -> ModulePath {
    ModulePath::new(
        "backbone",
        "torchvision.models._utils.IntermediateLayerGetter",
    )
}

fn resnet(tracer: &Tracer, sizes: &Sizes, layers: [u64; 4]) -> Backbone {
    let place = backbone_place();
    let shape = resnet::Shape::bottleneck(layers).dilated([false, true, true]);
    Backbone {
        modules: resnet::body(tracer, &place, sizes.channels, &shape),
        place,
        kept: &[7],
        channels: 2048,
    }
}

fn mobilenet(tracer: &Tracer, sizes: &Sizes, kept: &'static [usize]) -> Backbone {
    let place = backbone_place();
    Backbone {
        modules: mobilenet::features(tracer, &place, sizes.channels, &mobilenet::large(2)),
        place,
        kept,
        channels: 960,
    }
}

impl Backbone {
    fn forward(&self, x: &Tensor) -> Vec<Tensor> {
        x.tracer().in_module(&self.place, || {
            let mut x = x.clone();
            let mut out = Vec::new();
            for (index, module) in self.modules.iter().enumerate() {
                x = module.forward(&x);
                if self.kept.contains(&index) {
                    out.push(x.clone());
                }
            }
            out
        })
    }
}

fn fcn(sizes: &Sizes, layers: [u64; 4]) -> Result<Graph, GraphError> {
    build(sizes, FCN, |tracer| resnet(tracer, sizes, layers), fcn_head)
}

fn deeplab(sizes: &Sizes, layers: [u64; 4]) -> Result<Graph, GraphError> {
    build(
        sizes,
        DEEPLAB,
        |tracer| resnet(tracer, sizes, layers),
        deeplab_head,
    )
}

/// A model with one result of its backbone and a head, made from channels and classes.
fn build(
    sizes: &Sizes,
    class: &str,
    backbone: impl FnOnce(&Tracer) -> Backbone,
    head: fn(&Tracer, [u64; 2]) -> Sequential,
) -> Result<Graph, GraphError> {
    segmenter(sizes, class, |tracer| {
        let backbone = backbone(tracer);
        let classifier = head(tracer, [backbone.channels, sizes.classes]);
        move |x: &Tensor| {
            let input_shape = [x.size(2), x.size(3)];
            let features = backbone.forward(x);
            let Some(out) = features.last() else {
                return x.clone();
            };
            let mut x = classifier.forward(out);
            x = interpolate(&x, input_shape);
            x.and_drop(features)
        }
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

/// Adds a convolution without bias and its normalization.
fn conv_norm(tracer: &Tracer, layers: &mut Sequential, channels: [u64; 2], kernel: u64) {
    dilated(tracer, layers, channels, kernel, 1);
}

fn dilated(tracer: &Tracer, layers: &mut Sequential, channels: [u64; 2], kernel: u64, by: u64) {
    let conv = Conv::new(tracer, layers.next(), channels, &[kernel; 2], 1, false);
    layers.push(conv.padding(kernel / 2 * by).dilation(by));
    layers.push(batch_norm(tracer, layers.next(), channels[1]));
}

/// `FCNHead`.
fn fcn_head(tracer: &Tracer, [channels, classes]: [u64; 2]) -> Sequential {
    let class = "torchvision.models.segmentation.fcn.FCNHead";
    let mut layers = Sequential::of_class("classifier".into(), class);
    let inner = channels / 4;
    conv_norm(tracer, &mut layers, [channels, inner], 3);
    layers.push(new_relu(layers.next()));
    layers.push(Dropout::new(layers.next(), 0.1));
    layers.push(pixelwise(tracer, layers.next(), [inner, classes]));
    layers
}

/// `nn.Conv2d(input, output, 1)`
fn pixelwise(tracer: &Tracer, path: String, channels: [u64; 2]) -> Conv {
    Conv::new(tracer, path, channels, &[1, 1], 1, true)
}

/// `DeepLabHead`.
fn deeplab_head(tracer: &Tracer, [channels, classes]: [u64; 2]) -> Sequential {
    let class = "torchvision.models.segmentation.deeplabv3.DeepLabHead";
    let mut layers = Sequential::of_class("classifier".into(), class);
    layers.push(new_aspp(tracer, layers.next(), channels));
    conv_norm(tracer, &mut layers, [ASPP, ASPP], 3);
    layers.push(new_relu(layers.next()));
    layers.push(pixelwise(tracer, layers.next(), [ASPP, classes]));
    layers
}

/// Channels of each of its branches, and of its result.
const ASPP: u64 = 256;

/// `ASPP`.
fn new_aspp(tracer: &Tracer, path: String, channels: u64) -> FnModule {
    let place = ModulePath::new(path, "torchvision.models.segmentation.deeplabv3.ASPP");
    let at = |index: usize| place.path(&format!("convs.{index}"));
    let mut first = Sequential::new(at(0));
    conv_norm(tracer, &mut first, [channels, ASPP], 1);
    first.push(new_relu(first.next()));
    let mut convs: Vec<AnyModule> = vec![Box::new(first)];
    for rate in [12, 24, 36] {
        let class = "torchvision.models.segmentation.deeplabv3.ASPPConv";
        let mut conv = Sequential::of_class(at(convs.len()), class);
        dilated(tracer, &mut conv, [channels, ASPP], 3, rate);
        conv.push(new_relu(conv.next()));
        convs.push(Box::new(conv));
    }
    convs.push(Box::new(new_aspp_pooling(
        tracer,
        at(convs.len()),
        channels,
    )));
    let mut project = Sequential::new(place.path("project"));
    conv_norm(tracer, &mut project, [5 * ASPP, ASPP], 1);
    project.push(new_relu(project.next()));
    project.push(Dropout::new(project.next(), 0.5));
    FnModule::new(place, move |x| {
        let tracer = x.tracer();
        let results: Vec<Tensor> = convs.iter().map(|conv| conv.forward(x)).collect();
        let all: Vec<&Tensor> = results.iter().collect();
        let res = tracer.cat_of(&all, 1);
        let projected = project.forward(&res);
        // Python lets go of a list's last item first.
        results.into_iter().rev().for_each(drop);
        projected.and_drop(res)
    })
}

/// `ASPPPooling`.
fn new_aspp_pooling(tracer: &Tracer, path: String, channels: u64) -> FnModule {
    let class = "torchvision.models.segmentation.deeplabv3.ASPPPooling";
    let place = ModulePath::new(path, class);
    let conv = Conv::new(tracer, place.path("1"), [channels, ASPP], &[1, 1], 1, false);
    let modules: Vec<AnyModule> = vec![
        Box::new(adaptive_pool(place.path("0"), 1)),
        Box::new(conv),
        Box::new(batch_norm(tracer, place.path("2"), ASPP)),
        Box::new(new_relu(place.path("3"))),
    ];
    FnModule::new(place, move |x| {
        let size = [x.size(2), x.size(3)];
        let mut x = x.clone();
        for module in &modules {
            x = module.forward(&x);
        }
        interpolate(&x, size)
    })
}

fn lraspp(sizes: &Sizes) -> Result<Graph, GraphError> {
    segmenter(
        sizes,
        "torchvision.models.segmentation.lraspp.LRASPP",
        |tracer| {
            let backbone = mobilenet(tracer, sizes, &[4, 16]);
            let classifier = new_lraspp_head(tracer, [40, 960, sizes.classes]);
            move |input: &Tensor| {
                let features = backbone.forward(input);
                let [low, high] = features.as_slice() else {
                    return input.clone();
                };
                let mut out = classifier(low, high);
                out = interpolate(&out, [input.size(2), input.size(3)]);
                out.and_drop(features)
            }
        },
    )
}

/// `LRASPPHead`.
fn new_lraspp_head(
    tracer: &Tracer,
    [low, high, classes]: [u64; 3],
) -> impl Fn(&Tensor, &Tensor) -> Tensor + use<> {
    let inter = 128;
    let class = "torchvision.models.segmentation.lraspp.LRASPPHead";
    let place = ModulePath::new("classifier", class);
    let mut cbr = Sequential::new(place.path("cbr"));
    conv_norm(tracer, &mut cbr, [high, inter], 1);
    cbr.push(relu(cbr.next()));
    let mut scale = Sequential::new(place.path("scale"));
    scale.push(adaptive_pool(scale.next(), 1));
    let conv = Conv::new(tracer, scale.next(), [high, inter], &[1, 1], 1, false);
    scale.push(conv);
    let gate: FnModule = sigmoid(scale.next());
    scale.push(gate);
    let low_classifier = pixelwise(tracer, place.path("low_classifier"), [low, classes]);
    let high_classifier = pixelwise(tracer, place.path("high_classifier"), [inter, classes]);
    move |low: &Tensor, high: &Tensor| {
        low.tracer().in_module(&place, || {
            let mut x = cbr.forward(high);
            let s = scale.forward(high);
            x = (&x).mul(&s);
            x = interpolate(&x, [low.size(2), low.size(3)]);
            let classes = low_classifier.forward(low).add(high_classifier.forward(&x));
            classes.and_drop((x, s))
        })
    }
}
