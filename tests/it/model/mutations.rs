//! Whatever is written, reading it ends with an answer or a problem, never a panic.

use std::collections::HashSet;
use std::sync::LazyLock;

use batchfit::compile::compile;
use batchfit::model::exported::UnknownOps;
use batchfit::model::{RequestDocument, Variant, exported};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

use super::{golden_json, request};
use crate::compile::{H200, functions};
use crate::sample::sample;

/// Something to put in place of a part of a document.
fn replacement() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!([])),
        Just(json!({})),
        Just(json!(true)),
        Just(json!("")),
        Just(json!("Symbol('s17')")),
        Just(json!("Mul(Integer(18446744073709551615), Symbol('s17'))")),
        Just(json!("x")),
        Just(json!({ "as_int": -1 })),
        Just(json!({ "as_ints": [0, 0] })),
        Just(json!({ "as_none": true })),
        Just(json!({ "as_tensor": { "name": "x" } })),
        any::<i64>().prop_map(|number| json!(number)),
        any::<u64>().prop_map(|number| json!(number)),
        (0_i64..70).prop_map(|number| json!(number)),
        any::<f64>().prop_map(|number| json!(number)),
        "[a-z0-9:.]{0,12}".prop_map(|text| json!(text)),
    ]
}

/// Every place in a document.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                pointers(
                    value,
                    &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")),
                    all,
                );
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                pointers(value, &format!("{at}/{index}"), all);
            }
        }
        _ => {}
    }
}

fn mutate(document: &mut Value, changes: &[(Index, Value)]) {
    for (place, value) in changes {
        let mut all = Vec::new();
        pointers(document, "", &mut all);
        let pointer = place.get(&all);
        *document.pointer_mut(pointer).expect("the place was listed") = value.clone();
    }
}

fn changes() -> impl Strategy<Value = Vec<(Index, Value)>> {
    prop::collection::vec((any::<Index>(), replacement()), 1..4)
}

/// One layer of every kind, and every field of a request.
fn complete() -> Value {
    json!({
        "model": {
            "input": { "shape": [3, 32, 32], "dtype": "float32" },
            "layers": [
                { "type": "conv2d", "name": "c", "out_channels": 6, "kernel_size": 3, "stride": 1,
                  "padding": [1, 1], "dilation": 1, "groups": 3, "bias": true, "in_channels": 3 },
                { "type": "batch_norm2d", "eps": 1e-5, "momentum": 0.1, "num_features": 6 },
                { "type": "relu", "inplace": true },
                { "type": "add", "inputs": ["c", "2"] },
                { "type": "max_pool2d", "kernel_size": 2, "stride": 2, "padding": 0, "ceil_mode": true },
                { "type": "adaptive_avg_pool2d", "output_size": [2, 2] },
                { "type": "flatten", "start_dim": 1 },
                { "type": "gelu", "approximate": "tanh" },
                { "type": "layer_norm", "normalized_shape": [24], "eps": 1e-5 },
                { "type": "dropout", "p": 0.5, "inputs": ["8"] },
                { "type": "linear", "out_features": 10, "bias": false, "in_features": 24 }
            ],
            "loss": "cross_entropy"
        },
        "training": { "precision": ["fp32", "amp_fp16"], "optimizer": "adamw", "optimizer_impl": "fused",
                      "checkpointing": { "modules": ["c"] }, "accumulation": 2, "mode": "train" },
        "device": "sim:h200", "memory_limit": "12GiB", "target_batch": 64, "world_size": 2,
        "allocator": "expandable_segments:True", "search": "auto"
    })
}

/// Members of a graph whose own members are names.
const TABLES: [&str; 4] = [
    "tensor_values",
    "sym_int_values",
    "sym_float_values",
    "range_constraints",
];

/// Long words in the place of each text and each name of a member, one at a time, of every kind of place once.
fn with_long_words(document: &Value) -> Vec<(String, Value)> {
    let word = "w".repeat(1 << 16);
    let mut all = Vec::new();
    pointers(document, "", &mut all);
    let mut seen = HashSet::new();
    let mut changed = Vec::new();
    for pointer in all {
        let mut kind: Vec<&str> = Vec::new();
        for part in pointer.split('/') {
            let is_name = kind.last().is_some_and(|table| TABLES.contains(table));
            let is_index = part.bytes().all(|c| c.is_ascii_digit());
            kind.push(if is_name || is_index { "*" } else { part });
        }
        let value = document.pointer(&pointer).unwrap();
        let is_text = value.is_string();
        if !seen.insert((kind.join("/"), is_text)) {
            continue;
        }
        let mut with_text = document.clone();
        *with_text.pointer_mut(&pointer).unwrap() = json!(word);
        changed.push((pointer.clone(), with_text));
        if let Value::Object(members) = value {
            for member in members.keys().take(10) {
                let mut with_name = document.clone();
                let members = with_name.pointer_mut(&pointer).unwrap();
                let value = members.as_object_mut().unwrap().remove(member).unwrap();
                members[&word] = value;
                changed.push((format!("{pointer}, name of {member}"), with_name));
            }
        }
    }
    assert!(changed.len() > 20, "{}", changed.len());
    changed
}

