//! Adapted and wrapped models on several GPUs: the names of their modules, what adapters may need, and recorded trainings.

use batchfit::jobs::{Engine as _, validate};
use batchfit::limits::Cancel;
use batchfit::probe::{Detail, ProbeReport};
use serde_json::{Value, json};

use super::{engine, fit, request};

/// A Llama of four layers, with adapters on these or without.
#[expect(
    clippy::needless_pass_by_value,
    reason = "a list that is written where it is asked for"
)]
fn llama(targets: Value) -> Value {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4096, "hidden_size": 512,
        "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
    });
    let lora = (!targets.is_null()).then(|| json!({ "r": 8, "target_modules": targets }));
    json!({ "hf": config, "seq_len": 128, "lora": lora })
}

fn answer_for(model: &Value, training: &Value) -> Value {
    json!({ "model": model, "training": training, "device": "sim:h200", "memory_limit": "4GiB" })
}

fn probed(document: Value, batch: u64) -> ProbeReport {
    let request = request(document);
    engine()
        .probe(&request, batch, Detail::Full, &Cancel::NEVER)
        .unwrap()
}

fn peak(model: &Value, parallel: &Value, batch: u64) -> u64 {
    let training = json!({ "precision": "bf16", "parallel": parallel });
    probed(answer_for(model, &training), batch).peak_allocated_bytes
}

#[test]
fn adapters_need_no_more_than_full_training_and_shards_no_more_than_one_gpu() {
    // The embeddings and the head in bf16 are the largest unit.
    let unit = 2 * 2 * 4096 * 512;
    let full = llama(Value::Null);
    let adapted = [json!("all-linear"), json!(["q_proj", "v_proj"])].map(llama);
    for (ranks, batch) in [(2, 1), (2, 16), (64, 1), (64, 16)] {
        for (strategy, reshard) in [
            ("ddp", None),
            ("zero1", None),
            ("fsdp2", Some(true)),
            ("fsdp2", Some(false)),
        ] {
            let parallel = json!({ "strategy": strategy, "world_size": ranks, "reshard_after_forward": reshard });
            let of_full = peak(&full, &parallel, batch);
            for model in adapted.iter().chain([&full]) {
                let ours = peak(model, &parallel, batch);
                // Of many ranks each holds so little that what adapters add themselves is more.
                assert!(
                    ours <= of_full || ranks > 2,
                    "{parallel} of {batch}: {ours} and {of_full}"
                );
                let alone = peak(model, &json!({ "strategy": "none" }), batch);
                // Without resharding all of the model is there at once.
                let is_bound = reshard == Some(true);
                let most = if is_bound { alone + 2 * unit } else { u64::MAX };
                assert!(ours <= most, "{parallel} of {batch}: {ours} and {most}");
            }
        }
    }
}

#[test]
fn modules_are_found_by_the_names_that_wrappers_give_them() {
    let names = [
        "model.layers.*",
        "base_model.model.model.layers.*",
        "module.base_model.model.model.layers.*",
        "_orig_mod.model.layers.*",
        "model.layers.*._checkpoint_wrapped_module",
    ];
    for model in [llama(Value::Null), llama(json!("all-linear"))] {
        let of_units = |units: Value| {
            let parallel = json!({ "strategy": "fsdp2", "world_size": 4, "units": units });
            peak(&model, &parallel, 4)
        };
        let of_checkpoints = |checkpointing: Value| {
            let training = json!({ "precision": "bf16", "checkpointing": checkpointing });
            probed(answer_for(&model, &training), 4).peak_allocated_bytes
        };
        for name in names {
            assert_eq!(of_units(json!([name])), of_units(Value::Null), "{name}");
            let blocks = of_checkpoints(json!("per_block"));
            assert_eq!(
                of_checkpoints(json!({ "modules": [name] })),
                blocks,
                "{name}"
            );
        }
    }
}

#[test]
fn a_name_that_nothing_has_is_refused_with_those_that_there_are() {
    let mut frozen = llama(Value::Null);
    frozen["frozen"] = json!(["model.layers.0", "model.h.*"]);
    let globs = json!(["model.layers.*", "model.h.*"]);
    let units = json!({ "parallel": { "strategy": "fsdp2", "world_size": 2, "units": globs } });
    let modules = json!({ "checkpointing": { "modules": globs } });
    let adapted = llama(json!("all-linear"));

    for (model, training, at, known) in [
        (
            &llama(Value::Null),
            units,
            "/training/parallel/units: no module",
            " model.layers.*",
        ),
        (
            &adapted,
            modules,
            "/training/checkpointing: no module",
            " base_model.model.model.layers.*",
        ),
        (
            &frozen,
            json!({}),
            "/model/frozen: no module or parameter",
            " model.layers.*",
        ),
    ] {
        let told = validate(&request(answer_for(model, &training)))
            .unwrap_err()
            .to_string();
        assert!(told.starts_with(&format!("at {at} matches ")), "{told}");
        assert!(told.contains("model.h.*") && told.contains(known), "{told}");
    }
}

#[test]
fn scripts_of_the_libraries_take_what_they_took_on_two_gpus() {
    let recorded = include_bytes!("../../golden/parallel/recipes.json");
    let recorded: Value = serde_json::from_slice(recorded).unwrap();
    let mut wrong = Vec::new();
    for case in recorded["cases"].as_array().unwrap() {
        for row in case["rows"].as_array().unwrap() {
            let report = probed(case["request"].clone(), row["batch"].as_u64().unwrap());
            let both = [
                ("allocated", report.peak_allocated_bytes),
                ("reserved", report.peak_reserved_bytes),
            ];
            for (which, ours) in both {
                let off = ours as f64 / row[which].as_f64().unwrap() - 1.0;
                if off.abs() > recorded["tolerance"][which].as_f64().unwrap() {
                    wrong.push(format!(
                        "{} {}: {which} {off:+.4}",
                        case["name"], row["batch"]
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn ddp_is_as_the_trainer_of_transformers_makes_it_and_as_is_said() {
    let (plain, adapted) = (llama(Value::Null), llama(json!("all-linear")));
    let other = json!({ "preset": "resnet18" });
    let nobody = || Value::Null;
    for (model, checkpointing, said, finds, is_noted) in [
        (&plain, "none", nobody(), true, true),
        (&plain, "per_block", nobody(), false, true),
        (&adapted, "per_block", nobody(), true, true),
        (&plain, "none", json!(false), false, false),
        (&other, "none", nobody(), false, false),
    ] {
        let parallel =
            json!({ "strategy": "ddp", "world_size": 2, "find_unused_parameters": said });
        let training = json!({ "checkpointing": checkpointing, "parallel": parallel });
        let found = fit(answer_for(model, &training));
        let training = serde_json::to_value(&found.variants[0].training).unwrap();
        assert_eq!(
            training["parallel"]["find_unused_parameters"], finds,
            "{training}"
        );
        let notes = found.recommendation.notes.join("\n");
        assert_eq!(notes.contains("transformers' Trainer"), is_noted, "{notes}");
    }
}
