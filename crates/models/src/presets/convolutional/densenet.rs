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
    classifier(sizes, "torchvision.models.densenet.DenseNet", |tracer| {
        let mut features = Sequential::new("features".into());
        let first = [sizes.channels, init_features];
        let conv0 = Conv::new(tracer, features.at("conv0"), first, &[7, 7], 1, false);
        features.push(conv0.stride(2).padding(3));
        features.push(batch_norm(tracer, features.at("norm0"), init_features));
        features.push(relu(features.at("relu0")));
        features.push(max_pool(features.at("pool0"), Pooling::new(3, 2, 1)));
        let mut width = init_features;
        for (number, layers) in (1..).zip(blocks) {
            let path = features.at(&format!("denseblock{number}"));
            features.push(new_dense_block(tracer, path, layers, width, growth_rate));
            width += layers * growth_rate;
            if number < blocks.len() {
                let path = features.at(&format!("transition{number}"));
                features.push(transition(tracer, path, width));
                width /= 2;
            }
        }
        features.push(batch_norm(tracer, features.at("norm5"), width));
        let classifier = Linear::new(tracer, "classifier", [width, sizes.classes], true);
        move |x: &Tensor| {
            let features = features.forward(x);
            let mut out = relu_in_place(&features);
            out = adaptive_average(&out, 1);
            out = flat(&out);
            out = classifier.forward(&out);
            out.and_drop(features)
        }
    })
}

/// `_Transition`.
fn transition(tracer: &Tracer, path: String, width: u64) -> Sequential {
    let mut layers = Sequential::of_class(path, "torchvision.models.densenet._Transition");
    layers.push(batch_norm(tracer, layers.at("norm"), width));
    layers.push(relu(layers.at("relu")));
    let channels = [width, width / 2];
    let conv = Conv::new(tracer, layers.at("conv"), channels, &[1, 1], 1, false);
    layers.push(conv);
    layers.push(average_pool(layers.at("pool"), Pooling::new(2, 2, 0)));
    layers
}

/// `_DenseBlock`.
fn new_dense_block(
    tracer: &Tracer,
    path: String,
    layers: u64,
    width: u64,
    growth_rate: u64,
) -> FnModule {
    let place = ModulePath::new(path, "torchvision.models.densenet._DenseBlock");
    let layer = |index: u64| {
        let path = place.path(&format!("denselayer{}", index + 1));
        new_dense_layer(tracer, path, width + index * growth_rate, growth_rate)
    };
    let layers: Vec<_> = (0..layers).map(layer).collect();
    FnModule::new(place, move |init_features| {
        let tracer = init_features.tracer();
        let mut features = vec![init_features.clone()];
        let mut last = None;
        for layer in &layers {
            let new_features = layer(&tracer, &features);
            features.push(new_features.clone());
            last = Some(new_features);
        }
        let all: Vec<&Tensor> = features.iter().collect();
        let made = tracer.cat_of(&all, 1);
        features.into_iter().rev().for_each(drop);
        made.and_drop(last)
    })
}

/// `_DenseLayer`.
fn new_dense_layer(
    tracer: &Tracer,
    path: String,
    width: u64,
    growth_rate: u64,
) -> impl Fn(&Tracer, &[Tensor]) -> Tensor + use<> {
    let place = ModulePath::new(path, "torchvision.models.densenet._DenseLayer");
    let narrow = BOTTLENECK * growth_rate;
    let conv = |name, channels, kernel| {
        Conv::new(tracer, place.path(name), channels, &[kernel; 2], 1, false)
    };
    let norm1 = batch_norm(tracer, place.path("norm1"), width);
    let relu1 = relu(place.path("relu1"));
    let conv1 = conv("conv1", [width, narrow], 1);
    let norm2 = batch_norm(tracer, place.path("norm2"), narrow);
    let relu2 = relu(place.path("relu2"));
    let conv2 = conv("conv2", [narrow, growth_rate], 3).padding(1);
    // `bn_function`
    let bottleneck = move |tracer: &Tracer, inputs: &[Tensor]| {
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let concated_features = tracer.cat_of(&inputs, 1);
        let normal = norm1.forward(&concated_features);
        let bottleneck_output = conv1.forward(relu1.on(normal));
        bottleneck_output.and_drop(concated_features)
    };
    move |tracer: &Tracer, prev_features: &[Tensor]| {
        tracer.in_module(&place, || {
            let bottleneck_output = bottleneck(tracer, prev_features);
            let normal = norm2.forward(&bottleneck_output);
            let new_features = conv2.forward(relu2.on(normal));
            new_features.and_drop(bottleneck_output)
        })
    }
}
