//! `torchvision/models/vgg.py` and `alexnet.py`

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
        classifier(sizes, class, |tracer| alexnet(tracer, sizes))
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
    classifier(sizes, "torchvision.models.vgg.VGG", |tracer| {
        let mut features = Sequential::new("features".into());
        let mut channels = sizes.channels;
        for width in layout.iter().copied() {
            if width == 0 {
                features.push(max_pool(features.next(), Pooling::new(2, 2, 0)));
                continue;
            }
            features.push(conv(tracer, features.next(), [channels, width], 3).padding(1));
            if normalizes {
                features.push(batch_norm(tracer, features.next(), width));
            }
            features.push(relu(features.next()));
            channels = width;
        }
        let mut classifier = Sequential::new("classifier".into());
        let widths = [512 * 7 * 7, 4096, 4096];
        for pair in widths.windows(2) {
            let linear = Linear::new(tracer, classifier.next(), [pair[0], pair[1]], true);
            classifier.push(linear);
            classifier.push(relu(classifier.next()));
            classifier.push(Dropout::new(classifier.next(), 0.5));
        }
        let last = Linear::new(tracer, classifier.next(), [4096, sizes.classes], true);
        classifier.push(last);
        pooled(features, 7, classifier)
    })
}

fn alexnet(tracer: &Tracer, sizes: &Sizes) -> impl Fn(&Tensor) -> Tensor + use<> {
    let mut features = Sequential::new("features".into());
    let first = conv(tracer, features.next(), [sizes.channels, 64], 11);
    features.push(first.stride(4).padding(2));
    features.push(relu(features.next()));
    features.push(max_pool(features.next(), Pooling::new(3, 2, 0)));
    features.push(conv(tracer, features.next(), [64, 192], 5).padding(2));
    features.push(relu(features.next()));
    features.push(max_pool(features.next(), Pooling::new(3, 2, 0)));
    for channels in [[192, 384], [384, 256], [256, 256]] {
        features.push(conv(tracer, features.next(), channels, 3).padding(1));
        features.push(relu(features.next()));
    }
    features.push(max_pool(features.next(), Pooling::new(3, 2, 0)));
    let mut classifier = Sequential::new("classifier".into());
    for widths in [[256 * 6 * 6, 4096], [4096, 4096]] {
        classifier.push(Dropout::new(classifier.next(), 0.5));
        classifier.push(Linear::new(tracer, classifier.next(), widths, true));
        classifier.push(relu(classifier.next()));
    }
    let last = Linear::new(tracer, classifier.next(), [4096, sizes.classes], true);
    classifier.push(last);
    pooled(features, 6, classifier)
}

fn conv(tracer: &Tracer, path: String, channels: [u64; 2], kernel: u64) -> Conv {
    Conv::new(tracer, path, channels, &[kernel; 2], 1, true)
}
