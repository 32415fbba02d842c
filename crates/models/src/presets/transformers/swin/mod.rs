//! `torchvision/models/swin_transformer.py`

mod attention;

use crate::presets::layers::{flatten, permute};
use crate::presets::prelude::*;
use crate::tracing::Tensors;
use attention::ShiftedWindowAttention;

/// torchvision's Swin transformers.
#[rustfmt::skip] // A row a line.
pub(in crate::presets) const PRESETS: &[Entry] = &[
    entry("swin_t", "torchvision's Swin, tiny", 28_288_354, AT_224, |sizes| build(sizes, Version::First, 96, 6, 0.2)),
    entry("swin_s", "torchvision's Swin, small", 49_606_258, AT_224, |sizes| build(sizes, Version::First, 96, 18, 0.3)),
    entry("swin_b", "torchvision's Swin, base", 87_768_224, AT_224, |sizes| build(sizes, Version::First, 128, 18, 0.5)),
    entry("swin_v2_t", "torchvision's Swin V2, tiny", 28_351_570, const { &image(256, 1000) }, |sizes| build(sizes, Version::Second, 96, 6, 0.2)),
    entry("swin_v2_s", "torchvision's Swin V2, small", 49_737_442, const { &image(256, 1000) }, |sizes| build(sizes, Version::Second, 96, 18, 0.3)),
    entry("swin_v2_b", "torchvision's Swin V2, base", 87_930_848, const { &image(256, 1000) }, |sizes| build(sizes, Version::Second, 128, 18, 0.5)),
];

/// Which of the two papers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    First,
    Second,
}

impl Version {
    /// Height and width of the windows.
    const fn window(self) -> u64 {
        match self {
            Version::First => 7,
            Version::Second => 8,
        }
    }
}

/// Channels of a head, in every stage.
const HEAD: u64 = 32;
const EPS: f64 = 1e-5;

/// One with this many channels in its first stage and blocks in its third.
fn build(
    sizes: &Sizes,
    version: Version,
    width: u64,
    third: u32,
    stochastic_depth: f64,
) -> Result<Graph, GraphError> {
    let class = "torchvision.models.swin_transformer.SwinTransformer";
    classifier(sizes, class, |tracer| {
        let mut features = Sequential::new("features".into());
        let mut stem = Sequential::new(features.next());
        let channels = [sizes.channels, width];
        stem.push(Conv::new(tracer, stem.next(), channels, &[4, 4], 1, true).stride(4));
        stem.push(permute(stem.next(), [0, 2, 3, 1]));
        stem.push(LayerNorm::new(tracer, stem.next(), width, EPS));
        features.push(stem);
        let depths = [2, 2, third, 2];
        let total: u32 = depths.iter().sum();
        let mut made = 0;
        let mut dim = width;
        for (index, depth) in depths.into_iter().enumerate() {
            let mut stage = Sequential::new(features.next());
            for layer in 0..depth {
                let p = stochastic_depth * f64::from(made) / f64::from(total - 1);
                let is_shifted = layer % 2 == 1;
                stage.push(new_block(tracer, stage.next(), version, dim, is_shifted, p));
                made += 1;
            }
            features.push(stage);
            if index + 1 < depths.len() {
                features.push(new_patch_merging(tracer, features.next(), version, dim));
                dim *= 2;
            }
        }

        let norm = LayerNorm::new(tracer, "norm".into(), dim, EPS);
        let permute = permute("permute".into(), [0, 3, 1, 2]);
        let avgpool = adaptive_pool("avgpool".into(), 1);
        let flatten = flatten("flatten".into());
        let head = Linear::new(tracer, "head", [dim, sizes.classes], true);
        move |x: &Tensor| {
            let x = chain(&[&features, &norm, &permute, &avgpool, &flatten], x);
            head.forward(&x)
        }
    })
}

/// `SwinTransformerBlock` and `SwinTransformerBlockV2`.
fn new_block(
    tracer: &Tracer,
    path: String,
    version: Version,
    dim: u64,
    is_shifted: bool,
    p: f64,
) -> FnModule {
    let class = match version {
        Version::First => "torchvision.models.swin_transformer.SwinTransformerBlock",
        Version::Second => "torchvision.models.swin_transformer.SwinTransformerBlockV2",
    };
    let place = ModulePath::new(path, class);
    let norm = |name| LayerNorm::new(tracer, place.path(name), dim, EPS);
    let mlp_class = "torchvision.ops.misc.MLP";
    let norm1 = norm("norm1");
    let attn = ShiftedWindowAttention::new(tracer, place.path("attn"), version, dim, is_shifted);
    let stochastic_depth = StochasticDepth::new(place.path("stochastic_depth"), p);
    let norm2 = norm("norm2");
    let mlp = mlp(tracer, place.path("mlp"), mlp_class, [dim, 4 * dim]);
    FnModule::new(place, move |x| match version {
        Version::First => {
            let x = x.add(stochastic_depth.on(attn.on(norm1.forward(x))));
            let changed = stochastic_depth.on(mlp.on(norm2.forward(&x)));
            (&x).add(changed)
        }
        Version::Second => {
            let x = x.add(stochastic_depth.on(norm1.on(attn.forward(x))));
            let changed = stochastic_depth.on(norm2.on(mlp.forward(&x)));
            (&x).add(changed)
        }
    })
}

/// `PatchMerging` and `PatchMergingV2`.
fn new_patch_merging(tracer: &Tracer, path: String, version: Version, dim: u64) -> FnModule {
    let (class, width) = match version {
        Version::First => ("torchvision.models.swin_transformer.PatchMerging", 4 * dim),
        Version::Second => (
            "torchvision.models.swin_transformer.PatchMergingV2",
            2 * dim,
        ),
    };
    let place = ModulePath::new(path, class);
    let reduction = Linear::new(tracer, place.path("reduction"), [4 * dim, 2 * dim], false);
    let norm = LayerNorm::new(tracer, place.path("norm"), width, EPS);
    FnModule::new(place, move |x| {
        let mut x = patch_merging_pad(x);
        match version {
            Version::First => {
                x = norm.forward(&x);
                reduction.forward(&x)
            }
            Version::Second => {
                x = reduction.forward(&x);
                norm.forward(&x)
            }
        }
    })
}

/// `_patch_merging_pad`.
fn patch_merging_pad(x: &Tensor) -> Tensor {
    let odd = |dim| (x.length(dim) % 2).cast_signed();
    let x = pad(x, odd(2), odd(1));
    let corner = |row, column| every_second(every_second(&x, 1, row), 2, column);
    let corners = [corner(0, 0), corner(1, 0), corner(0, 1), corner(1, 1)];
    let corners_ref: Vec<&Tensor> = corners.iter().collect();
    let made = x.tracer().cat_of(&corners_ref, -1);
    made.and_drop((x, corners))
}

/// `x[start::2]` along a dimension.
fn every_second(x: impl Tensors, dim: i64, start: i64) -> Tensor {
    x.apply(
        "aten.slice.Tensor",
        &[
            ("dim", Argument::Int(dim)),
            ("start", Argument::Int(start)),
            ("end", Argument::Int(i64::MAX)),
            ("step", Argument::Int(2)),
        ],
    )
}

/// `F.pad(x, (0, 0, 0, right, 0, bottom))`
fn pad(x: &Tensor, right: i64, bottom: i64) -> Tensor {
    let pad = vec![0, 0, 0, right, 0, bottom];
    x.apply("aten.pad.default", &[("pad", Argument::Ints(pad))])
}
