use serde_json::{Value, json};

use crate::graph::ParameterKind;
use crate::huggingface::{Run, lower, parse};

/// A small model of a class, with other values in its config.
fn model(class: &str, seq_len: u64, changes: &Value) -> Value {
    let mut config = json!({
        "architectures": [class],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 100,
        "pad_token_id": 0,
    });
    let (Value::Object(config), Value::Object(changes)) = (&mut config, changes) else {
        unreachable!("both are objects");
    };
    config.extend(changes.clone());
    json!({ "hf": config, "seq_len": seq_len })
}

/// Where a model is refused and why, or how many weights it trains.
fn built(class: &str, seq_len: u64, changes: &Value) -> Result<u64, String> {
    let value = model(class, seq_len, changes);
    let graph = parse(&value, "/model")
        .and_then(|model| lower(&model, Run::default()).map(|(graph, _)| graph));
    let graph = graph.map_err(|invalid| format!("{}: {}", invalid.pointer, invalid.problem))?;
    let trained = graph.parameters.iter();
    let trained = trained.filter(|parameter| parameter.kind == ParameterKind::Trained);
    let sizes = trained.map(|parameter| {
        let shape = &graph.value(parameter.value).shape;
        let lengths = shape.iter().filter_map(|extent| extent.as_fixed());
        lengths.product::<u64>()
    });
    Ok(sizes.sum())
}

/// A class, what its config says besides, how the error begins and what else is in it.
#[test]
fn what_is_not_built_and_what_does_not_fit_is_refused_where_it_is() {
    for line in include_str!("refused.txt").lines() {
        let (model, expected) = line.split_once(" => ").unwrap();
        let (class, changes) = model.split_once(' ').unwrap();
        let (beginning, more) = expected.split_once(" ... ").unwrap_or((expected, ""));

        let problem = built(class, 8, &serde_json::from_str(changes).unwrap()).unwrap_err();

        assert!(problem.starts_with(beginning), "{model}: {problem}");
        assert!(problem.contains(more), "{model}: {problem}");
    }
}

#[test]
fn rotations_that_change_with_length_are_built_for_short_sequences_only() {
    let changes = json!({ "rope_scaling": { "type": "dynamic", "factor": 2.0 }, "max_position_embeddings": 16 });
    assert!(built("LlamaForCausalLM", 16, &changes).is_ok());
    let problem = built("LlamaForCausalLM", 17, &changes).expect_err("it is too long");
    assert!(
        problem.starts_with("/model/seq_len: seq_len is 17, but beyond 16 tokens"),
        "{problem}"
    );
}

#[test]
fn null_is_not_the_same_as_missing_where_the_default_is_a_value() {
    // Four heads of keys and of values in place of two, in both layers.
    let grouped = built("MistralForCausalLM", 8, &json!({})).expect("it is built");
    let all = built(
        "MistralForCausalLM",
        8,
        &json!({ "num_key_value_heads": null }),
    )
    .expect("it is built");
    assert_eq!(all - grouped, 2 * 2 * 2 * 16 * 64);
}

#[test]
fn sizes_beyond_any_device_are_refused() {
    let most = 1_u64 << 31;
    for class in [
        "LlamaForCausalLM",
        "Phi3ForCausalLM",
        "Olmo2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "MixtralForCausalLM",
    ] {
        for names in [
            &[
                "hidden_size",
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
                "intermediate_size",
            ][..],
            &["vocab_size", "hidden_size"],
            &[
                "qk_rope_head_dim",
                "qk_nope_head_dim",
                "v_head_dim",
                "kv_lora_rank",
                "num_attention_heads",
                "num_key_value_heads",
            ],
        ] {
            let changes = names.iter().map(|name| ((*name).to_owned(), json!(most)));
            // Builds or refuses, and does not overflow.
            let _ = built(class, 1 << 24, &Value::Object(changes.collect()));
        }
    }
}
