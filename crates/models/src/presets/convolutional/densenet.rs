//! `torchvision/models/densenet.py`

use crate::presets::layers::average_pool;
use crate::presets::prelude::*;

/// torchvision's `DenseNets`.
#[rustfmt::skip] // A row a line.
pub(in crate::presets) const PRESETS: &[Entry] = &[
    entry("densenet121", "torchvision's DenseNet-121", 7_978_856, AT_224, |sizes| build(sizes, 32, [6, 12, 24, 16], 64)),
    entry("densenet161", "torchvision's DenseNet-161", 28_681_000, AT_224, |sizes| build(sizes, 48, [6, 12, 36, 24], 96)),
    entry("densenet169", "torchvision's DenseNet-169", 14_149_480, AT_224, |sizes| build(sizes, 32, [6, 12, 32, 32], 64)),
    entry("densenet201", "torchvision's DenseNet-201", 20_013_928, AT_224, |sizes| build(sizes, 32, [6, 12, 48, 32], 64)),
];

/// How many times wider than its result a layer's bottleneck is.
const BOTTLENECK: u64 = 4;

fn build(
    sizes: &Sizes,
    growth_rate: u64,
    blocks: [u64; 4],
    init_features: u64,
) -> Result<Graph, GraphError> {
    classifier(sizes, "torchvision.models.densenet.DenseNet", |at, x| {
        let mut width = init_features;
        let features = sequential(at, "features", x, |features| {
            features.named("conv0", |at, name, x| {
                let conv0 = at.conv(name, [sizes.channels, width], &[7, 7], false);
                conv0.stride(2).padding(3).forward(x)
            });
            features.named("norm0", |at, name, x| batch_norm(at, name, width, x));
            features.named("relu0", relu);
            let pooling = Pooling::new(3, 2, 1);
            features.named("pool0", |at, name, x| max_pool(at, name, pooling, x));
            for (number, layers) in (1..).zip(blocks) {
                features.named(&format!("denseblock{number}"), |at, name, x| {
                    at.call(name, "_DenseBlock", |at| {
                        dense_block(at, layers, [width, growth_rate], x)
                    })
                });
                width += layers * growth_rate;
                if number < blocks.len() {
                    let name = format!("transition{number}");
                    features.named(&name, |at, name, x| transition(at, name, width, x));
                    width /= 2;
                }
            }
            features.named("norm5", |at, name, x| batch_norm(at, name, width, x));
        });
        let mut out = relu_in_place(&features);
        out = adaptive_average(&out, 1);
        out = flat(&out);
        out = at.linear("classifier", [width, sizes.classes], true, out);
        out.and_drop(features)
    })
}

/// `_Transition`.
fn transition(at: &Frame, name: &str, width: u64, x: &Tensor) -> Tensor {
    let class = "torchvision.models.densenet._Transition";
    sequential_of(at, (name, class), x, |layers| {
        layers.named("norm", |at, name, x| batch_norm(at, name, width, x));
        layers.named("relu", relu);
        layers.named("conv", |at, name, x| {
            at.conv(name, [width, width / 2], &[1, 1], false).forward(x)
        });
        let pooling = Pooling::new(2, 2, 0);
        layers.named("pool", |at, name, x| average_pool(at, name, pooling, x));
    })
}

/// `_DenseBlock`.
fn dense_block(at: &Frame, layers: u64, [width, growth_rate]: [u64; 2], x: &Tensor) -> Tensor {
    let tracer = at.tracer();
    let mut features = vec![x.clone()];
    let mut last = None;
    for index in 0..layers {
        let new_features = at.call(&format!("denselayer{}", index + 1), "_DenseLayer", |at| {
            dense_layer(at, [width + index * growth_rate, growth_rate], &features)
        });
        features.push(new_features.clone());
        last = Some(new_features);
    }
    let all: Vec<&Tensor> = features.iter().collect();
    let made = tracer.cat_of(&all, 1);
    features.into_iter().rev().for_each(drop);
    made.and_drop(last)
}

/// `_DenseLayer`.
fn dense_layer(at: &Frame, [width, growth_rate]: [u64; 2], prev_features: &[Tensor]) -> Tensor {
    let narrow = BOTTLENECK * growth_rate;
    let conv = |name, channels, kernel| at.conv(name, channels, &[kernel; 2], false);
    // `bn_function`
    let bottleneck_output = {
        let inputs: Vec<&Tensor> = prev_features.iter().collect();
        let concated_features = at.tracer().cat_of(&inputs, 1);
        let mut normal = batch_norm(at, "norm1", width, &concated_features);
        normal = relu(at, "relu1", &normal);
        let bottleneck_output = conv("conv1", [width, narrow], 1).forward(normal);
        bottleneck_output.and_drop(concated_features)
    };
    let mut normal = batch_norm(at, "norm2", narrow, &bottleneck_output);
    normal = relu(at, "relu2", &normal);
    let new_features = conv("conv2", [narrow, growth_rate], 3)
        .padding(1)
        .forward(normal);
    new_features.and_drop(bottleneck_output)
}
