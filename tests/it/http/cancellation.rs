//! A cancelled fit ends, whatever it is doing. `tests/attack/cancel.py` says how soon.

use std::cell::Cell;

use batchfit::jobs::{Engine as _, EngineError, FitEngine, Isolation, Progress, Work};
use batchfit::limits::Cancel;
use batchfit::model::{Request, RequestDocument};
use serde_json::{Value, json};

/// A question of many steps.
fn question(model: &Value, checkpointing: &[&str]) -> Request {
    let question = json!({
        "model": model,
        "training": {
            "precision": ["fp32", "amp_fp16", "amp_bf16"],
            "optimizer": ["sgd", "adam", "adamw"],
            "checkpointing": checkpointing,
        },
        "device": "sim:h200",
        "memory_limit": "60GiB",
        "compare": "across_optimizers",
    });
    let document = RequestDocument::from_json(question.to_string().as_bytes()).unwrap();
    Request::parse(document).unwrap()
}

#[test]
fn a_cancelled_fit_takes_no_further_step() {
    let engine = FitEngine::new("/nowhere/batchfit".into());
    let with_blocks = &["none", "per_block"][..];
    let without = &["none"][..];
    for (model, checkpointing) in [
        (json!({"preset": "resnet152"}), with_blocks),
        (json!({"preset": "gpt2", "seq_len": 1024}), with_blocks),
        (json!({"preset": "unet"}), without),
        (json!({"preset": "vgg16_bn"}), without),
    ] {
        let request = question(&model, checkpointing);
        for steps in [1, 2, 8] {
            let cancel = Cancel::default();
            let told = Cell::new(0);
            let progress = |_: Progress| {
                told.set(told.get() + 1);
                if told.get() == steps {
                    cancel.cancel();
                }
            };

            let ended = engine.fit(
                &request,
                Isolation::Shared,
                &Work {
                    cancel: &cancel,
                    progress: &progress,
                },
            );

            assert_eq!(ended, Err(EngineError::Cancelled), "{model}");
            assert_eq!(told.get(), steps, "{model}");
        }
    }
}
