//! A recorder without PyTorch and without a GPU, and a graph that needs one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::wait;

/// A graph of one operator that nobody knows, behind a linear layer.
pub fn graph_of_unknown() -> Value {
    let tensor = |sizes: &[Value], trained: bool| {
        let strides: Vec<Value> = sizes.iter().map(|_| json!({"as_int": 1})).collect();
        json!({
            "dtype": 7, "sizes": sizes, "requires_grad": trained, "device": {"type": "meta", "index": null},
            "strides": strides, "storage_offset": {"as_int": 0}, "layout": 7
        })
    };
    let batch = json!({"as_expr": {"expr_str": "Symbol('s0', positive=True, integer=True)", "hint": {"as_int": 4}}});
    let named = |name: &str| json!({"as_tensor": {"name": name}});
    let node = |target: &str, inputs: &[(&str, &str)], output: &str| {
        let inputs: Vec<Value> = inputs
            .iter()
            .map(|(name, value)| json!({"name": name, "arg": named(value), "kind": 1}))
            .collect();
        json!({"target": target, "inputs": inputs, "outputs": [named(output)], "metadata": {}})
    };
    json!({
        "graph_module": {
            "graph": {
                "inputs": [named("w"), named("x")],
                "outputs": [named("loss")],
                "nodes": [
                    node("torch.ops.aten.linear.default", &[("input", "x"), ("weight", "w")], "y"),
                    node("torch.ops.aten.frobnicate.default", &[("self", "y")], "z"),
                    node("torch.ops.aten.mean.default", &[("self", "z")], "loss"),
                ],
                "tensor_values": {
                    "w": tensor(&[json!({"as_int": 8}), json!({"as_int": 8})], true),
                    "x": tensor(&[batch.clone(), json!({"as_int": 8})], false),
                    "y": tensor(&[batch.clone(), json!({"as_int": 8})], false),
                    "z": tensor(&[batch, json!({"as_int": 8})], false),
                    "loss": tensor(&[], false),
                },
                "sym_int_values": {}, "sym_bool_values": {}
            },
            "signature": {"input_specs": [
                {"parameter": {"arg": {"name": "w"}, "parameter_name": "w"}},
                {"user_input": {"arg": {"as_tensor": {"name": "x"}}}}
            ]}
        },
        "range_constraints": {"s0": {"min_val": 1, "max_val": 1_048_576}}
    })
}

/// An executable that stands for a Python interpreter, and behaves as `fake.py` says of `how`.
pub fn fake(directory: &Path, how: &str) -> PathBuf {
    let root = env!("CARGO_MANIFEST_DIR");
    let log = directory.join("orders");
    let script = format!(
        "#!/bin/sh\nexport FAKE_RECORDINGS='{root}/tests/golden/recorded' FAKE_LOG='{}' FAKE_RECORDER='{how}'\n\
         exec python3 '{root}/tests/it/recorder/fake.py' \"$@\"\n",
        log.display()
    );
    let path = directory.join("fake-python");
    executable(&path, &script);
    path
}

/// Makes a file that can be executed: by another process, because children of other tests may have open what this one writes, and
/// then it cannot be.
pub fn executable(path: &Path, script: &str) {
    let write = r#"printf %s "$1" > "$0" && chmod 755 "$0""#;
    let mut writing = Command::new("sh");
    let written = writing.args(["-c", write]).arg(path).arg(script).status();
    assert!(written.unwrap().success());
}

/// The orders that the recorder was given.
pub fn orders(directory: &Path) -> Vec<Value> {
    let log = fs::read_to_string(directory.join("orders")).unwrap_or_default();
    log.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Waits until nothing runs any more that the recorder was or started.
pub fn assert_ended(directory: &Path) {
    for pid in orders(directory)
        .into_iter()
        .filter_map(|order| order["pid"].as_u64())
    {
        // A zombie is gone as far as the card is concerned.
        let runs = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        wait::until("a recorder and what it started to end", || !runs());
    }
}
