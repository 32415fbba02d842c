//! What a peak is made of, when it is, and which limit binds.

use std::path::PathBuf;

use batchfit::jobs::{Engine as _, FitEngine, FitResult, Isolation, LimitKind, Work};
use batchfit::limits::Cancel;
use batchfit::model::{Request, RequestDocument};
use batchfit::probe::{Detail, Phase, ProbeReport};
use serde_json::{Value, json};

fn request(document: &Value) -> Request {
    let document = RequestDocument::from(document.clone());
    Request::parse(document).unwrap()
}

fn engine() -> FitEngine {
    FitEngine::new(PathBuf::from(env!("CARGO_BIN_EXE_batchfit")))
}

fn probe(document: &Value, batch: u64) -> ProbeReport {
    let request = request(document);
    engine()
        .probe(&request, batch, Detail::Full, &Cancel::NEVER)
        .unwrap()
}

fn fit(document: &Value) -> FitResult {
    let request = request(document);
    engine()
        .fit(&request, Isolation::Shared, &Work::UNWATCHED)
        .unwrap()
}

fn preset(name: &str, training: &Value) -> Value {
    json!({ "model": { "preset": name }, "training": training, "device": "sim:h200" })
}

/// Requests whose peaks are of many kinds.
fn requests() -> Vec<(Value, u64)> {
    let gpt2 = json!({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 1000, "n_positions": 128, "n_embd": 64,
        "n_layer": 3, "n_head": 4,
    });
    let gpt2 = |training: Value| json!({ "model": { "hf": gpt2, "seq_len": 128 }, "training": training, "device": "sim:h200" });
    let image = |training: Value| preset("resnet18", &training);
    vec![
        (image(json!({})), 1),
        (image(json!({})), 33),
        (image(json!({ "optimizer": "sgd" })), 8),
        (
            image(json!({ "precision": "amp_fp16", "accumulation": 7 })),
            5,
        ),
        (image(json!({ "mode": "inference" })), 16),
        (preset("vgg11", &json!({ "optimizer": "adam" })), 2),
        (preset("mobilenet_v2", &json!({ "precision": "bf16" })), 12),
        (gpt2(json!({ "precision": "amp_bf16" })), 9),
        (
            gpt2(json!({ "checkpointing": "per_block", "accumulation": 3 })),
            40,
        ),
        (
            gpt2(json!({ "optimizer_impl": "for_loop", "clip_grad_norm": 1.0 })),
            1,
        ),
        (
            gpt2(json!({ "parallel": { "strategy": "ddp", "world_size": 4 } })),
            6,
        ),
        (
            gpt2(
                json!({ "parallel": { "strategy": "fsdp2", "world_size": 4, "units": ["transformer.h.*"] } }),
            ),
            6,
        ),
        (
            gpt2(json!({ "parallel": { "strategy": "zero1", "world_size": 3 } })),
            6,
        ),
    ]
}

#[test]
fn categories_and_modules_add_up_to_the_peak_exactly() {
    for allocator in ["", "expandable_segments:True", "roundup_power2_divisions:4"] {
        for (mut document, batch) in requests() {
            document["allocator"] = json!(allocator);

            let report = probe(&document, batch);

            let peak = report.peak.as_ref().unwrap();
            let by_category: u64 = report.at_peak.iter().map(|part| part.bytes).sum();
            let by_module: u64 = peak.modules.iter().map(|module| module.bytes).sum();
            let about = format!("{} with batch {batch}, {allocator}", document["training"]);
            assert_eq!(by_category, report.peak_allocated_bytes, "{about}");
            assert_eq!(peak.allocated_bytes, by_category, "{about}");
            assert_eq!(by_module + peak.other_modules_bytes, by_category, "{about}");
            assert_eq!(
                peak.cached_bytes,
                peak.reserved_bytes - peak.allocated_bytes
            );
            assert!(peak.modules.len() <= 16);
            for point in &report.timeline {
                let sum: u64 = point.by_category.iter().sum();
                assert_eq!(sum, point.allocated_bytes, "{about}, event {}", point.event);
            }
        }
    }
}

#[test]
fn the_moment_is_in_the_part_of_a_step_that_takes_most() {
    let phase = |document: &Value, batch| probe(document, batch).peak.unwrap().phase;
    let small = |training: Value| preset("resnet18", &training);

    let inference = phase(&small(json!({ "mode": "inference" })), 32);
    let of_parameters = phase(&preset("vgg11", &json!({ "optimizer": "adamw" })), 1);
    let of_activations = phase(&small(json!({ "optimizer": "sgd" })), 64);

    assert_eq!(inference, Phase::Forward);
    assert_eq!(of_parameters, Phase::OptimizerStep);
    assert!(matches!(of_activations, Phase::Forward | Phase::Backward));
}

