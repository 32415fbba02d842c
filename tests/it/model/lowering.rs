//! Layers and presets lower to what PyTorch exports for the same model.

use batchfit::graph::Graph;
use batchfit::model::{Preset, exported, presets};
use serde_json::{Value, json};

use super::{golden, request};
use crate::sample::sample;

fn lower(model: &Value) -> Graph {
    let request = request(json!({ "model": model })).unwrap();
    let graph = request.graph().unwrap_or_else(|error| panic!("{error}"));
    Graph::clone(&graph)
}

/// The graph without what a description cannot know: names of values, and the root's class.
fn anonymous(mut graph: Graph) -> Graph {
    // The exported graphs were recorded before lifetimes were.
    graph.releases = None;
    for value in &mut graph.values {
        value.name.clear();
    }
    graph.modules[0].class.clear();
    graph
}

/// Compares piece by piece, so that a difference is shown where it is.
#[track_caller]
fn assert_same(ours: Graph, name: &str) {
    let theirs = exported::parse(&golden(name)).unwrap().graph;
    let (ours, theirs) = (anonymous(ours), anonymous(theirs));
    assert_eq!(ours.parameters, theirs.parameters);
    assert_eq!(ours.modules, theirs.modules);
    for (index, pair) in ours.nodes.iter().zip(&theirs.nodes).enumerate() {
        assert_eq!(pair.0, pair.1, "node {index}");
    }
    assert_eq!(ours, theirs);
}

#[test]
fn layers_of_cifarnet_are_the_exported_model() {
    let model = json!({
        "input": { "shape": [3, 32, 32] },
        "layers": [
            { "type": "conv2d", "name": "conv1", "out_channels": 64, "kernel_size": 3, "stride": 1, "padding": 1 },
            { "type": "relu", "name": "relu" },
            { "type": "max_pool2d", "name": "pool", "kernel_size": 2, "stride": 2 },
            { "type": "flatten" },
            { "type": "linear", "name": "fc", "out_features": 10 }
        ],
        "loss": "cross_entropy"
    });

    assert_same(lower(&model), "cifarnet");
}

#[test]
fn layers_of_the_mlp_are_the_exported_model() {
    let mut layers = Vec::new();
    for index in 0..8 {
        layers.push(json!({
            "type": "linear", "name": format!("layers.{index}"), "out_features": 4096
        }));
        layers.push(json!({ "type": "gelu" }));
    }
    layers.push(json!({ "type": "linear", "name": "head", "out_features": 1000 }));
    let model = json!({ "input": { "shape": [4096] }, "layers": layers, "loss": "cross_entropy" });

    assert_same(lower(&model), "mlp");
}

#[test]
fn resnets_are_the_exported_models() {
    for name in ["resnet18", "resnet50", "resnet152"] {
        assert_same(lower(&json!({ "preset": name })), name);
    }
}

/// A length for models whose configs name none.
const LENGTH: u64 = 64;

/// A preset with what its request has to say.
fn described(preset: &Preset) -> Value {
    let mut model = json!({ "preset": preset.name });
    for change in preset
        .overrides
        .iter()
        .filter(|change| change.default.is_none())
    {
        model[change.name] = json!(LENGTH);
    }
    model
}

#[test]
fn presets_have_the_parameters_they_are_listed_with() {
    for preset in sample(11, presets()) {
        let graph = lower(&described(preset));

        assert_eq!(
            graph.parameter_count(),
            preset.parameters,
            "{}",
            preset.name
        );
    }
}

#[test]
fn classes_are_told_by_either_name_and_once() {
    let named = lower(&json!({ "preset": "unet", "num_classes": 5 }));

    assert_eq!(lower(&json!({ "preset": "unet", "classes": 5 })), named);
    let both = json!({ "model": { "preset": "unet", "classes": 5, "num_classes": 5 } });
    assert_eq!(request(both).unwrap_err().pointer, "/model/classes");
}

#[test]
fn presets_take_every_override_they_list() {
    for preset in sample(20, presets()) {
        let unchanged = lower(&described(preset));
        for change in preset.overrides {
            let mut model = described(preset);
            model[change.name] = json!(change.default.unwrap_or(LENGTH));
            assert_eq!(lower(&model), unchanged, "{} {}", preset.name, change.name);
            // Twice as many tokens as a model has positions would be too many.
            let other = if change.name.ends_with("_len") {
                change.default.unwrap_or(LENGTH) / 2
            } else {
                2 * change.default.unwrap()
            };
            model[change.name] = json!(other);
            assert_ne!(lower(&model), unchanged, "{} {}", preset.name, change.name);
        }
    }
}

#[test]
fn presets_take_any_size_or_say_what_does_not_fit() {
    for preset in sample(24, presets()) {
        for change in preset.overrides {
            for size in [1, 7, 100, 1_u64 << 31] {
                let mut model = described(preset);
                model[change.name] = json!(size);
                let graph = request(json!({ "model": model })).and_then(|request| request.graph());
                if let Err(invalid) = graph {
                    assert!(
                        invalid.pointer.starts_with("/model"),
                        "{model}: {}",
                        invalid.pointer
                    );
                }
            }
        }
    }
}

#[test]
fn a_residual_network_of_layers_links_by_name() {
    let graph = lower(&json!({
        "input": { "shape": [16, 8, 8] },
        "layers": [
            { "type": "conv2d", "out_channels": 16, "kernel_size": [3, 3], "padding": 1, "bias": false },
            { "type": "batch_norm2d" },
            { "type": "relu", "inplace": true },
            { "type": "add", "name": "sum", "inputs": ["2", "input"] },
            { "type": "adaptive_avg_pool2d", "output_size": 1 },
            { "type": "flatten" },
            { "type": "dropout", "p": 0.1 },
            { "type": "linear", "out_features": 10.0 }
        ]
    }));

    let ops: Vec<&str> = graph.nodes.iter().map(|node| node.op.name()).collect();
    assert_eq!(
        ops,
        [
            "conv2d",
            "add_",
            "batch_norm",
            "relu_",
            "add",
            "adaptive_avg_pool2d",
            "reshape",
            "dropout",
            "linear",
            "cross_entropy"
        ]
    );
    assert_eq!(graph.parameters[0].path, "0.weight");
}

#[test]
fn a_language_model_of_layers_predicts_every_position() {
    let graph = lower(&json!({
        "input": { "shape": [128], "dtype": "int64" },
        "layers": [
            { "type": "embedding", "num_embeddings": 1000, "embedding_dim": 64 },
            { "type": "layer_norm" },
            { "type": "linear", "out_features": 1000 }
        ]
    }));

    let inputs: Vec<String> = graph
        .inputs
        .iter()
        .map(|input| format!("{:?} {:?}", graph.value(input.value).shape, input.content))
        .collect();
    assert_eq!(inputs, ["[b, 128] Below(1000)", "[b, 128] Below(1000)"]);
}
