//! `torchvision/models/convnext.py`

use crate::presets::layers::{flatten, gelu, permute};
use crate::presets::prelude::*;
use crate::tracing::LayerNorm;

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
fn build(sizes: &Sizes, width: u64, third: u32, depth: f64) -> Result<Graph, GraphError> {
    classifier(sizes, "torchvision.models.convnext.ConvNeXt", |at, x| {
        let mut dim = width;
        let mut x = sequential(at, "features", x, |features| {
            let class = "torchvision.ops.misc.Conv2dNormActivation";
            features.then(|at, name, x| {
                sequential_of(at, (name, class), x, |stem| {
                    let channels = [sizes.channels, width];
                    stem.then(|at, name, x| patches(at, name, channels, 4, x));
                    stem.then(|at, name, x| layer_norm2d(at, name, width, x));
                })
            });
            let blocks = [3, 3, third, 3];
            let total: u32 = blocks.iter().sum();
            let mut made = 0;
            for (index, layers) in blocks.into_iter().enumerate() {
                features.then(|at, name, x| {
                    sequential(at, name, x, |stage| {
                        for _ in 0..layers {
                            let p = depth * f64::from(made) / (f64::from(total) - 1.0);
                            stage.then(|at, name, x| cn_block(at, name, dim, p, x));
                            made += 1;
                        }
                    })
                });
                if index + 1 < blocks.len() {
                    features.then(|at, name, x| {
                        sequential(at, name, x, |down| {
                            down.then(|at, name, x| layer_norm2d(at, name, dim, x));
                            down.then(|at, name, x| patches(at, name, [dim, 2 * dim], 2, x));
                        })
                    });
                    dim *= 2;
                }
            }
        });
        x = adaptive_pool(at, "avgpool", 1, &x);
        sequential(at, "classifier", &x, |classifier| {
            classifier.then(|at, name, x| layer_norm2d(at, name, dim, x));
            classifier.then(flatten);
            classifier.linear([dim, sizes.classes]);
        })
    })
}

/// A convolution of squares side by side.
fn patches(at: &Frame, name: &str, channels: [u64; 2], side: u64, x: &Tensor) -> Tensor {
    let conv = at.conv(name, channels, &[side; 2], true);
    conv.stride(side).forward(x)
}

/// `LayerNorm2d`.
fn layer_norm2d(at: &Frame, name: &str, width: u64, x: &Tensor) -> Tensor {
    let norm = LayerNorm::new(at.tracer(), at.path(name), width, EPS);
    let norm = norm.class("torchvision.models.convnext.LayerNorm2d");
    norm.around(
        x,
        |x| x.permute(&[0, 2, 3, 1]),
        |x| x.permute(&[0, 3, 1, 2]),
    )
}

/// `CNBlock`.
fn cn_block(at: &Frame, name: &str, dim: u64, p: f64, input: &Tensor) -> Tensor {
    at.call(name, "CNBlock", |at| {
        let layer_scale = at.parameter("layer_scale", &[dim, 1, 1]);
        let block = sequential(at, "block", input, |block| {
            block.then(|at, name, x| {
                let conv = Conv::new(at.tracer(), at.path(name), [dim, dim], &[7, 7], dim, true);
                conv.padding(3).forward(x)
            });
            block.then(|at, name, x| permute(at, name, [0, 2, 3, 1], x));
            block.then(|at, name, x| at.layer_norm(name, dim, EPS, x));
            block.linear([dim, 4 * dim]);
            block.then(gelu);
            block.linear([4 * dim, dim]);
            block.then(|at, name, x| permute(at, name, [0, 3, 1, 2], x));
        });
        let mut result = (&layer_scale).mul(block);
        result = stochastic_depth(at, "stochastic_depth", p, &result);
        result.add_in_place(input);
        result
    })
}