#[test]
fn nothing_is_computed_again_without_checkpoints() {
    for (document, batch) in requests() {
        let report = probe(&document, batch);
        let is_checkpointed = document["training"].get("checkpointing").is_some();
        let phase = report.peak.unwrap().phase;
        assert!(
            phase != Phase::Recomputation || is_checkpointed,
            "{document}"
        );
    }
}

#[test]
fn an_answer_names_the_limit_that_binds() {
    let kind = |document: &Value| fit(document).recommendation.why.unwrap().limit.kind;
    let mut asked = preset("resnet18", &json!({}));
    asked["memory_limit"] = json!("4GiB");
    let mut target = asked.clone();
    target["target_batch"] = json!(8);

    let limits = [kind(&asked), kind(&target)];

    assert!(
        matches!(limits[0], LimitKind::MemoryLimit | LimitKind::Fragmentation),
        "{limits:?}"
    );
    assert_eq!(limits[1], LimitKind::TargetBatch);
}

#[test]
fn an_answer_says_when_its_peak_is_and_what_holds_it() {
    let mut document = preset("resnet18", &json!({}));
    document["memory_limit"] = json!("4GiB");

    let recommendation = fit(&document).recommendation;

    let why = recommendation.why.unwrap();
    let peak = why.peak.unwrap();
    assert_eq!(peak.allocated_bytes, recommendation.peak_allocated_bytes);
    assert!(
        peak.moment.ends_with("step 2") || peak.moment.ends_with("step 1"),
        "{}",
        peak.moment
    );
    assert!(!why.limit.explanation.is_empty());
}

/// A perceptron, whose lengths two ranks halve.
fn offloaded(more: &Value) -> Value {
    let mut request = json!({
        "model": { "layers": [{ "type": "linear", "out_features": 2048 }, { "type": "relu" }, { "type": "linear", "out_features": 10 }],
                   "input": { "shape": [512] }, "loss": "cross_entropy" },
        "device": "sim:a100-40g",
    });
    for (key, value) in more.as_object().unwrap() {
        request[key] = value.clone();
    }
    request
}

const WEIGHTS: u64 = 512 * 2048 + 2048 * 10;
const PARAMETERS: u64 = WEIGHTS + 2048 + 10;

fn sharded(optimizer: &str) -> Value {
    json!({ "training": { "optimizer": optimizer,
        "parallel": { "strategy": "fsdp2", "world_size": 2, "cpu_offload": true } } })
}

#[test]
fn what_is_offloaded_is_kept_by_the_host() {
    // Of each rank, in float32: parameters, gradients and moments of half of the parameters.
    for (optimizer, kept) in [("adamw", 4), ("sgd_momentum", 3), ("sgd", 2)] {
        let found = fit(&offloaded(&sharded(optimizer))).recommendation;
        assert_eq!(found.host_bytes, kept * 4 * PARAMETERS / 2, "{optimizer}");
        assert!(
            found
                .notes
                .iter()
                .any(|note| note.contains("host's memory"))
        );
    }
    // Both moments of each weight that is large enough, a byte each.
    let paged = json!({ "training": { "optimizer": "paged_adamw_8bit" } });
    let found = fit(&offloaded(&paged)).recommendation;
    assert_eq!(found.host_bytes, 2 * 512 * 2048);
    assert_eq!(fit(&offloaded(&json!({}))).recommendation.host_bytes, 0);
}

#[test]
fn the_memory_of_the_host_can_be_what_binds() {
    let mut request = offloaded(&sharded("adamw"));
    let needed = 2 * 4 * 4 * PARAMETERS / 2;
    request["host_memory"] = needed.into();
    let enough = fit(&request);
    assert!(enough.recommendation.micro_batch > 0);

    request["host_memory"] = (needed - 1).into();
    let short = fit(&request);

    let best = &short.recommendation;
    assert_eq!(best.micro_batch, 0);
    assert_eq!(best.why.as_ref().unwrap().limit.kind, LimitKind::Host);
    assert!(
        best.limited_by.contains("the host's memory"),
        "{}",
        best.limited_by
    );
    assert_eq!(short.variants[0].recommendation.micro_batch, 0);
}

#[test]
fn the_memory_of_the_host_is_a_size() {
    for wrong in [json!(0), json!("0.5"), json!("much"), json!([1]), json!(-1)] {
        let document = offloaded(&json!({ "host_memory": wrong }));
        let refused = Request::parse(RequestDocument::from(document)).unwrap_err();
        assert_eq!(refused.pointer, "/host_memory");
        assert!(
            refused.problem.starts_with("host_memory must be"),
            "{refused:?}"
        );
    }
}
