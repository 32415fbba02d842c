//! `torchvision/models/efficientnet.py`

use crate::presets::layers::{sigmoid, silu};
use crate::presets::prelude::*;

/// torchvision's `EfficientNets`.
#[rustfmt::skip] // A row a line.
pub(in crate::presets) const PRESETS: &[Entry] = &[
    entry("efficientnet_b0", "torchvision's EfficientNet-B0", 5_288_548, AT_224, |sizes| first(sizes, 10, 10, 0.2, Norm::DEFAULT)),
    entry("efficientnet_b1", "torchvision's EfficientNet-B1", 7_794_184, const { &image(240, 1000) }, |sizes| first(sizes, 10, 11, 0.2, Norm::DEFAULT)),
    entry("efficientnet_b2", "torchvision's EfficientNet-B2", 9_109_994, const { &image(288, 1000) }, |sizes| first(sizes, 11, 12, 0.3, Norm::DEFAULT)),
    entry("efficientnet_b3", "torchvision's EfficientNet-B3", 12_233_232, const { &image(300, 1000) }, |sizes| first(sizes, 12, 14, 0.3, Norm::DEFAULT)),
    entry("efficientnet_b4", "torchvision's EfficientNet-B4", 19_341_616, const { &image(380, 1000) }, |sizes| first(sizes, 14, 18, 0.4, Norm::DEFAULT)),
    entry("efficientnet_b5", "torchvision's EfficientNet-B5", 30_389_784, const { &image(456, 1000) }, |sizes| first(sizes, 16, 22, 0.4, Norm::MOBILE)),
    entry("efficientnet_b6", "torchvision's EfficientNet-B6", 43_040_704, const { &image(528, 1000) }, |sizes| first(sizes, 18, 26, 0.5, Norm::MOBILE)),
    entry("efficientnet_b7", "torchvision's EfficientNet-B7", 66_347_960, const { &image(600, 1000) }, |sizes| first(sizes, 20, 31, 0.5, Norm::MOBILE)),
    entry("efficientnet_v2_s", "torchvision's EfficientNetV2-S", 21_458_488, const { &image(384, 1000) }, |sizes| second(sizes, &V2_S, 0.2)),
    entry("efficientnet_v2_m", "torchvision's EfficientNetV2-M", 54_139_356, AT_480, |sizes| second(sizes, &V2_M, 0.3)),
    entry("efficientnet_v2_l", "torchvision's EfficientNetV2-L", 118_515_272, AT_480, |sizes| second(sizes, &V2_L, 0.4)),
];

const AT_480: &[Override] = &image(480, 1000);

/// How many blocks of the deepest are skipped in training.
const STOCHASTIC_DEPTH: f64 = 0.2;

/// `MBConvConfig` and `FusedMBConvConfig`.
#[derive(Debug, Clone, Copy)]
struct Stage {
    is_fused: bool,
    expansion: u64,
    kernel: u64,
    stride: u64,
    input: u64,
    output: u64,
    layers: u32,
}

/// `expand_ratio, kernel, stride, input_channels, out_channels, num_layers`
type Settings = (u64, u64, u64, u64, u64, u32);

const fn separate((expansion, kernel, stride, input, output, layers): Settings) -> Stage {
    Stage {
        is_fused: false,
        expansion,
        kernel,
        stride,
        input,
        output,
        layers,
    }
}

const fn fused(settings: Settings) -> Stage {
    Stage {
        is_fused: true,
        ..separate(settings)
    }
}

const V1: [Stage; 7] = [
    separate((1, 3, 1, 32, 16, 1)),
    separate((6, 3, 2, 16, 24, 2)),
    separate((6, 5, 2, 24, 40, 2)),
    separate((6, 3, 2, 40, 80, 3)),
    separate((6, 5, 1, 80, 112, 3)),
    separate((6, 5, 2, 112, 192, 4)),
    separate((6, 3, 1, 192, 320, 1)),
];

const V2_S: [Stage; 6] = [
    fused((1, 3, 1, 24, 24, 2)),
    fused((4, 3, 2, 24, 48, 4)),
    fused((4, 3, 2, 48, 64, 4)),
    separate((4, 3, 2, 64, 128, 6)),
    separate((6, 3, 1, 128, 160, 9)),
    separate((6, 3, 2, 160, 256, 15)),
];

const V2_M: [Stage; 7] = [
    fused((1, 3, 1, 24, 24, 3)),
    fused((4, 3, 2, 24, 48, 5)),
    fused((4, 3, 2, 48, 80, 5)),
    separate((4, 3, 2, 80, 160, 7)),
    separate((6, 3, 1, 160, 176, 14)),
    separate((6, 3, 2, 176, 304, 18)),
    separate((6, 3, 1, 304, 512, 5)),
];

