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
    classifier(sizes, "torchvision.models.regnet.RegNet", |tracer| {
        let stem_width = 32;
        let stem = ConvNorm::new(sizes.channels, stem_width).stride(2);
        let stem = stem
            .make(tracer, "stem".into())
            .class("torchvision.models.regnet.SimpleStemIN");
        let mut trunk_output = Sequential::new("trunk_output".into());
        let mut width = stem_width;
        for index in 0..4 {
            let number = index + 1;
            let path = trunk_output.at(&format!("block{number}"));
            let mut stage = Sequential::of_class(path, "torchvision.models.regnet.AnyStage");
            for block in 0..shape.depths[index] {
                let path = stage.at(&format!("block{number}-{block}"));
                let block = Bottleneck {
                    channels: [width, shape.widths[index]],
                    stride: if block == 0 { 2 } else { 1 },
                    group: shape.groups[index],
                    squeezes: shape.squeezes,
                };
                stage.push(new_block(tracer, path, &block));
                width = shape.widths[index];
            }
            trunk_output.push(stage);
        }
        let features: Vec<AnyModule> = vec![Box::new(stem), Box::new(trunk_output)];
        let fc = Linear::new(tracer, "fc", [width, sizes.classes], true);
        pooled(features, 1, fc)
    })
}

/// What a block is made from.
struct Bottleneck {
    channels: [u64; 2],
    stride: u64,
    group: u64,
    squeezes: bool,
}

/// `ResBottleneckBlock`.
fn new_block(tracer: &Tracer, path: String, block: &Bottleneck) -> FnModule {
    let place = ModulePath::new(path, "torchvision.models.regnet.ResBottleneckBlock");
    let [input, width] = block.channels;
    let should_proj = input != width || block.stride != 1;
    let proj = should_proj.then(|| {
        let conv = ConvNorm::new(input, width).kernel(1).stride(block.stride);
        conv.without_activation().make(tracer, place.path("proj"))
    });
    let class = "torchvision.models.regnet.BottleneckTransform";
    let mut f = Sequential::of_class(place.path("f"), class);
    let conv = |input, output| ConvNorm::new(input, output).kernel(1);
    f.push(conv(input, width).make(tracer, f.at("a")));
    let spatial = ConvNorm::new(width, width).stride(block.stride);
    f.push(spatial.groups(width / block.group).make(tracer, f.at("b")));
    if block.squeezes {
        let channels = [width, input / 4];
        let activations: [Activation; 2] = [new_relu, sigmoid];
        f.push(squeeze_excitation(
            tracer,
            f.at("se"),
            channels,
            activations,
        ));
    }
    let last = conv(width, width).without_activation();
    f.push(last.make(tracer, f.at("c")));
    let activation = relu(place.path("activation"));
    FnModule::new(place, move |x| {
        let x = match &proj {
            Some(proj) => proj.forward(x).add(f.forward(x)),
            None => x.add(f.forward(x)),
        };
        activation.forward(&x)
    })
}
