//! `torchvision/models/mobilenetv2.py` and `mobilenetv3.py`

use crate::presets::layers::{hardsigmoid, hardswish, new_relu, relu6};
use crate::presets::prelude::*;

/// torchvision's `MobileNets`.
#[rustfmt::skip] // A row a line.
pub(in crate::presets) const PRESETS: &[Entry] = &[
    entry("mobilenet_v2", "torchvision's MobileNetV2", 3_504_872, AT_224, second),
    entry("mobilenet_v3_small", "torchvision's MobileNetV3, small", 2_542_856, AT_224, |sizes| third(sizes, &SMALL, 1024)),
    entry("mobilenet_v3_large", "torchvision's MobileNetV3, large", 5_483_032, AT_224, |sizes| third(sizes, &large(1), 1280)),
];

/// Expansion, channels, blocks and stride of each stage of `MobileNetV2`.
const STAGES: [(u64, u64, u64, u64); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];

fn second(sizes: &Sizes) -> Result<Graph, GraphError> {
    classifier(
        sizes,
        "torchvision.models.mobilenetv2.MobileNetV2",
        |tracer| {
            let mut features = Sequential::new("features".into());
            let stem = ConvNorm::new(sizes.channels, 32)
                .stride(2)
                .activation(relu6);
            features.push(stem.make(tracer, features.next()));
            let mut input = 32;
            for (expansion, output, blocks, stride) in STAGES {
                for block in 0..blocks {
                    let stride = if block == 0 { stride } else { 1 };
                    let block =
                        new_inverted2(tracer, features.next(), [input, output], stride, expansion);
                    features.push(block);
                    input = output;
                }
            }
            let last = ConvNorm::new(input, 1280).kernel(1).activation(relu6);
            features.push(last.make(tracer, features.next()));
            let mut classifier = Sequential::new("classifier".into());
            classifier.push(Dropout::new(classifier.next(), 0.2));
            let linear = Linear::new(tracer, classifier.next(), [1280, sizes.classes], true);
            classifier.push(linear);
            move |x: &Tensor| {
                let mut x = features.forward(x);
                x = adaptive_average(&x, 1);
                x = flat(&x);
                classifier.forward(&x)
            }
        },
    )
}

/// `InvertedResidual` of `mobilenetv2.py`.
fn new_inverted2(
    tracer: &Tracer,
    path: String,
    [input, output]: [u64; 2],
    stride: u64,
    expansion: u64,
) -> FnModule {
    let place = ModulePath::new(path, "torchvision.models.mobilenetv2.InvertedResidual");
    let hidden = input * expansion;
    let mut conv = Sequential::new(place.path("conv"));
    if expansion != 1 {
        let expand = ConvNorm::new(input, hidden).kernel(1).activation(relu6);
        conv.push(expand.make(tracer, conv.next()));
    }
    let depthwise = ConvNorm::new(hidden, hidden).stride(stride).groups(hidden);
    conv.push(depthwise.activation(relu6).make(tracer, conv.next()));
    let project = Conv::new(tracer, conv.next(), [hidden, output], &[1, 1], 1, false);
    conv.push(project);
    conv.push(batch_norm(tracer, conv.next(), output));
    let use_res_connect = stride == 1 && input == output;
    FnModule::new(place, move |x| {
        if use_res_connect {
            x.add(conv.forward(x))
        } else {
            conv.forward(x)
        }
    })
}

/// `InvertedResidualConfig`.
#[derive(Debug, Clone, Copy)]
pub(in crate::presets) struct Block {
    input: u64,
    kernel: u64,
    expanded: u64,
    output: u64,
    use_se: bool,
    activation: Activation,
    stride: u64,
    dilation: u64,
}

const fn block(
    (input, kernel, expanded, output): (u64, u64, u64, u64),
    use_se: bool,
    activation: Activation,
    stride: u64,
) -> Block {
    Block {
        input,
        kernel,
        expanded,
        output,
        use_se,
        activation,
        stride,
        dilation: 1,
    }
}

const SMALL: [Block; 11] = [
    block((16, 3, 16, 16), true, relu, 2),
    block((16, 3, 72, 24), false, relu, 2),
    block((24, 3, 88, 24), false, relu, 1),
    block((24, 5, 96, 40), true, hardswish, 2),
    block((40, 5, 240, 40), true, hardswish, 1),
    block((40, 5, 240, 40), true, hardswish, 1),
    block((40, 5, 120, 48), true, hardswish, 1),
    block((48, 5, 144, 48), true, hardswish, 1),
    block((48, 5, 288, 96), true, hardswish, 2),
    block((96, 5, 576, 96), true, hardswish, 1),
    block((96, 5, 576, 96), true, hardswish, 1),
];

