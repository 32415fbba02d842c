//! `torchvision/models/mobilenetv2.py` and `mobilenetv3.py`

use crate::presets::layers::{Sequence, hardsigmoid, hardswish, new_relu, relu6};
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
    let class = "torchvision.models.mobilenetv2.MobileNetV2";
    classifier(sizes, class, |at, x| {
        let mut x = sequential(at, "features", x, |features| {
            let stem = ConvNorm::new(sizes.channels, 32).stride(2);
            features.then(|at, name, x| stem.activation(relu6).call(at, name, x));
            let mut input = 32;
            for (expansion, output, blocks, stride) in STAGES {
                for block in 0..blocks {
                    let settings = (if block == 0 { stride } else { 1 }, expansion);
                    features.then(|at, name, x| inverted2(at, name, [input, output], settings, x));
                    input = output;
                }
            }
            let last = ConvNorm::new(input, 1280).kernel(1).activation(relu6);
            features.then(|at, name, x| last.call(at, name, x));
        });
        x = adaptive_average(&x, 1);
        x = flat(&x);
        sequential(at, "classifier", &x, |classifier| {
            classifier.dropout(0.2);
            classifier.linear([1280, sizes.classes]);
        })
    })
}

/// `InvertedResidual` of `mobilenetv2.py`.
fn inverted2(
    at: &Frame,
    name: &str,
    [input, output]: [u64; 2],
    (stride, expansion): (u64, u64),
    x: &Tensor,
) -> Tensor {
    at.call(name, "InvertedResidual", |at| {
        let hidden = input * expansion;
        let made = sequential(at, "conv", x, |conv| {
            if expansion != 1 {
                let expand = ConvNorm::new(input, hidden).kernel(1).activation(relu6);
                conv.then(|at, name, x| expand.call(at, name, x));
            }
            let depthwise = ConvNorm::new(hidden, hidden).stride(stride).groups(hidden);
            conv.then(|at, name, x| depthwise.activation(relu6).call(at, name, x));
            conv.then(|at, name, x| at.conv(name, [hidden, output], &[1, 1], false).forward(x));
            conv.then(|at, name, x| batch_norm(at, name, output, x));
        });
        if stride == 1 && input == output {
            x.add(made)
        } else {
            made
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

/// What `MobileNetV3` makes of its features, in order.
pub(in crate::presets) fn features(
    features: &mut Sequence<'_>,
    channels: u64,
    blocks: &[Block],
    mut made: impl FnMut(&Tensor),
) {
    let first = blocks.first().map_or(0, |block| block.input);
    let mobile = |conv: ConvNorm| conv.norm(Norm::MOBILE).activation(hardswish);
    let stem = mobile(ConvNorm::new(channels, first).stride(2));
    features.then(|at, name, x| stem.call(at, name, x));
    made(features.made());
    for block in blocks {
        features.then(|at, name, x| inverted3(at, name, block, x));
        made(features.made());
    }
    let input = blocks.last().map_or(0, |block| block.output);
    let last = mobile(ConvNorm::new(input, 6 * input).kernel(1));
    features.then(|at, name, x| last.call(at, name, x));
    made(features.made());
}

fn third(sizes: &Sizes, blocks: &[Block], last_channel: u64) -> Result<Graph, GraphError> {
    let class = "torchvision.models.mobilenetv3.MobileNetV3";
    classifier(sizes, class, |at, x| {
        let made = sequential(at, "features", x, |layers| {
            features(layers, sizes.channels, blocks, |_| {});
        });
        let output = 6 * blocks.last().map_or(0, |block| block.output);
        pooled(at, made, 1, |x| {
            sequential(at, "classifier", x, |classifier| {
                classifier.linear([output, last_channel]);
                classifier.then(hardswish);
                classifier.then(|at, name, x| dropout_in_place(at, name, 0.2, x));
                classifier.linear([last_channel, sizes.classes]);
            })
        })
    })
}

/// `InvertedResidual` of `mobilenetv3.py`.
fn inverted3(at: &Frame, name: &str, config: &Block, x: &Tensor) -> Tensor {
    let Block {
        input,
        kernel,
        expanded,
        output,
        activation,
        ..
    } = *config;
    let class = "torchvision.models.mobilenetv3.InvertedResidual";
    at.call_of(name, class, |at| {
        let result = sequential(at, "block", x, |block| {
            if expanded != input {
                let expand = ConvNorm::new(input, expanded).kernel(1).norm(Norm::MOBILE);
                block.then(|at, name, x| expand.activation(activation).call(at, name, x));
            }
            let depthwise = ConvNorm::new(expanded, expanded)
                .kernel(kernel)
                .stride(if config.dilation > 1 {
                    1
                } else {
                    config.stride
                })
                .dilation(config.dilation)
                .groups(expanded)
                .norm(Norm::MOBILE);
            block.then(|at, name, x| depthwise.activation(activation).call(at, name, x));
            if config.use_se {
                let channels = [expanded, make_divisible(expanded / 4)];
                let activations: [Activation; 2] = [new_relu, hardsigmoid];
                block.then(|at, name, x| squeeze_excitation(at, name, channels, activations, x));
            }
            let project = ConvNorm::new(expanded, output).kernel(1).norm(Norm::MOBILE);
            block.then(|at, name, x| project.without_activation().call(at, name, x));
        });
        if config.stride == 1 && input == output {
            result.add_in_place(x);
        }
        result
    })
}
