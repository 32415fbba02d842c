//! Generation with a growing cache of keys and values, against a recorded loop of transformers.

use std::path::Path;

use batchfit::compile::compile;
use batchfit::model::{Generation, Mode, Request, RequestDocument, Variant};

use super::steps::{difference, in_any_order};
use super::{H200, requests};

/// `tests/record/generation.py` has the same model.
const REQUEST: &str = r#"{
    "model": {"hf": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
        "n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 512
    }, "seq_len": 8},
    "device": "sim:h200"
}"#;

#[test]
fn generation_with_a_growing_cache_allocates_and_frees_what_pytorch_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/generation/gpt2.txt");
    let recorded = std::fs::read_to_string(path).unwrap();
    let mut lines = recorded.lines();
    let header = lines.next().unwrap();
    let figures: Vec<u64> = header
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    let [batch, prompt, tokens] = figures[..] else {
        panic!("{header}")
    };
    let theirs: Vec<String> = lines.map(ToOwned::to_owned).collect();
    let document = RequestDocument::from_json(REQUEST.as_bytes()).unwrap();
    let request = Request::parse(document, &["h200"]).unwrap();
    let generation = Generation {
        batch,
        prompt,
        tokens,
        times: 1,
    };
    let variant = Variant {
        mode: Mode::Inference,
        ..Variant::default()
    };

    let graph = request.generating(&generation).unwrap().graph().unwrap();
    let program = compile(&graph, &variant, H200).unwrap();

    // What a loop lets go of when it returns, it lets go of in any order.
    let all = requests(&program, batch);
    let ours = in_any_order(all[all.len().saturating_sub(theirs.len())..].to_vec());
    let theirs = in_any_order(theirs);
    assert_eq!(difference(header, &ours, &theirs), None);
}
