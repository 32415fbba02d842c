//! `torchvision/models/mnasnet.py`

use crate::presets::prelude::*;

/// torchvision's `MNASNets`.
#[rustfmt::skip] // A row a line.
pub(in crate::presets) const PRESETS: &[Entry] = &[
    entry("mnasnet0_5", "torchvision's MNASNet, half as wide", 2_218_512, AT_224, |sizes| build(sizes, [16, 8, 16, 24, 40, 48, 96, 160])),
    entry("mnasnet0_75", "torchvision's MNASNet, three quarters as wide", 3_170_208, AT_224, |sizes| build(sizes, [24, 16, 24, 32, 64, 72, 144, 240])),
    entry("mnasnet1_0", "torchvision's MNASNet", 4_383_312, AT_224, |sizes| build(sizes, [32, 16, 24, 40, 80, 96, 192, 320])),
    entry("mnasnet1_3", "torchvision's MNASNet, 1.3 times as wide", 6_282_256, AT_224, |sizes| build(sizes, [40, 24, 32, 56, 104, 128, 248, 416])),
];

const NORM: Norm = Norm {
    momentum: 1.0 - 0.9997,
    ..Norm::DEFAULT
};

/// Kernel, stride, expansion and blocks of each stack.
const STACKS: [(u64, u64, u64, u64); 6] = [
    (3, 2, 3, 3),
    (5, 2, 3, 3),
    (5, 2, 6, 3),
    (3, 1, 6, 2),
    (5, 2, 6, 4),
    (3, 1, 6, 1),
];

/// `depths` is what `_get_depths` makes of the width.
fn build(sizes: &Sizes, depths: [u64; 8]) -> Result<Graph, GraphError> {
    classifier(sizes, "torchvision.models.mnasnet.MNASNet", |tracer| {
        let mut layers = Sequential::new("layers".into());
        let [first, second, ..] = depths;
        conv(tracer, &mut layers, [sizes.channels, first], (3, 2, 1));
        layers.push(relu(layers.next()));
        conv(tracer, &mut layers, [first, first], (3, 1, first));
        layers.push(relu(layers.next()));
        conv(tracer, &mut layers, [first, second], (1, 1, 1));
        let widths = depths[1..].windows(2);
        for (width, (kernel, stride, expansion, blocks)) in widths.zip(STACKS) {
            let mut stack = Sequential::new(layers.next());
            let mut input = width[0];
            for block in 0..blocks {
                let stride = if block == 0 { stride } else { 1 };
                let settings = (kernel, stride, expansion);
                let residual =
                    new_inverted_residual(tracer, stack.next(), [input, width[1]], settings);
                stack.push(residual);
                input = width[1];
            }
            layers.push(stack);
        }
        conv(tracer, &mut layers, [depths[7], 1280], (1, 1, 1));
        layers.push(relu(layers.next()));
        let mut classifier = Sequential::new("classifier".into());
        classifier.push(dropout_in_place(classifier.next(), 0.2));
        let linear = Linear::new(tracer, classifier.next(), [1280, sizes.classes], true);
        classifier.push(linear);
        move |x: &Tensor| {
            let mut x = layers.forward(x);
            x = (&x).mean(&[2, 3], false);
            classifier.forward(&x)
        }
    })
}

/// A convolution of this kernel, stride and groups, and a normalization.
fn conv(
    tracer: &Tracer,
    layers: &mut Sequential,
    channels: [u64; 2],
    (kernel, stride, groups): (u64, u64, u64),
) {
    let conv = Conv::new(tracer, layers.next(), channels, &[kernel; 2], groups, false);
    layers.push(conv.stride(stride).padding(kernel / 2));
    layers.push(NORM.make(tracer, layers.next(), channels[1]));
}

/// `_InvertedResidual`.
fn new_inverted_residual(
    tracer: &Tracer,
    path: String,
    [input, output]: [u64; 2],
    (kernel, stride, expansion): (u64, u64, u64),
) -> FnModule {
    let place = ModulePath::new(path, "torchvision.models.mnasnet._InvertedResidual");
    let wide = input * expansion;
    let mut layers = Sequential::new(place.path("layers"));
    conv(tracer, &mut layers, [input, wide], (1, 1, 1));
    layers.push(relu(layers.next()));
    conv(tracer, &mut layers, [wide, wide], (kernel, stride, wide));
    layers.push(relu(layers.next()));
    conv(tracer, &mut layers, [wide, output], (1, 1, 1));
    let apply_residual = input == output && stride == 1;
    FnModule::new(place, move |input| {
        let layers = layers.forward(input);
        if apply_residual {
            layers.add(input)
        } else {
            layers
        }
    })
}
