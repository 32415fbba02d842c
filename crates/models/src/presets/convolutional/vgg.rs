//! `torchvision/models/vgg.py` and `alexnet.py`

use crate::presets::layers::Sequence;
use crate::presets::prelude::*;

/// torchvision's VGGs.
#[rustfmt::skip] // A row a line.
pub(in crate::presets) const VGG: &[Entry] = &[
    entry("vgg11", "torchvision's VGG-11", 132_863_336, AT_224, |sizes| build(sizes, A, false)),
    entry("vgg11_bn", "torchvision's VGG-11 with batch normalization", 132_868_840, AT_224, |sizes| build(sizes, A, true)),
    entry("vgg13", "torchvision's VGG-13", 133_047_848, AT_224, |sizes| build(sizes, B, false)),
    entry("vgg13_bn", "torchvision's VGG-13 with batch normalization", 133_053_736, AT_224, |sizes| build(sizes, B, true)),
    entry("vgg16", "torchvision's VGG-16", 138_357_544, AT_224, |sizes| build(sizes, D, false)),
    entry("vgg16_bn", "torchvision's VGG-16 with batch normalization", 138_365_992, AT_224, |sizes| build(sizes, D, true)),
    entry("vgg19", "torchvision's VGG-19", 143_667_240, AT_224, |sizes| build(sizes, E, false)),
    entry("vgg19_bn", "torchvision's VGG-19 with batch normalization", 143_678_248, AT_224, |sizes| build(sizes, E, true)),
];

/// torchvision's `AlexNet`.
pub(in crate::presets) const ALEXNET: &[Entry] = &[entry(
    "alexnet",
    "torchvision's AlexNet",
    61_100_840,
    AT_224,
    |sizes| {
        let class = "torchvision.models.alexnet.AlexNet";
        classifier(sizes, class, |at, x| alexnet(at, sizes, x))
    },
)];

/// Channels of convolutions; 0 is a pooling.
type Layout = &'static [u64];

const A: Layout = &[64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0];
const B: Layout = &[
    64, 64, 0, 128, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0,
];
const D: Layout = &[
    64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0,
];
const E: Layout = &[
    64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0,
];

fn build(sizes: &Sizes, layout: Layout, normalizes: bool) -> Result<Graph, GraphError> {
    classifier(sizes, "torchvision.models.vgg.VGG", |at, x| {
        let made = sequential(at, "features", x, |features| {
            let mut channels = sizes.channels;
            for width in layout.iter().copied() {
                if width == 0 {
                    pool(features, 2);
                    continue;
                }
                features.then(|at, name, x| {
                    at.conv(name, [channels, width], &[3, 3], true)
                        .padding(1)
                        .forward(x)
                });
                if normalizes {
                    features.then(|at, name, x| batch_norm(at, name, width, x));
                }
                features.then(relu);
                channels = width;
            }
        });
        pooled(at, made, 7, |x| {
            sequential(at, "classifier", x, |classifier| {
                for widths in [[512 * 7 * 7, 4096], [4096, 4096]] {
                    classifier.linear(widths);
                    classifier.then(relu);
                    classifier.dropout(0.5);
                }
                classifier.linear([4096, sizes.classes]);
            })
        })
    })
}

fn pool(features: &mut Sequence<'_>, kernel: i64) {
    features.then(|at, name, x| max_pool(at, name, Pooling::new(kernel, 2, 0), x));
}

fn alexnet(at: &Frame, sizes: &Sizes, x: &Tensor) -> Tensor {
    let made = sequential(at, "features", x, |features| {
        let mut conv = |channels, kernel, stride, padding, pools| {
            features.then(|at, name, x| {
                let conv = at.conv(name, channels, &[kernel; 2], true);
                conv.stride(stride).padding(padding).forward(x)
            });
            features.then(relu);
            if pools {
                pool(features, 3);
            }
        };
        conv([sizes.channels, 64], 11, 4, 2, true);
        conv([64, 192], 5, 1, 2, true);
        conv([192, 384], 3, 1, 1, false);
        conv([384, 256], 3, 1, 1, false);
        conv([256, 256], 3, 1, 1, true);
    });
    pooled(at, made, 6, |x| {
        sequential(at, "classifier", x, |classifier| {
            for widths in [[256 * 6 * 6, 4096], [4096, 4096]] {
                classifier.dropout(0.5);
                classifier.linear(widths);
                classifier.then(relu);
            }
            classifier.linear([4096, sizes.classes]);
        })
    })
}
