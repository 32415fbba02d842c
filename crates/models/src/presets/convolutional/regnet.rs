//! `torchvision/models/regnet.py`

use crate::presets::layers::{new_relu, sigmoid};
use crate::presets::prelude::*;

/// torchvision's `RegNets`.
#[rustfmt::skip] // A row a line.
pub(in crate::presets) const PRESETS: &[Entry] = &[
    entry("regnet_x_400mf", "torchvision's RegNetX, 400 MF", 5_495_976, AT_224, |sizes| build(sizes, &x([1, 2, 7, 12], [32, 64, 160, 400], [16, 16, 16, 16]))),
    entry("regnet_x_800mf", "torchvision's RegNetX, 800 MF", 7_259_656, AT_224, |sizes| build(sizes, &x([1, 3, 7, 5], [64, 128, 288, 672], [16, 16, 16, 16]))),
    entry("regnet_x_1_6gf", "torchvision's RegNetX, 1.6 GF", 9_190_136, AT_224, |sizes| build(sizes, &x([2, 4, 10, 2], [72, 168, 408, 912], [24, 24, 24, 24]))),
    entry("regnet_x_3_2gf", "torchvision's RegNetX, 3.2 GF", 15_296_552, AT_224, |sizes| build(sizes, &x([2, 6, 15, 2], [96, 192, 432, 1008], [48, 48, 48, 48]))),
    entry("regnet_x_8gf", "torchvision's RegNetX, 8 GF", 39_572_648, AT_224, |sizes| build(sizes, &x([2, 5, 15, 1], [80, 240, 720, 1920], [80, 120, 120, 120]))),
    entry("regnet_x_16gf", "torchvision's RegNetX, 16 GF", 54_278_536, AT_224, |sizes| build(sizes, &x([2, 6, 13, 1], [256, 512, 896, 2048], [128, 128, 128, 128]))),
    entry("regnet_x_32gf", "torchvision's RegNetX, 32 GF", 107_811_560, AT_224, |sizes| build(sizes, &x([2, 7, 13, 1], [336, 672, 1344, 2520], [168, 168, 168, 168]))),
    entry("regnet_y_400mf", "torchvision's RegNetY, 400 MF", 4_344_144, AT_224, |sizes| build(sizes, &y([1, 3, 6, 6], [48, 104, 208, 440], 8))),
    entry("regnet_y_800mf", "torchvision's RegNetY, 800 MF", 6_432_512, AT_224, |sizes| build(sizes, &y([1, 3, 8, 2], [64, 144, 320, 784], 16))),
    entry("regnet_y_1_6gf", "torchvision's RegNetY, 1.6 GF", 11_202_430, AT_224, |sizes| build(sizes, &y([2, 6, 17, 2], [48, 120, 336, 888], 24))),
    entry("regnet_y_3_2gf", "torchvision's RegNetY, 3.2 GF", 19_436_338, AT_224, |sizes| build(sizes, &y([2, 5, 13, 1], [72, 216, 576, 1512], 24))),
    entry("regnet_y_8gf", "torchvision's RegNetY, 8 GF", 39_381_472, AT_224, |sizes| build(sizes, &y([2, 4, 10, 1], [224, 448, 896, 2016], 56))),
    entry("regnet_y_16gf", "torchvision's RegNetY, 16 GF", 83_590_140, AT_224, |sizes| build(sizes, &y([2, 4, 11, 1], [224, 448, 1232, 3024], 112))),
    entry("regnet_y_32gf", "torchvision's RegNetY, 32 GF", 145_046_770, AT_224, |sizes| build(sizes, &y([2, 5, 12, 1], [232, 696, 1392, 3712], 232))),
    entry("regnet_y_128gf", "torchvision's RegNetY, 128 GF", 644_812_894, AT_224, |sizes| build(sizes, &y([2, 7, 17, 1], [528, 1056, 2904, 7392], 264))),
];

/// What `BlockParams` computes: blocks and channels of each stage, and channels of a group.
#[derive(Debug, Clone, Copy)]
struct Shape {
    depths: [u64; 4],
    widths: [u64; 4],
    groups: [u64; 4],
    squeezes: bool,
}

/// Those without squeeze and excitation.
const fn x(depths: [u64; 4], widths: [u64; 4], groups: [u64; 4]) -> Shape {
    Shape {
        depths,
        widths,
        groups,
        squeezes: false,
    }
}

/// Those with it.
const fn y(depths: [u64; 4], widths: [u64; 4], group: u64) -> Shape {
    Shape {
        squeezes: true,
        ..x(depths, widths, [group; 4])
    }
}

fn build(sizes: &Sizes, shape: &Shape) -> Result<Graph, GraphError> {
    classifier(sizes, "torchvision.models.regnet.RegNet", |at, x| {
        let mut width = 32;
        let stem = ConvNorm::new(sizes.channels, width).stride(2);
        let class = "torchvision.models.regnet.SimpleStemIN";
        let x = stem.call_as(at, ("stem", class), x);
        let features = sequential(at, "trunk_output", &x, |trunk| {
            for index in 0..4 {
                let number = index + 1;
                let class = "torchvision.models.regnet.AnyStage";
                trunk.named(&format!("block{number}"), |at, name, x| {
                    sequential_of(at, (name, class), x, |stage| {
                        for block in 0..shape.depths[index] {
                            let bottleneck = Bottleneck {
                                channels: [width, shape.widths[index]],
                                stride: if block == 0 { 2 } else { 1 },
                                group: shape.groups[index],
                                squeezes: shape.squeezes,
                            };
                            let name = format!("block{number}-{block}");
                            stage.named(&name, |at, name, x| bottleneck.call(at, name, x));
                            width = shape.widths[index];
                        }
                    })
                });
            }
        });
        drop(x);
        pooled(at, features, 1, |x| {
            at.linear("fc", [width, sizes.classes], true, x)
        })
    })
}

/// What a block is made from.
struct Bottleneck {
    channels: [u64; 2],
    stride: u64,
    group: u64,
    squeezes: bool,
}

impl Bottleneck {
    /// `ResBottleneckBlock`.
    fn call(&self, at: &Frame, name: &str, x: &Tensor) -> Tensor {
        at.call(name, "ResBottleneckBlock", |at| {
            let [input, width] = self.channels;
            let projected = (input != width || self.stride != 1).then(|| {
                let conv = ConvNorm::new(input, width).kernel(1).stride(self.stride);
                conv.without_activation().call(at, "proj", x)
            });
            let transformed = self.transformed(at, x);
            let x = match projected {
                Some(projected) => projected.add(transformed),
                None => x.add(transformed),
            };
            relu(at, "activation", &x)
        })
    }

    /// `BottleneckTransform`.
    fn transformed(&self, at: &Frame, x: &Tensor) -> Tensor {
        let [input, width] = self.channels;
        let conv = |input, output| ConvNorm::new(input, output).kernel(1);
        let class = "torchvision.models.regnet.BottleneckTransform";
        sequential_of(at, ("f", class), x, |f| {
            f.named("a", |at, name, x| conv(input, width).call(at, name, x));
            let spatial = ConvNorm::new(width, width).stride(self.stride);
            let spatial = spatial.groups(width / self.group);
            f.named("b", |at, name, x| spatial.call(at, name, x));
            if self.squeezes {
                let activations: [Activation; 2] = [new_relu, sigmoid];
                let channels = [width, input / 4];
                f.named("se", |at, name, x| {
                    squeeze_excitation(at, name, channels, activations, x)
                });
            }
            let last = conv(width, width).without_activation();
            f.named("c", |at, name, x| last.call(at, name, x));
        })
    }
}
