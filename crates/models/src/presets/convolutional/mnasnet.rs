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
    classifier(sizes, "torchvision.models.mnasnet.MNASNet", |at, x| {
        let mut x = sequential(at, "layers", x, |layers| {
            let [first, second, ..] = depths;
            layers.conv_norm([sizes.channels, first], (3, 2, 1), NORM);
            layers.then(relu);
            layers.conv_norm([first, first], (3, 1, first), NORM);
            layers.then(relu);
            layers.conv_norm([first, second], (1, 1, 1), NORM);
            let widths = depths[1..].windows(2);
            for (width, (kernel, stride, expansion, blocks)) in widths.zip(STACKS) {
                layers.then(|at, name, x| {
                    sequential(at, name, x, |stack| {
                        let mut input = width[0];
                        for block in 0..blocks {
                            let stride = if block == 0 { stride } else { 1 };
                            let settings = (kernel, stride, expansion);
                            stack.then(|at, name, x| {
                                inverted_residual(at, name, [input, width[1]], settings, x)
                            });
                            input = width[1];
                        }
                    })
                });
            }
            layers.conv_norm([depths[7], 1280], (1, 1, 1), NORM);
            layers.then(relu);
        });
        x = (&x).mean(&[2, 3], false);
        sequential(at, "classifier", &x, |classifier| {
            classifier.then(|at, name, x| dropout_in_place(at, name, 0.2, x));
            classifier.linear([1280, sizes.classes]);
        })
    })
}

/// `_InvertedResidual`.
fn inverted_residual(
    at: &Frame,
    name: &str,
    [input, output]: [u64; 2],
    (kernel, stride, expansion): (u64, u64, u64),
    x: &Tensor,
) -> Tensor {
    at.call(name, "_InvertedResidual", |at| {
        let wide = input * expansion;
        let made = sequential(at, "layers", x, |layers| {
            layers.conv_norm([input, wide], (1, 1, 1), NORM);
            layers.then(relu);
            layers.conv_norm([wide, wide], (kernel, stride, wide), NORM);
            layers.then(relu);
            layers.conv_norm([wide, output], (1, 1, 1), NORM);
        });
        if input == output && stride == 1 {
            made.add(x)
        } else {
            made
        }
    })
}