/// The large one, the last stage of which may be dilated.
pub(in crate::presets) const fn large(dilation: u64) -> [Block; 15] {
    let mut blocks = [
        block((16, 3, 16, 16), false, relu, 1),
        block((16, 3, 64, 24), false, relu, 2),
        block((24, 3, 72, 24), false, relu, 1),
        block((24, 5, 72, 40), true, relu, 2),
        block((40, 5, 120, 40), true, relu, 1),
        block((40, 5, 120, 40), true, relu, 1),
        block((40, 3, 240, 80), false, hardswish, 2),
        block((80, 3, 200, 80), false, hardswish, 1),
        block((80, 3, 184, 80), false, hardswish, 1),
        block((80, 3, 184, 80), false, hardswish, 1),
        block((80, 3, 480, 112), true, hardswish, 1),
        block((112, 3, 672, 112), true, hardswish, 1),
        block((112, 5, 672, 160), true, hardswish, 2),
        block((160, 5, 960, 160), true, hardswish, 1),
        block((160, 5, 960, 160), true, hardswish, 1),
    ];
    blocks[12].dilation = dilation;
    blocks[13].dilation = dilation;
    blocks[14].dilation = dilation;
    blocks
}

/// `_make_divisible(v, 8)`
fn make_divisible(v: u64) -> u64 {
    let rounded = ((v + 4) / 8 * 8).max(8);
    if 10 * rounded < 9 * v {
        rounded + 8
    } else {
        rounded
    }
}

/// What `MobileNetV3` calls its features, in order, below a module.
pub(in crate::presets) fn features(
    tracer: &Tracer,
    below: &ModulePath,
    channels: u64,
    blocks: &[Block],
) -> Vec<AnyModule> {
    let first = blocks.first().map_or(0, |block| block.input);
    let mobile = |conv: ConvNorm| conv.norm(Norm::MOBILE).activation(hardswish);
    let stem = mobile(ConvNorm::new(channels, first).stride(2));
    let mut features: Vec<AnyModule> = vec![Box::new(stem.make(tracer, below.path("0")))];
    for block in blocks {
        let path = below.path(&features.len().to_string());
        features.push(Box::new(new_inverted3(tracer, path, block)));
    }
    let input = blocks.last().map_or(0, |block| block.output);
    let last = mobile(ConvNorm::new(input, 6 * input).kernel(1));
    let path = below.path(&features.len().to_string());
    features.push(Box::new(last.make(tracer, path)));
    features
}

fn third(sizes: &Sizes, blocks: &[Block], last_channel: u64) -> Result<Graph, GraphError> {
    classifier(
        sizes,
        "torchvision.models.mobilenetv3.MobileNetV3",
        |tracer| {
            let mut layers = Sequential::new("features".into());
            let below = ModulePath::new("features", "");
            for feature in features(tracer, &below, sizes.channels, blocks) {
                layers.push(feature);
            }
            let output = 6 * blocks.last().map_or(0, |block| block.output);
            let mut classifier = Sequential::new("classifier".into());
            let linear = Linear::new(tracer, classifier.next(), [output, last_channel], true);
            classifier.push(linear);
            classifier.push(hardswish(classifier.next()));
            classifier.push(dropout_in_place(classifier.next(), 0.2));
            let head = [last_channel, sizes.classes];
            classifier.push(Linear::new(tracer, classifier.next(), head, true));
            pooled(layers, 1, classifier)
        },
    )
}

/// `InvertedResidual` of `mobilenetv3.py`.
fn new_inverted3(tracer: &Tracer, path: String, config: &Block) -> FnModule {
    let place = ModulePath::new(path, "torchvision.models.mobilenetv3.InvertedResidual");
    let Block {
        input,
        kernel,
        expanded,
        output,
        activation,
        ..
    } = *config;
    let mut block = Sequential::new(place.path("block"));
    if expanded != input {
        let expand = ConvNorm::new(input, expanded).kernel(1).norm(Norm::MOBILE);
        block.push(expand.activation(activation).make(tracer, block.next()));
    }
    let stride = if config.dilation > 1 {
        1
    } else {
        config.stride
    };
    let depthwise = ConvNorm::new(expanded, expanded)
        .kernel(kernel)
        .stride(stride)
        .dilation(config.dilation)
        .groups(expanded)
        .norm(Norm::MOBILE);
    block.push(depthwise.activation(activation).make(tracer, block.next()));
    if config.use_se {
        let channels = [expanded, make_divisible(expanded / 4)];
        let activations: [Activation; 2] = [new_relu, hardsigmoid];
        let squeeze = squeeze_excitation(tracer, block.next(), channels, activations);
        block.push(squeeze);
    }
    let project = ConvNorm::new(expanded, output).kernel(1).norm(Norm::MOBILE);
    block.push(project.without_activation().make(tracer, block.next()));
    let use_res_connect = config.stride == 1 && input == output;
    FnModule::new(place, move |input| {
        let result = block.forward(input);
        if use_res_connect {
            result.add_in_place(input);
        }
        result
    })
}
