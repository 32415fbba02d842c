//! Generation with kept keys and values, against recorded calls of transformers' `generate()`.

use std::path::Path;

use batchfit::compile::compile;
use batchfit::model::{Mode, Request, RequestDocument, Variant};
use serde_json::{Value, json};

use super::steps::{difference, in_any_order, unpacked};
use super::{H200, requests, requests_of};
use crate::sample::sample;

/// Names, headers and requests of `tests/record/generation.py`.
fn recordings(text: &str) -> impl Iterator<Item = (&str, Value, &str)> {
    text.split("# ").skip(1).map(|recorded| {
        let (header, requests) = recorded.split_once('\n').unwrap();
        let (name, call) = header.split_once(' ').unwrap();
        (name, serde_json::from_str(call).unwrap(), requests)
    })
}

/// The request of a call that was recorded, and its batch.
fn request(call: &Value) -> (Request, u64) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/huggingface");
    let model = golden.join(format!("{}.json", call["model"].as_str().unwrap()));
    let model: Value = serde_json::from_slice(&std::fs::read(model).unwrap()).unwrap();
    let mut soak = serde_json::Map::new();
    for (name, value) in call.as_object().unwrap() {
        if name != "model" {
            soak.insert(format!("generation_{name}"), value.clone());
        }
    }
    let document = json!({"model": model, "soak": soak, "device": "sim:h200"});
    let document = RequestDocument::from_json(document.to_string().as_bytes()).unwrap();
    let request = Request::parse(document).unwrap();
    (request, call["batch"].as_u64().unwrap())
}

#[test]
fn generation_allocates_and_frees_what_pytorch_does() {
    let mut different = Vec::new();
    let text = unpacked("generation/sequences.txt");
    let all: Vec<_> = recordings(&text).collect();
    assert!(all.len() >= 73, "{} recordings", all.len());
    for (name, call, theirs) in sample(5, all) {
        let (request, batch) = request(&call);
        let generation = request.soak.as_ref().unwrap().generation.unwrap();
        let variant = Variant {
            mode: Mode::Inference,
            ..Variant::default()
        };

        let graph = request
            .generating(&generation)
            .and_then(|generating| generating.graph());
        let graph = match graph {
            Ok(graph) => graph,
            Err(error) => {
                different.push(format!("{name}: {error:?}"));
                continue;
            }
        };
        let program = compile(&graph, &variant, H200).unwrap();

        // What a loop lets go of when it returns, it lets go of in any order.
        let theirs = in_any_order(theirs.lines().map(ToOwned::to_owned).collect());
        let all = requests(&program, batch);
        let before = requests_of(&program, batch, 2).len();
        let ours = in_any_order(all[before..].to_vec());
        different.extend(difference(name, &ours, &theirs));
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}
