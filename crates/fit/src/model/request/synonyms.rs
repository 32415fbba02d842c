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

#[test]
fn fields_of_others_are_answered_with_ours_and_their_place() {
    let table = [
        // In the wrong place.
        (
            json!({ "precision": "bf16" }),
            "at /precision: the request has no field \"precision\"; it belongs in `training`: {\"training\": \
             {\"precision\": \"bf16\"}}",
        ),
        (
            json!({ "training": { "device": "sim:h200" } }),
            "at /training/device: training has no field \"device\"; it belongs at the top of the request: \
             {\"device\": \"sim:h200\", ...}",
        ),
        (
            json!({ "model": { "preset": "resnet18", "target_batch": 64 } }),
            "at /model/target_batch: resnet18 has no field \"target_batch\"; it belongs at the top of the request: \
             {\"target_batch\": 64, ...}",
        ),
        (
            json!({ "seq_len": 512 }),
            "at /seq_len: the request has no field \"seq_len\"; it belongs in `model`: {\"model\": {\"seq_len\": \
             512, ...}}",
        ),
        (
            json!({ "preset": "resnet18" }),
            "at /preset: the request has no field \"preset\"; it belongs in `model`: {\"model\": {\"preset\": \
             \"resnet18\", ...}}",
        ),
        (
            json!({ "optimizr": "sgd" }),
            "at /optimizr: the request has no field \"optimizr\"; it belongs in `training`: {\"training\": \
             {\"optimizer\": \"sgd\"}}",
        ),
        // By another name.
        (
            json!({ "batch_size": 64 }),
            "at /batch_size: the request has no field \"batch_size\"; did you mean \"target_batch\"?",
        ),
        (
            json!({ "gpu": "sim:h200" }),
            "at /gpu: the request has no field \"gpu\"; did you mean \"device\"?",
        ),
        (
            json!({ "memory": "12GiB" }),
            "at /memory: the request has no field \"memory\"; did you mean \"memory_limit\"?",
        ),
        (
            json!({ "num_gpus": 8 }),
            "at /num_gpus: the request has no field \"num_gpus\"; did you mean \"world_size\"?",
        ),
        (
            json!({ "training": { "batch_size": 64 } }),
            "at /training/batch_size: training has no field \"batch_size\"; it belongs at the top of the request: \
             {\"target_batch\": 64, ...}",
        ),
        (
            json!({ "training": { "optim": "adamw_torch" } }),
            "at /training/optim: training has no field \"optim\"; write \"optimizer\": \"adamw\"",
        ),
        (
            json!({ "amp": "bf16" }),
            "at /amp: the request has no field \"amp\"; it belongs in `training`: {\"training\": {\"precision\": \
             \"amp_bf16\"}}",
        ),
        (
            json!({ "training": { "amp": true } }),
            "at /training/amp: training has no field \"amp\"; write \"precision\": \"amp_fp16\"",
        ),
        (
            json!({ "bf16": true }),
            "at /bf16: the request has no field \"bf16\"; it belongs in `training`: {\"training\": {\"precision\": \
             \"amp_bf16\"}}",
        ),
        (
            json!({ "fp16": false }),
            "at /fp16: the request has no field \"fp16\"; it belongs in `training`: {\"training\": {\"precision\": \
             \"fp32\"}}",
        ),
        (
            json!({ "gradient_checkpointing": true }),
            "at /gradient_checkpointing: the request has no field \"gradient_checkpointing\"; it belongs in \
             `training`: {\"training\": {\"checkpointing\": \"per_block\"}}",
        ),
        (
            json!({ "training": { "gradient_accumulation_steps": 4 } }),
            "at /training/gradient_accumulation_steps: training has no field \"gradient_accumulation_steps\"; did \
             you mean \"accumulation\"?",
        ),
        (
            json!({ "training": { "per_device_train_batch_size": 4 } }),
            "at /training/per_device_train_batch_size: training has no field \"per_device_train_batch_size\"; \
             batchfit finds the micro-batch; leave it out, and give the samples of an optimizer step as \
             `target_batch`",
        ),
        (
            json!({ "training": { "learning_rate": 1e-4 } }),
            "at /training/learning_rate: training has no field \"learning_rate\"; it changes no memory, so leave it \
             out",
        ),
    ];
    for (members, expected) in table {
        assert_eq!(refused(&members).to_string(), expected, "{members}");
    }
}

#[test]
fn fields_that_are_spelt_otherwise_are_recognized() {
    let table = [
        (
            json!({ "Target-Batch": 64 }),
            "at /Target-Batch: the request has no field \"Target-Batch\"; did you mean \"target_batch\"?",
        ),
        (
            json!({ "memoryLimit": "12GiB" }),
            "at /memoryLimit: the request has no field \"memoryLimit\"; did you mean \"memory_limit\"?",
        ),
        (
            json!({ "zzzzzzzz": 1 }),
            "at /zzzzzzzz: the request has no field \"zzzzzzzz\"; known are model, lengths, training, device, \
             memory_limit, headroom, host_memory, target_batch, world_size, allocator, search, compare, objective, unknown_ops, chosen_percent, generation, soak, \
             priority, timeout_seconds, suggest",
        ),
    ];
    for (members, expected) in table {
        assert_eq!(refused(&members).to_string(), expected, "{members}");
    }
}

#[test]
fn other_spellings_of_a_value_are_taken() {
    for (precision, optimizer, expected) in [
        ("16-mixed", "AdamW", "amp_fp16 adamw foreach"),
        ("bf16-mixed", "adamw_torch", "amp_bf16 adamw foreach"),
        ("amp_float16", "SGD", "amp_fp16 sgd foreach"),
        ("torch.bfloat16", "Adafactor", "bf16 adafactor for_loop"),
        ("BF16", "adamw_torch_fused", "bf16 adamw fused"),
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
        ("optimizer", json!("torch.optim.SGD"), Some("sgd")),
        ("optimizer", json!("nesterov"), Some("sgd_momentum")),
        (
            "optimizer",
            json!("bnb_optim_adamw8bit"),
            Some("adamw_8bit"),
        ),
        ("optimizer", json!("lion"), None),
        ("optimizer", json!("AdEMAMix_8bit"), None),
        ("optimizer", json!("torch.optim.ASGD"), None),
        ("optimizer", json!("adamw-4bit"), None),
        ("precision", json!("amp_fp8"), None),
        ("precision", json!("amp_no"), Some("fp32")),
        ("precision", json!("amp_fp32"), Some("fp32")),
        ("precision", json!("amp_half"), Some("amp_fp16")),
        ("precision", json!("fp4"), None),
        ("precision", json!("tf32"), None),
        ("optimizer_impl", json!(true), Some("fused")),
        ("optimizer_impl", json!("for-loop"), Some("for_loop")),
        ("checkpointing", json!(true), Some("per_block")),
        ("checkpointing", json!(false), Some("none")),
        ("checkpointing", json!("full"), Some("per_block")),
        ("checkpointing", json!("per-block"), Some("per_block")),
        ("mode", json!("eval"), Some("inference")),
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
