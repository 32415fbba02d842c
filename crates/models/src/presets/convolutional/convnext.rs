//! `torchvision/models/convnext.py`

use crate::presets::layers::{flatten, gelu, permute};
use crate::presets::prelude::*;

/// torchvision's `ConvNeXts`.
#[rustfmt::skip] // A row a line.
pub(in crate::presets) const PRESETS: &[Entry] = &[
    entry("convnext_tiny", "torchvision's ConvNeXt, tiny", 28_589_128, AT_224, |sizes| build(sizes, 96, 9, 0.1)),
    entry("convnext_small", "torchvision's ConvNeXt, small", 50_223_688, AT_224, |sizes| build(sizes, 96, 27, 0.4)),
    entry("convnext_base", "torchvision's ConvNeXt, base", 88_591_464, AT_224, |sizes| build(sizes, 128, 27, 0.5)),
    entry("convnext_large", "torchvision's ConvNeXt, large", 197_767_336, AT_224, |sizes| build(sizes, 192, 27, 0.5)),
];

const EPS: f64 = 1e-6;

/// One with this many channels in its first stage and blocks in its third.
fn build(
    sizes: &Sizes,
    width: u64,
    third: u32,
    stochastic_depth: f64,
) -> Result<Graph, GraphError> {
    classifier(sizes, "torchvision.models.convnext.ConvNeXt", |tracer| {
        let mut features = Sequential::new("features".into());
        let class = "torchvision.ops.misc.Conv2dNormActivation";
        let mut stem = Sequential::of_class(features.next(), class);
        let channels = [sizes.channels, width];
        let conv = Conv::new(tracer, stem.next(), channels, &[4, 4], 1, true);
        stem.push(conv.stride(4));
        stem.push(new_layer_norm2d(tracer, stem.next(), width));
        features.push(stem);
        let blocks = [3, 3, third, 3];
        let total: u32 = blocks.iter().sum();
        let mut made = 0;
        let mut dim = width;
        for (index, layers) in blocks.into_iter().enumerate() {
            let mut stage = Sequential::new(features.next());
            for _ in 0..layers {
                let p = stochastic_depth * f64::from(made) / (f64::from(total) - 1.0);
                stage.push(new_cn_block(tracer, stage.next(), dim, p));
                made += 1;
            }
            features.push(stage);
            if index + 1 < blocks.len() {
                let mut down = Sequential::new(features.next());
                down.push(new_layer_norm2d(tracer, down.next(), dim));
                let channels = [dim, 2 * dim];
                let conv = Conv::new(tracer, down.next(), channels, &[2, 2], 1, true);
                down.push(conv.stride(2));
                features.push(down);
                dim *= 2;
            }
        }
        let mut classifier = Sequential::new("classifier".into());
        classifier.push(new_layer_norm2d(tracer, classifier.next(), dim));
        classifier.push(flatten(classifier.next()));
        let linear = Linear::new(tracer, classifier.next(), [dim, sizes.classes], true);
        classifier.push(linear);
        let avgpool = adaptive_pool("avgpool".into(), 1);
        move |x: &Tensor| {
            let mut x = features.forward(x);
            x = avgpool.forward(&x);
            classifier.forward(&x)
        }
    })
}

/// `LayerNorm2d`.
fn new_layer_norm2d(tracer: &Tracer, path: String, width: u64) -> FnModule {
    let weight = tracer.parameter(&format!("{path}.weight"), &[width]);
    let bias = tracer.parameter(&format!("{path}.bias"), &[width]);
    FnModule::new(
        ModulePath::new(path, "torchvision.models.convnext.LayerNorm2d"),
        move |x| {
            let tracer = x.tracer();
            let mut x = x.permute(&[0, 2, 3, 1]);
            x = tracer.call(
                "aten.layer_norm.default",
                &[
                    ("input", Argument::Tensor(&x)),
                    (
                        "normalized_shape",
                        Argument::Ints(vec![width.cast_signed()]),
                    ),
                    ("weight", Argument::Tensor(&weight)),
                    ("bias", Argument::Tensor(&bias)),
                    ("eps", Argument::Float(EPS)),
                ],
            );
            (&x).permute(&[0, 3, 1, 2])
        },
    )
}

/// `CNBlock`.
fn new_cn_block(tracer: &Tracer, path: String, dim: u64, p: f64) -> FnModule {
    let place = ModulePath::new(path, "torchvision.models.convnext.CNBlock");
    let layer_scale = tracer.parameter(&place.path("layer_scale"), &[dim, 1, 1]);
    let mut block = Sequential::new(place.path("block"));
    let conv = Conv::new(tracer, block.next(), [dim, dim], &[7, 7], dim, true);
    block.push(conv.padding(3));
    block.push(permute(block.next(), [0, 2, 3, 1]));
    block.push(LayerNorm::new(tracer, block.next(), dim, EPS));
    block.push(Linear::new(tracer, block.next(), [dim, 4 * dim], true));
    block.push(gelu(block.next()));
    block.push(Linear::new(tracer, block.next(), [4 * dim, dim], true));
    block.push(permute(block.next(), [0, 3, 1, 2]));
    let stochastic_depth = StochasticDepth::new(place.path("stochastic_depth"), p);
    FnModule::new(place, move |input| {
        let mut result = (&layer_scale).mul(block.forward(input));
        result = stochastic_depth.forward(&result);
        result.add_in_place(input);
        result
    })
}
