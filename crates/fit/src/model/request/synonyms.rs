//! What a request that uses the words of others, or its own in the wrong place, is told.

use serde_json::{Value, json};

use super::{Request, RequestDocument};
use batchfit_models::RequestError;
use batchfit_models::members::REQUEST;

/// What is said of a request for a ResNet with these members besides.
fn refused(members: &Value) -> RequestError {
    let mut document = json!({ "model": { "preset": "resnet18" } });
    for (key, value) in members.as_object().unwrap() {
        document[key] = value.clone();
    }
    let parsed = Request::parse(RequestDocument::from(document));
    parsed
        .map(drop)
        .expect_err("it has a word that a request does not know")
}

/// Members of a request for a ResNet, and how the error begins: wholly, unless the line ends with ` ...`.
#[test]
fn what_is_wrong_is_told_with_its_place_and_what_to_write() {
    for line in include_str!("refused.txt").lines() {
        let (members, expected) = line.split_once(" => ").unwrap();
        let told = refused(&serde_json::from_str(members).unwrap()).to_string();

        match expected.strip_suffix(" ...") {
            Some(beginning) => assert!(told.starts_with(beginning), "{members}: {told}"),
            None => assert_eq!(told, expected, "{members}"),
        }
    }
}

#[test]
fn other_spellings_of_a_value_are_taken() {
    for (precision, optimizer, expected) in [
        ("16-mixed", "AdamW", "amp_fp16 adamw foreach"),
        ("bf16-mixed", "adamw_torch", "amp_bf16 adamw foreach"),
        ("amp_float16", "SGD", "amp_fp16 sgd foreach"),
        ("amp_half", "SGD", "amp_fp16 sgd foreach"),
        ("torch.bfloat16", "Adafactor", "bf16 adafactor for_loop"),
        ("BF16", "adamw_torch_fused", "bf16 adamw fused"),
        ("no", "torch.optim.AdamW", "fp32 adamw foreach"),
        (
            "true",
            "bnb.optim.PagedAdamW8bit",
            "amp_fp16 paged_adamw_8bit",
        ),
        ("fp32", "AdamW-torch-fused", "fp32 adamw fused"),
        (
            "AMP_FP16",
            "adamw_torch_8bit",
            "amp_fp16 adamw_8bit_torchao",
        ),
    ] {
        let training = json!({ "precision": precision, "optimizer": optimizer });
        let document = json!({ "model": { "preset": "resnet18" }, "training": training });
        let request = Request::parse(RequestDocument::from(document)).unwrap();
        assert_eq!(request.variants[0].to_string(), expected);
    }
}

#[test]
fn values_of_others_are_answered_with_ours() {
    let table = [
        ("precision", json!(32), Some("fp32")),
        ("precision", json!(true), Some("amp_fp16")),
        ("precision", json!("fp8"), None),
        ("optimizer", json!("vanilla-sgd"), Some("sgd")),
        ("optimizer", json!("nesterov"), Some("sgd_momentum")),
        (
            "optimizer",
            json!("paged_adamw_bnb_8bit"),
            Some("paged_adamw_8bit"),
        ),
        ("optimizer", json!("lion"), None),
        ("optimizer", json!("AdEMAMix_8bit"), None),
        ("optimizer", json!("torch.optim.ASGD"), None),
        ("optimizer", json!("adamw-4bit"), None),
        ("precision", json!("amp_fp8"), None),
        ("precision", json!("amp_full"), Some("fp32")),
        ("precision", json!("amp_fp32"), Some("fp32")),
        ("precision", json!("fp4"), None),
        ("precision", json!("tf32"), None),
        ("optimizer_impl", json!(true), Some("fused")),
        ("optimizer_impl", json!("for-loop"), Some("for_loop")),
        ("checkpointing", json!(true), Some("per_block")),
        ("checkpointing", json!(false), Some("none")),
        ("checkpointing", json!("full"), Some("per_block")),
        ("checkpointing", json!("per-block"), Some("per_block")),
        ("mode", json!("test"), Some("inference")),
        ("optimizer", json!("torch.optim.Lion"), None),
        ("optimizer", json!("bnb.optim.AdamW"), None),
    ];
    for (field, value, nearest) in table {
        let invalid = refused(&json!({ "training": { field: value } }));

        assert_eq!(invalid.nearest.as_deref(), nearest, "{invalid}");
        assert_eq!(invalid.pointer, format!("/training/{field}"), "{invalid}");
    }
    let listed = refused(&json!({ "training": { "optimizer": "lion" } }));
    assert!(
        listed
            .problem
            .contains("adafactor, adafactor_transformers; it is not modelled; `batchfit run "),
        "{listed}"
    );
}

#[test]
fn what_a_model_is_said_to_have_is_known_by_its_meaning() {
    let config = include_str!("../../../../../tests/golden/huggingface/albert.json");
    let table = [
        ("attn_implementation", "flex_attention", None),
        (
            "attn_implementation",
            "flash_attn",
            Some("flash_attention_2"),
        ),
        ("torch_dtype", "float8_e4m3fn", None),
        ("torch_dtype", "bf16", Some("bfloat16")),
    ];
    for (field, value, nearest) in table {
        let mut model: Value = serde_json::from_str(config).unwrap();
        model["hf"][field] = json!(value);
        let invalid = refused(&json!({ "model": model }));

        assert_eq!(invalid.nearest.as_deref(), nearest, "{invalid}");
        assert_eq!(invalid.pointer, format!("/model/hf/{field}"), "{invalid}");
        let is_run = invalid
            .problem
            .contains("it is not modelled; `batchfit run ");
        assert_eq!(is_run, nearest.is_none(), "{invalid}");
    }
}

#[test]
fn all_wrong_fields_of_an_object_are_named_at_once() {
    let invalid = refused(&json!({ "precision": "bf16", "batch_size": 8, "zzzzzzzz": 1 }));

    let names: Vec<&str> = REQUEST.names().collect();
    assert_eq!(
        invalid.to_string(),
        format!(
            "3 fields of the request are wrong: the request has no field \"precision\"; it belongs in `training`: \
             {{\"training\": {{\"precision\": \"bf16\"}}}}; the request has no field \"batch_size\"; did you mean \
             \"target_batch\"?; the request has no field \"zzzzzzzz\"; known are {}",
            names.join(", ")
        )
    );
}

#[test]
fn any_number_of_wrong_fields_of_any_length_takes_a_few_lines() {
    for name in ["x", "", "precision", "解像度", "\u{202e}\u{1b}[2J", "~/"] {
        let mut members = serde_json::Map::new();
        for number in 0..5_000 {
            let key = format!("{}{number}", name.repeat(40));
            members.insert(key, Value::from("y".repeat(50)));
        }

        let invalid = refused(&Value::Object(members));

        assert!(
            invalid
                .problem
                .starts_with("5000 fields of the request are wrong: "),
            "{invalid}"
        );
        assert!(invalid.problem.ends_with("; and 4992 more"), "{invalid}");
        assert!(invalid.problem.len() < 8_000, "{}", invalid.problem.len());
    }
}
