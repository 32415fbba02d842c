//! What configs and descriptions say besides sizes: each is followed or refused.

use std::fs;
use std::path::Path;

use batchfit::compile::compile;
use batchfit::graph::ParameterKind;
use batchfit::model::{Optimizer, OptimizerImpl, Variant, config_fields};
use serde_json::{Value, json};

use super::request;
use crate::compile::H200;

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// A request about a small model with the values of a case of `tests/golden/said.json`.
fn answer_for(case: &Value) -> Value {
    let mut config = json!({
        "architectures": [case["class"].as_str().unwrap_or("LlamaForCausalLM")], "model_type": "llama",
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "n_layer": 1, "vocab_size": 100, "pad_token_id": 0,
    });
    if let Some(labels) = case["labels"].as_u64() {
        let labels = (0..labels).map(|label| (label.to_string(), format!("LABEL_{label}").into()));
        config["id2label"] = Value::Object(labels.collect());
        config["label2id"] = config["id2label"].clone();
    }
    let said = case["said"].as_object().into_iter().flatten();
    said.for_each(|(name, value)| config[name] = value.clone());
    let mut model = json!({ "hf": config, "seq_len": 8 });
    let described = case["model"].as_object().into_iter().flatten();
    described.for_each(|(name, value)| model[name] = value.clone());
    json!({ "model": model, "training": case["training"] })
}

#[test]
fn what_is_said_is_followed_or_refused() {
    let cases: Vec<Value> = serde_json::from_str(&file("tests/golden/said.json")).unwrap();
    for case in &cases {
        let read = request(answer_for(case)).and_then(|request| request.lower().cloned());
        let read = match (read, case["refused"].as_str()) {
            (Ok(read), None) => read,
            (Err(invalid), Some(expected)) if invalid.to_string().contains(expected) => continue,
            (read, expected) => panic!("{case}: {expected:?}: {:?}", read.map(|read| read.notes)),
        };
        let graph = read.workload.graph().unwrap();
        let expected = case["note"].as_str();
        assert!(
            expected.is_none_or(|note| read.notes.iter().any(|one| one.contains(note))),
            "{case}: {:?}",
            read.notes
        );
        let weight = graph.value(graph.parameters[0].value).dtype.to_string();
        assert_eq!(case["weight"].as_str().unwrap_or(&weight), weight, "{case}");
        for (operator, times) in case["runs"].as_object().into_iter().flatten() {
            let named = graph
                .nodes
                .iter()
                .filter(|node| node.op.name().contains(operator));
            let found = if operator == "inputs" {
                graph.inputs.len()
            } else {
                named.count()
            };
            assert_eq!(Some(found as u64), times.as_u64(), "{case}: {operator}");
        }
        let are_trained = graph
            .parameters
            .iter()
            .filter(|one| one.kind == ParameterKind::Trained);
        let trained = json!(are_trained.map(|one| &one.path).collect::<Vec<_>>());
        assert!(
            case["trained"].is_null() || case["trained"] == trained,
            "{case}: {trained}"
        );
        for (path, length) in case["lengths"].as_object().into_iter().flatten() {
            let parameter = graph
                .parameters
                .iter()
                .find(|one| one.path == *path)
                .unwrap();
            let found = graph.value(parameter.value).shape[0].at(1);
            assert_eq!(Some(found), length.as_u64(), "{case}: {path}");
        }
    }
}

#[test]
fn a_config_is_read_as_transformers_reads_it() {
    let cases: Vec<Value> = serde_json::from_str(&file("tests/golden/spellings.json")).unwrap();
    for case in &cases {
        let golden = format!(
            "tests/golden/huggingface/{}.json",
            case["of"].as_str().unwrap()
        );
        let [said, read] = ["said", "read"].map(|changes| {
            let mut model: Value = serde_json::from_str(&file(&golden)).unwrap();
            model["param_dtype"] = Value::Null;
            let config = model["hf"].as_object_mut().unwrap();
            config.extend(case[changes].as_object().unwrap().clone());
            config.retain(|_, value| !value.is_null());
            let read = request(json!({ "model": model })).and_then(|request| request.graph());
            read.map_err(|invalid| invalid.to_string())
        });
        assert!(said == read, "{case}: {:?} {:?}", said.err(), read.err());
    }
}

#[test]
fn the_documentation_has_the_table_of_fields() {
    let docs = file("docs/use/models.md");
    for said in config_fields() {
        let fields = said.fields.join("`, `");
        let row = format!("| `{fields}` | {} | {} |", said.effect, said.does);
        assert!(docs.contains(&row), "docs/use/models.md has no row\n{row}");
    }
}

#[test]
fn an_id_is_said_to_mean_a_task() {
    let preset = request(json!({ "model": { "preset": "bert-base-uncased", "seq_len": 8 } }));
    let notes = &preset.unwrap().lower().unwrap().notes.clone();

    assert!(
        notes[0].starts_with(
            "google-bert/bert-base-uncased is trained as BertForMaskedLM; `--with task="
        ),
        "{notes:?}"
    );
}

#[test]
fn the_trainer_keeps_float32_moments_of_embeddings() {
    let graph = request(answer_for(&json!({}))).unwrap().graph().unwrap();
    for (optimizer, of_embedding) in [
        (Optimizer::Adamw8bit, 6400),
        (Optimizer::AdamwBnb8bit, 25_600),
    ] {
        let variant = Variant {
            optimizer,
            optimizer_impl: OptimizerImpl::ForLoop,
            ..Variant::default()
        };
        let program = compile(&graph, &variant, H200).unwrap();
        let bytes = program.bytes_at(1);
        for (path, expected) in [
            ("model.embed_tokens.weight", of_embedding),
            ("lm_head.weight", 6400),
        ] {
            let label = format!("{path} state1");
            let place = program
                .tensors
                .iter()
                .position(|tensor| *tensor.label == *label);
            assert_eq!(bytes[place.unwrap()].0, expected, "{optimizer:?} {path}");
        }
    }
}
