//! `torchvision/models/squeezenet.py`

use crate::presets::prelude::*;

/// torchvision's `SqueezeNets`.
#[rustfmt::skip] // A row a line.
pub(in crate::presets) const PRESETS: &[Entry] = &[
    entry("squeezenet1_0", "torchvision's SqueezeNet 1.0", 1_248_424, AT_224, |sizes| build(sizes, [96, 7], &V1_0)),
    entry("squeezenet1_1", "torchvision's SqueezeNet 1.1", 1_235_496, AT_224, |sizes| build(sizes, [64, 3], &V1_1)),
];

/// A module after the first convolution.
#[derive(Debug, Clone, Copy)]
enum Part {
    Pool,
    /// Channels of the input, of what is squeezed, and of each of both results.
    Fire(u64, u64, u64),
}

const V1_0: [Part; 11] = [
    Part::Pool,
    Part::Fire(96, 16, 64),
    Part::Fire(128, 16, 64),
    Part::Fire(128, 32, 128),
    Part::Pool,
    Part::Fire(256, 32, 128),
    Part::Fire(256, 48, 192),
    Part::Fire(384, 48, 192),
    Part::Fire(384, 64, 256),
    Part::Pool,
    Part::Fire(512, 64, 256),
];

const V1_1: [Part; 11] = [
    Part::Pool,
    Part::Fire(64, 16, 64),
    Part::Fire(128, 16, 64),
    Part::Pool,
    Part::Fire(128, 32, 128),
    Part::Fire(256, 32, 128),
    Part::Pool,
    Part::Fire(256, 48, 192),
    Part::Fire(384, 48, 192),
    Part::Fire(384, 64, 256),
    Part::Fire(512, 64, 256),
];

fn build(
    sizes: &Sizes,
    [width, kernel]: [u64; 2],
    parts: &[Part; 11],
) -> Result<Graph, GraphError> {
    let class = "torchvision.models.squeezenet.SqueezeNet";
    classifier(sizes, class, |at, x| {
        let mut x = sequential(at, "features", x, |features| {
            features.then(|at, name, x| {
                let first = at.conv(name, [sizes.channels, width], &[kernel; 2], true);
                first.stride(2).forward(x)
            });
            features.then(relu);
            let pooling = Pooling::new(3, 2, 0).ceil();
            for part in parts {
                features.then(|at, name, x| match *part {
                    Part::Pool => max_pool(at, name, pooling, x),
                    Part::Fire(inputs, squeezed, expanded) => {
                        at.call(name, "Fire", |at| fire(at, [inputs, squeezed, expanded], x))
                    }
                });
            }
        });
        x = sequential(at, "classifier", &x, |classifier| {
            classifier.dropout(0.5);
            classifier.then(|at, name, x| {
                at.conv(name, [512, sizes.classes], &[1, 1], true)
                    .forward(x)
            });
            classifier.then(relu);
            classifier.then(|at, name, x| adaptive_pool(at, name, 1, x));
        });
        flat(&x)
    })
}

/// `Fire`.
fn fire(at: &Frame, [inputs, squeezed, expanded]: [u64; 3], x: &Tensor) -> Tensor {
    let expand = |name, kernel| at.conv(name, [squeezed, expanded], &[kernel; 2], true);
    let mut x = at
        .conv("squeeze", [inputs, squeezed], &[1, 1], true)
        .forward(x);
    x = relu(at, "squeeze_activation", &x);
    let first = expand("expand1x1", 1).forward(&x);
    let first = relu(at, "expand1x1_activation", &first).and_drop(first);
    let second = expand("expand3x3", 3).padding(1).forward(&x);
    let second = relu(at, "expand3x3_activation", &second).and_drop(second);
    at.tracer().cat([first, second], 1)
}