/// How much an error may say.
const LONGEST_ERROR: usize = 4 << 10;

fn assert_short(place: &str, text: &str) {
    let start: String = text.chars().take(200).collect();
    assert!(
        text.len() < LONGEST_ERROR,
        "{place}: {} bytes: {start}",
        text.len()
    );
}

#[test]
fn errors_of_requests_repeat_no_long_words() {
    let mut documents = vec![complete()];
    for (member, value) in [
        ("model", json!({"preset": "resnet18", "num_classes": 10})),
        ("allocator", json!("roundup_power2_divisions:[256:1,>:2]")),
        (
            "training",
            json!({"checkpointing": "per_block", "precision": "fp32"}),
        ),
    ] {
        let mut other = complete();
        other[member] = value;
        documents.push(other);
    }
    for (place, document) in documents.iter().flat_map(with_long_words) {
        let read = request(document).and_then(|request| request.lower().map(drop));
        if let Err(invalid) = read {
            assert_short(&place, &invalid.to_string());
            assert_short(&place, &format!("{invalid:?}"));
        }
    }
}

#[test]
fn errors_and_notes_of_graphs_repeat_no_long_words() {
    for name in ["cifarnet", "gpt2-tiny-table", "family-lookup"] {
        for (place, graph) in sample(11, with_long_words(&golden_json(name))) {
            for unknown_ops in [UnknownOps::Refuse, UnknownOps::AssumeElementwise] {
                match exported::parse_with(graph.to_string().as_bytes(), unknown_ops) {
                    Err(error) => assert_short(&format!("{name}{place}"), &error.to_string()),
                    Ok(read) => {
                        for note in read.notes.iter().chain(&read.assumptions) {
                            assert_short(&format!("{name}{place}"), note);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn the_complete_request_is_valid() {
    let request = request(complete()).unwrap();

    assert_eq!(request.variants.len(), 2);
    let lowered = request.lower().unwrap();
    assert_eq!(request.fingerprint(lowered, None).len(), 64);
    assert_eq!(serde_json::to_value(&request.document).unwrap(), complete());
}

proptest! {
    #[test]
    fn no_request_panics(changes in changes()) {
        let mut document = complete();
        mutate(&mut document, &changes);
        if let Ok(request) = request(document) {
            let _ = request.lower().map(|lowered| request.fingerprint(lowered, None));
        }
    }

    #[test]
    fn no_text_panics(text in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = RequestDocument::from_json(&text);
        let _ = exported::parse(&text);
    }

    #[test]
    fn no_exported_graph_panics(changes in changes()) {
        let mut graph = golden_json("cifarnet");
        mutate(&mut graph, &changes);
        let by_value = exported::parse_value(&graph);
        let by_text = exported::parse(graph.to_string().as_bytes());
        prop_assert_eq!(by_value.is_ok(), by_text.is_ok());
    }
}

/// Models from Hugging Face configs, as requests have them.
fn hugging_face_models() -> Vec<Value> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/huggingface");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .collect();
    files.sort();
    let models = files.iter().map(|path| std::fs::read(path).unwrap());
    models
        .map(|text| serde_json::from_slice(&text).unwrap())
        .collect()
}

proptest! {
    #[test]
    fn no_hugging_face_model_panics(which in any::<Index>(), changes in changes()) {
        let models = hugging_face_models();
        let mut document = json!({ "model": which.get(&models) });
        mutate(&mut document, &changes);
        if let Ok(request) = request(document) {
            match request.lower() {
                Ok(lowered) => drop(compile(lowered.workload.graph().unwrap(), &request.variants[0], H200)),
                Err(invalid) => assert_short("model", &invalid.to_string()),
            }
        }
    }
}

#[test]
fn errors_of_hugging_face_models_repeat_no_long_words() {
    for model in hugging_face_models().iter().take(3) {
        for (place, document) in with_long_words(&json!({ "model": model })) {
            let read = request(document).and_then(|request| request.lower().map(drop));
            if let Err(invalid) = read {
                assert_short(&place, &format!("{invalid:?}"));
            }
        }
    }
}

proptest! {
    #[test]
    fn no_exported_decoder_panics(changes in changes()) {
        let mut graph = golden_json("gpt2");
        mutate(&mut graph, &changes);
        let _ = exported::parse_value(&graph);
    }
}

/// Custom functions bring types of their own. Without the largest, whose graph takes long to compile.
static FUNCTIONS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let graphs = functions::graphs().into_iter();
    let small = graphs.filter(|(name, _)| name != "bloom");
    small.map(|(_, graph)| graph).collect()
});

proptest! {
    #[test]
    fn no_custom_function_panics(which in any::<Index>(), changes in changes()) {
        let mut graph = which.get(&FUNCTIONS).clone();
        mutate(&mut graph["batchfit"]["functions"], &changes);
        if let Ok(read) = exported::parse_value(&graph) {
            drop(compile(&read.graph, &Variant::default(), H200));
        }
    }
}
