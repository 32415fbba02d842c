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
    classifier(
        sizes,
        "torchvision.models.efficientnet.EfficientNet",
        |tracer| {
            let mut features = Sequential::new("features".into());
            let conv = |input, output| ConvNorm::new(input, output).norm(norm).activation(silu);
            let stem = conv(sizes.channels, stages[0].input).stride(2);
            features.push(stem.make(tracer, features.next()));
            let total: u32 = stages.iter().map(|stage| stage.layers).sum();
            let mut made = 0;
            for stage in stages {
                let mut layers = Sequential::new(features.next());
                for layer in 0..stage.layers {
                    let block = Stage {
                        input: if layer == 0 {
                            stage.input
                        } else {
                            stage.output
                        },
                        stride: if layer == 0 { stage.stride } else { 1 },
                        ..*stage
                    };
                    let p = STOCHASTIC_DEPTH * f64::from(made) / f64::from(total);
                    layers.push(new_mb_conv(tracer, layers.next(), &block, p, norm));
                    made += 1;
                }
                features.push(layers);
            }
            let input = stages[stages.len() - 1].output;
            let last = conv(input, last_channel).kernel(1);
            features.push(last.make(tracer, features.next()));
            let mut classifier = Sequential::new("classifier".into());
            classifier.push(dropout_in_place(classifier.next(), dropout));
            let linear = Linear::new(
                tracer,
                classifier.next(),
                [last_channel, sizes.classes],
                true,
            );
            classifier.push(linear);
            pooled(features, 1, classifier)
        },
    )
}

/// `MBConv` and `FusedMBConv`.
fn new_mb_conv(tracer: &Tracer, path: String, stage: &Stage, p: f64, norm: Norm) -> FnModule {
    let class = if stage.is_fused {
        "torchvision.models.efficientnet.FusedMBConv"
    } else {
        "torchvision.models.efficientnet.MBConv"
    };
    let place = ModulePath::new(path, class);
    let block = Sequential::new(place.path("block"));
    let use_res_connect = stage.stride == 1 && stage.input == stage.output;
    let block = if stage.is_fused {
        fused_block(tracer, block, stage, norm)
    } else {
        separate_block(tracer, block, stage, norm)
    };
    let stochastic_depth = StochasticDepth::new(place.path("stochastic_depth"), p);
    FnModule::new(place, move |input| {
        let mut result = block.forward(input);
        if use_res_connect {
            result = stochastic_depth.forward(&result);
            result.add_in_place(input);
        }
        result
    })
}
fn separate_block(tracer: &Tracer, mut block: Sequential, stage: &Stage, norm: Norm) -> Sequential {
    let expanded = stage.input * stage.expansion;
    let conv = |input, output| ConvNorm::new(input, output).norm(norm).activation(silu);
    if expanded != stage.input {
        let expand = conv(stage.input, expanded).kernel(1);
        block.push(expand.make(tracer, block.next()));
    }
    let depthwise = conv(expanded, expanded)
        .kernel(stage.kernel)
        .stride(stage.stride)
        .groups(expanded);
    block.push(depthwise.make(tracer, block.next()));
    let channels = [expanded, (stage.input / 4).max(1)];
    let activations: [Activation; 2] = [silu, sigmoid];
    let squeeze = squeeze_excitation(tracer, block.next(), channels, activations);
    block.push(squeeze);
    let project = conv(expanded, stage.output).kernel(1).without_activation();
    block.push(project.make(tracer, block.next()));
    block
}

fn fused_block(tracer: &Tracer, mut block: Sequential, stage: &Stage, norm: Norm) -> Sequential {
    let expanded = stage.input * stage.expansion;
    let conv = |input, output| ConvNorm::new(input, output).norm(norm).activation(silu);
    let spatial = |output| {
        let conv = conv(stage.input, output);
        conv.kernel(stage.kernel).stride(stage.stride)
    };
    if expanded == stage.input {
        block.push(spatial(stage.output).make(tracer, block.next()));
    } else {
        block.push(spatial(expanded).make(tracer, block.next()));
        let project = conv(expanded, stage.output).kernel(1).without_activation();
        block.push(project.make(tracer, block.next()));
    }
    block
}
