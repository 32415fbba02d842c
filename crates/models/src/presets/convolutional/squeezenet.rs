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
    classifier(
        sizes,
        "torchvision.models.squeezenet.SqueezeNet",
        |tracer| {
            let mut features = Sequential::new("features".into());
            let first = conv(tracer, features.next(), [sizes.channels, width], kernel);
            features.push(first.stride(2));
            features.push(relu(features.next()));
            for part in parts {
                match *part {
                    Part::Pool => {
                        features.push(max_pool(features.next(), Pooling::new(3, 2, 0).ceil()));
                    }
                    Part::Fire(inputs, squeezed, expanded) => {
                        let sizes = [inputs, squeezed, expanded];
                        features.push(new_fire(tracer, features.next(), sizes));
                    }
                }
            }
            let mut classifier = Sequential::new("classifier".into());
            let last = conv(tracer, classifier.at("1"), [512, sizes.classes], 1);
            classifier.push(Dropout::new(classifier.next(), 0.5));
            classifier.push(last);
            classifier.push(relu(classifier.next()));
            classifier.push(adaptive_pool(classifier.next(), 1));
            move |x: &Tensor| {
                let mut x = features.forward(x);
                x = classifier.forward(&x);
                flat(&x)
            }
        },
    )
}

/// `Fire`.
fn new_fire(tracer: &Tracer, path: String, [inputs, squeezed, expanded]: [u64; 3]) -> FnModule {
    let place = ModulePath::new(path, "torchvision.models.squeezenet.Fire");
    let expand = |name, kernel| conv(tracer, place.path(name), [squeezed, expanded], kernel);
    let squeeze = conv(tracer, place.path("squeeze"), [inputs, squeezed], 1);
    let squeeze_activation = relu(place.path("squeeze_activation"));
    let expand1x1 = expand("expand1x1", 1);
    let expand1x1_activation = relu(place.path("expand1x1_activation"));
    let expand3x3 = expand("expand3x3", 3).padding(1);
    let expand3x3_activation = relu(place.path("expand3x3_activation"));
    FnModule::new(place, move |x| {
        let tracer = x.tracer();
        let x = squeeze_activation.on(squeeze.forward(x));
        let expanded = [
            expand1x1_activation.on(expand1x1.forward(&x)),
            expand3x3_activation.on(expand3x3.forward(&x)),
        ];
        tracer.cat(expanded, 1)
    })
}

fn conv(tracer: &Tracer, path: String, channels: [u64; 2], kernel: u64) -> Conv {
    Conv::new(tracer, path, channels, &[kernel; 2], 1, true)
}