const V2_L: [Stage; 7] = [
    fused((1, 3, 1, 32, 32, 4)),
    fused((4, 3, 2, 32, 64, 7)),
    fused((4, 3, 2, 64, 96, 7)),
    separate((4, 3, 2, 96, 192, 10)),
    separate((6, 3, 1, 192, 224, 19)),
    separate((6, 3, 2, 224, 384, 25)),
    separate((6, 3, 1, 384, 640, 7)),
];

/// `_make_divisible(channels * tenths / 10, 8)`
fn adjusted(channels: u64, tenths: u64) -> u64 {
    let wide = channels * tenths;
    let rounded = ((wide + 40) / 80 * 8).max(8);
    if 100 * rounded < 9 * wide {
        rounded + 8
    } else {
        rounded
    }
}

/// One of the first version: `width` and `depth` are multiples of the smallest one's, in tenths.
fn first(
    sizes: &Sizes,
    width: u64,
    depth: u32,
    dropout: f64,
    norm: Norm,
) -> Result<Graph, GraphError> {
    let stages = V1.map(|stage| Stage {
        input: adjusted(stage.input, width),
        output: adjusted(stage.output, width),
        layers: (stage.layers * depth).div_ceil(10),
        ..stage
    });
    let last = 4 * stages[stages.len() - 1].output;
    build(sizes, &stages, last, dropout, norm)
}

fn second(sizes: &Sizes, stages: &[Stage], dropout: f64) -> Result<Graph, GraphError> {
    let norm = Norm {
        eps: 1e-3,
        ..Norm::DEFAULT
    };
    build(sizes, stages, 1280, dropout, norm)
}

fn build(
    sizes: &Sizes,
    stages: &[Stage],
    last_channel: u64,
    dropout: f64,
    norm: Norm,
) -> Result<Graph, GraphError> {
    let class = "torchvision.models.efficientnet.EfficientNet";
    classifier(sizes, class, |at, x| {
        let features = sequential(at, "features", x, |features| {
            let conv = |input, output| ConvNorm::new(input, output).norm(norm).activation(silu);
            let stem = conv(sizes.channels, stages[0].input).stride(2);
            features.then(|at, name, x| stem.call(at, name, x));
            let total: u32 = stages.iter().map(|stage| stage.layers).sum();
            let mut made = 0;
            for stage in stages {
                features.then(|at, name, x| {
                    sequential(at, name, x, |layers| {
                        let mut block = *stage;
                        for _ in 0..stage.layers {
                            let p = STOCHASTIC_DEPTH * f64::from(made) / f64::from(total);
                            layers.then(|at, name, x| mb_conv(at, name, &block, (p, norm), x));
                            made += 1;
                            (block.input, block.stride) = (stage.output, 1);
                        }
                    })
                });
            }
            let last = conv(stages[stages.len() - 1].output, last_channel).kernel(1);
            features.then(|at, name, x| last.call(at, name, x));
        });
        pooled(at, features, 1, |x| {
            sequential(at, "classifier", x, |classifier| {
                classifier.then(|at, name, x| dropout_in_place(at, name, dropout, x));
                classifier.linear([last_channel, sizes.classes]);
            })
        })
    })
}

/// `MBConv` and `FusedMBConv`.
fn mb_conv(
    at: &Frame,
    name: &str,
    stage: &Stage,
    (p, norm): (f64, Norm),
    input: &Tensor,
) -> Tensor {
    let class = if stage.is_fused {
        "FusedMBConv"
    } else {
        "MBConv"
    };
    at.call(name, class, |at| {
        let mut result = block(at, stage, norm, input);
        if stage.stride == 1 && stage.input == stage.output {
            result = stochastic_depth(at, "stochastic_depth", p, &result);
            result.add_in_place(input);
        }
        result
    })
}

fn block(at: &Frame, stage: &Stage, norm: Norm, input: &Tensor) -> Tensor {
    let expanded = stage.input * stage.expansion;
    let conv = |input, output| ConvNorm::new(input, output).norm(norm).activation(silu);
    let spatial = |input, output| {
        let conv = conv(input, output);
        conv.kernel(stage.kernel).stride(stage.stride)
    };
    let project = conv(expanded, stage.output).kernel(1).without_activation();
    sequential(at, "block", input, |block| {
        let is_expanded = expanded != stage.input;
        if stage.is_fused {
            let output = if is_expanded { expanded } else { stage.output };
            block.then(|at, name, x| spatial(stage.input, output).call(at, name, x));
            if !is_expanded {
                return;
            }
        } else {
            if is_expanded {
                let expand = conv(stage.input, expanded).kernel(1);
                block.then(|at, name, x| expand.call(at, name, x));
            }
            let depthwise = spatial(expanded, expanded).groups(expanded);
            block.then(|at, name, x| depthwise.call(at, name, x));
            let channels = [expanded, (stage.input / 4).max(1)];
            let activations: [Activation; 2] = [silu, sigmoid];
            block.then(|at, name, x| squeeze_excitation(at, name, channels, activations, x));
        }
        block.then(|at, name, x| project.call(at, name, x));
    })
}
