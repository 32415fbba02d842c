//! `torchvision/models/swin_transformer.py`

mod attention;

use crate::presets::layers::{flatten, permute};
use crate::presets::prelude::*;
use crate::tracing::Tensors;

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
    depth: f64,
) -> Result<Graph, GraphError> {
    let class = "torchvision.models.swin_transformer.SwinTransformer";
    classifier(sizes, class, |at, x| {
        let mut dim = width;
        let mut x = sequential(at, "features", x, |features| {
            features.then(|at, name, x| {
                sequential(at, name, x, |stem| {
                    stem.then(|at, name, x| {
                        let conv = at.conv(name, [sizes.channels, width], &[4, 4], true);
                        conv.stride(4).forward(x)
                    });
                    stem.then(|at, name, x| permute(at, name, [0, 2, 3, 1], x));
                    stem.then(|at, name, x| at.layer_norm(name, width, EPS, x));
                })
            });
            let depths = [2, 2, third, 2];
            let total: u32 = depths.iter().sum();
            let mut made = 0;
            for (index, blocks) in depths.into_iter().enumerate() {
                features.then(|at, name, x| {
                    sequential(at, name, x, |stage| {
                        for layer in 0..blocks {
                            let p = depth * f64::from(made) / f64::from(total - 1);
                            let shape = (dim, layer % 2 == 1, p);
                            stage.then(|at, name, x| block(at, name, version, shape, x));
                            made += 1;
                        }
                    })
                });
                if index + 1 < depths.len() {
                    features.then(|at, name, x| patch_merging(at, name, version, dim, x));
                    dim *= 2;
                }
            }
        });
        x = at.layer_norm("norm", dim, EPS, x);
        x = permute(at, "permute", [0, 3, 1, 2], &x);
        x = adaptive_pool(at, "avgpool", 1, &x);
        x = flatten(at, "flatten", &x);
        at.linear("head", [dim, sizes.classes], true, &x)
    })
}

/// `SwinTransformerBlock` and `SwinTransformerBlockV2`, of so many channels, with windows that may be shifted, and how probably it is skipped.
fn block(
    at: &Frame,
    name: &str,
    version: Version,
    (dim, is_shifted, p): (u64, bool, f64),
    x: &Tensor,
) -> Tensor {
    let class = match version {
        Version::First => "SwinTransformerBlock",
        Version::Second => "SwinTransformerBlockV2",
    };
    at.call(name, class, |at| {
        let depth = |x: Tensor| stochastic_depth(at, "stochastic_depth", p, x);
        let norm = |name: &str, x: Tensor| at.layer_norm(name, dim, EPS, x);
        let of = ("mlp", "torchvision.ops.misc.MLP");
        let attn = |x: &Tensor| attention::call(at, version, [dim, u64::from(is_shifted)], x);
        let mlp = |x: &Tensor| mlp(at, of, [dim, 4 * dim], x);
        match version {
            Version::First => {
                let normed = at.layer_norm("norm1", dim, EPS, x);
                let x = x.add(depth(attn(&normed).and_drop(normed)));
                let normed = at.layer_norm("norm2", dim, EPS, &x);
                let changed = depth(mlp(&normed).and_drop(normed));
                (&x).add(changed)
            }
            Version::Second => {
                at.made(&["norm1", "attn", "norm2"]);
                let x = x.add(depth(norm("norm1", attn(x))));
                let changed = depth(norm("norm2", mlp(&x)));
                (&x).add(changed)
            }
        }
    })
}

/// `PatchMerging` and `PatchMergingV2`.
fn patch_merging(at: &Frame, name: &str, version: Version, dim: u64, x: &Tensor) -> Tensor {
    let class = match version {
        Version::First => "PatchMerging",
        Version::Second => "PatchMergingV2",
    };
    at.call(name, class, |at| {
        at.made(&["reduction"]);
        let reduced = |x: Tensor| at.linear("reduction", [4 * dim, 2 * dim], false, x);
        let x = patch_merging_pad(x);
        match version {
            Version::First => reduced(at.layer_norm("norm", 4 * dim, EPS, x)),
            Version::Second => at.layer_norm("norm", 2 * dim, EPS, reduced(x)),
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
