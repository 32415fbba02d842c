//! Changes of a request that are suggested, and fits of the changed requests.

use std::path::PathBuf;

use batchfit::jobs::{
    Engine as _, EngineError, FitEngine, FitResult, Isolation, Progress, Suggestion,
    SuggestionKind, Work,
};
use batchfit::limits::Cancel;
use batchfit::model::{Request, RequestDocument};
use serde_json::{Value, json};

use crate::sample::sample;

fn engine() -> FitEngine {
    FitEngine::new(PathBuf::from("no worker is needed"))
}

fn fit(request: &Value) -> Result<FitResult, EngineError> {
    fit_by(&engine().with_threads(3), request)
}

fn fit_by(engine: &FitEngine, request: &Value) -> Result<FitResult, EngineError> {
    let document = RequestDocument::from_json(request.to_string().as_bytes()).unwrap();
    let request = Request::parse(document).unwrap();
    engine.fit(&request, Isolation::Shared, &Work::UNWATCHED)
}

/// Applies a JSON merge patch (RFC 7396).
fn patched(to: &mut Value, patch: &Value) {
    let Some(changes) = patch.as_object() else {
        *to = patch.clone();
        return;
    };
    if !to.is_object() {
        *to = json!({});
    }
    for (key, change) in changes {
        if change.is_null() {
            to.as_object_mut().unwrap().remove(key);
        } else {
            patched(&mut to[key], change);
        }
    }
}

/// Fits what each suggestion says to ask, and compares.
fn compare(request: &Value, answer: &FitResult) {
    assert!(!answer.suggestions.is_empty());
    for suggestion in sample(3, &answer.suggestions) {
        let mut changed = request.clone();
        changed.as_object_mut().unwrap().remove("suggest");
        patched(&mut changed, &suggestion.patch);
        let found = fit(&changed).unwrap();
        let best = &found.recommendation;
        let Suggestion {
            micro_batch,
            accumulation_steps,
            global_batch,
            max_batch_without_retries,
            peak_reserved_bytes,
            change,
            ..
        } = suggestion;
        assert_eq!(
            [
                *micro_batch,
                *accumulation_steps,
                *global_batch,
                *max_batch_without_retries,
                // Where nothing fits, nothing is reserved.
                if *micro_batch > 0 {
                    *peak_reserved_bytes
                } else {
                    0
                },
            ],
            [
                best.micro_batch,
                best.accumulation_steps,
                best.global_batch,
                best.max_batch_without_retries,
                if best.micro_batch > 0 {
                    best.peak_reserved_bytes
                } else {
                    0
                },
            ],
            "{change}"
        );
        let before = &answer.recommendation;
        // What fits, where a plan has less to make its target exactly.
        let target = request["target_batch"].as_u64().unwrap_or(0);
        let at_once = |micro: u64, smooth: u64, ranks: u64| {
            let all = micro.max(smooth.min(target.div_ceil(ranks))) * ranks;
            i64::try_from(all).unwrap()
        };
        let ranks = before.parallel.as_ref().map_or(1, |all| all.world_size);
        let gained = at_once(
            *micro_batch,
            *max_batch_without_retries,
            suggestion.world_size,
        ) - at_once(before.micro_batch, before.max_batch_without_retries, ranks);
        assert_eq!(suggestion.gained, gained, "{change}");
        let speed = |seconds: Option<f64>| seconds.map(f64::to_bits);
        assert_eq!(
            speed(suggestion.samples_per_second),
            speed(best.samples_per_second),
            "{change}"
        );
    }
}

/// Layers of [`text_model`].
const LAYERS: usize = 4;

fn text_model() -> Value {
    json!({
        "hf": { "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 192, "n_layer": LAYERS, "n_head": 3,
                "n_positions": 64, "vocab_size": 8192 },
        "seq_len": 64
    })
}

/// Two layers, for what is soaked or probed at each length.
fn model_of_any_length() -> Value {
    let mut model = text_model();
    model["hf"]["n_layer"] = json!(2);
    model.as_object_mut().unwrap().remove("seq_len");
    model
}

#[test]
fn suggestions_are_fits_of_the_changed_requests() {
    let request = json!({
        "model": text_model(), "device": "sim:a100-40g", "memory_limit": "512MiB", "suggest": true
    });
    let answer = fit(&request).unwrap();

    compare(&request, &answer);

    let kinds = |kind| answer.suggestions.iter().any(|one| one.kind == kind);
    for kind in [
        SuggestionKind::Allocator,
        SuggestionKind::Optimizer,
        SuggestionKind::Precision,
        SuggestionKind::Checkpointing,
        SuggestionKind::Loss,
        SuggestionKind::Tokens,
        SuggestionKind::Gpus,
    ] {
        assert!(kinds(kind), "{kind:?}");
    }
    // What reaches the goal comes first, and the rest by what it gains.
    let reaching = answer.suggestions.partition_point(|one| one.reaches);
    assert!(
        answer.suggestions[reaching..]
            .iter()
            .all(|one| !one.reaches)
    );
    assert!(answer.suggestions[reaching..].is_sorted_by_key(|one| -one.gained));
}

#[test]
fn where_nothing_fits_changes_are_combined_until_something_does_and_none_of_them_is_needless() {
    let mut model = text_model();
    model["hf"]["n_embd"] = json!(768);
    let request = json!({
        "model": model, "device": "sim:a100-40g", "memory_limit": "150MiB", "suggest": true
    });
    let answer = fit(&request).unwrap();
    assert_eq!(answer.recommendation.micro_batch, 0);
    compare(&request, &answer);
    let on_one_thread = fit_by(&engine(), &request).unwrap();
    assert_eq!(json!(on_one_thread.suggestions), json!(answer.suggestions));

    let (together, alone): (Vec<_>, Vec<_>) = answer
        .suggestions
        .iter()
        .partition(|one| one.kind == SuggestionKind::Combination);

    assert!(
        alone
            .iter()
            .all(|one| one.micro_batch == 0 || one.world_size > 1),
        "{alone:#?}"
    );
    let changes: Vec<&str> = together.iter().map(|one| one.change.as_str()).collect();
    assert_eq!(
        changes,
        [
            "precision bf16; LoRA of rank 16 on all linear layers",
            "precision bf16; FSDP2 on one GPU with cpu_offload",
        ]
    );
    assert!(
        together
            .iter()
            .all(|one| one.micro_batch > 0 && one.reaches)
    );
}

#[test]
fn the_best_of_several_variants_is_changed() {
    let request = json!({
        "model": { "layers": [{ "type": "linear", "out_features": 2048 }, { "type": "relu" }, { "type": "linear", "out_features": 10 }],
                   "input": { "shape": [512] }, "loss": "cross_entropy" },
        "training": { "optimizer": ["adamw", "sgd"], "precision": ["fp32", "amp_bf16"] },
        "device": "sim:t4", "memory_limit": "256MiB", "target_batch": 65536, "suggest": true
    });
    compare(&request, &fit(&request).unwrap());
}

#[test]
fn the_least_is_computed_again_that_reaches_what_is_wanted() {
    let asked = |more: Value| {
        let mut request = json!({
            "model": text_model(), "device": "sim:a100-40g", "memory_limit": "512MiB",
            "training": { "precision": "amp_bf16" }
        });
        patched(&mut request, &more);
        request
    };
    let plain = fit(&asked(json!({}))).unwrap().recommendation.micro_batch;
    let all = json!({ "training": { "checkpointing": "per_block" } });
    let most = fit(&asked(all)).unwrap().recommendation.micro_batch;
    assert!(most > plain + 4, "{plain} {most}");
    let wanted = plain + (most - plain) / 2;

    let answer = fit(&asked(json!({ "suggest": wanted }))).unwrap();

    let is_checkpointing =
        |one: &&Suggestion| one.kind == SuggestionKind::Checkpointing && one.reaches;
    let least = answer.suggestions.iter().find(is_checkpointing).unwrap();
    let modules = least.patch["training"]["checkpointing"]["modules"]
        .as_array()
        .unwrap();
    assert!((1..LAYERS).contains(&modules.len()), "{modules:?}");
    assert!(least.micro_batch >= wanted);
    // With one block less it is not reached, whichever is left out.
    for left_out in 0..modules.len() {
        let mut fewer = modules.clone();
        fewer.remove(left_out);
        let checkpointing = if fewer.is_empty() {
            json!("none")
        } else {
            json!({ "modules": fewer })
        };
        let changed = asked(json!({ "training": { "checkpointing": checkpointing } }));
        assert!(fit(&changed).unwrap().recommendation.micro_batch < wanted);
    }
}

#[test]
fn changes_of_several_lengths_are_fits_of_all_of_them() {
    let request = json!({
        "model": model_of_any_length(), "lengths": { "seq_len": { "32": 300, "64": 100 } }, "device": "sim:a100-40g",
        "memory_limit": "512MiB", "suggest": true
    });
    let answer = fit(&request).unwrap();

    assert!(answer.lengths.is_some());
    compare(&request, &answer);
}

#[test]
fn changes_of_a_request_with_a_soak_are_soaked() {
    let request = json!({
        "model": model_of_any_length(), "lengths": { "seq_len": "32,64" }, "device": "sim:a100-40g", "memory_limit": "512MiB",
        "soak": { "steps": 24, "epoch": 10, "last_batch": 5 }, "suggest": true
    });
    let answer = fit(&request).unwrap();

    let soaked = answer.soak.as_ref().unwrap();
    assert!(
        soaked.safe.is_some_and(|safe| safe.batch < soaked.batch),
        "a soak that changes nothing shows nothing: {soaked:?}"
    );
    compare(&request, &answer);
}

#[test]
fn what_has_no_suggestions_says_why() {
    let answer = fit(&json!({
        "model": { "preset": "resnet18" }, "training": { "mode": "inference" }, "device": "sim:t4", "suggest": true
    }))
    .unwrap();

    assert!(answer.suggestions.is_empty());
    let notes = &answer.recommendation.notes;
    assert!(
        notes
            .iter()
            .any(|note| note.starts_with("no changes are suggested")),
        "{notes:?}"
    );
}

#[test]
fn a_target_that_is_reached_needs_no_changes() {
    let request = |more: Value| {
        let mut request = json!({ "model": text_model(), "device": "sim:t4", "suggest": true });
        patched(&mut request, &more);
        request
    };
    let answer = fit(&request(json!({ "target_batch": 4 }))).unwrap();

    assert!(answer.suggestions.is_empty());
    let notes = &answer.recommendation.notes;
    assert!(
        notes
            .iter()
            .any(|note| note.contains("the target is reached")),
        "{notes:?}"
    );
}

#[test]
fn changes_of_several_lengths_leave_the_lengths_as_they_are() {
    let request = json!({
        "model": model_of_any_length(), "lengths": { "seq_len": "32,64" }, "device": "sim:t4", "memory_limit": "512MiB", "suggest": true
    });
    let answer = fit(&request).unwrap();

    assert!(answer.suggestions.len() > 5);
    let tokens = |one: &Suggestion| one.kind == SuggestionKind::Tokens;
    assert!(!answer.suggestions.iter().any(tokens));
}

#[test]
fn a_client_that_disconnects_ends_the_suggestions() {
    let request = json!({ "model": text_model(), "device": "sim:t4", "suggest": true });
    let document = RequestDocument::from_json(request.to_string().as_bytes()).unwrap();
    let request = Request::parse(document).unwrap();
    let cancel = Cancel::default();
    let progress = |progress: Progress| {
        if progress.note.starts_with("answering with") {
            cancel.cancel();
        }
    };

    let ended = engine().fit(
        &request,
        Isolation::Shared,
        &Work {
            cancel: &cancel,
            progress: &progress,
        },
    );

    assert!(matches!(ended, Err(EngineError::Cancelled)), "{ended:?}");
}

#[test]
fn a_wish_is_a_truth_value_or_a_micro_batch() {
    for wrong in [json!("yes"), json!(0), json!(-1), json!([true])] {
        let request =
            json!({ "model": { "preset": "resnet18" }, "device": "sim:t4", "suggest": wrong });
        let document = RequestDocument::from_json(request.to_string().as_bytes()).unwrap();
        let refused = Request::parse(document).unwrap_err();
        assert_eq!(refused.pointer, "/suggest");
    }
}

#[test]
fn a_job_of_several_gpus_is_told_of_shards_more_gpus_and_the_memory_of_the_host() {
    for (strategy, ranks) in [("none", 1), ("ddp", 2), ("fsdp2", 2)] {
        let mut request = json!({
            "model": text_model(), "device": "sim:a100-40g", "memory_limit": "122MiB", "suggest": true,
        });
        if ranks > 1 {
            let parallel = json!({ "strategy": strategy, "world_size": ranks });
            request["training"] = json!({ "parallel": parallel, "optimizer_impl": "fused" });
        }
        let answer = fit(&request).unwrap();

        compare(&request, &answer);
        let fits = |change: &str| {
            let mut all = answer.suggestions.iter();
            all.any(|one| one.change == change && one.micro_batch > 0)
        };
        let offloaded = ["one GPU", "2 GPUs"][usize::from(ranks > 1)];
        let offloaded = format!("FSDP2 on {offloaded} with cpu_offload");
        let more = format!("FSDP2 on {} GPUs", 8 * ranks);
        assert!(fits(&offloaded) && fits(&more), "{strategy}");
    }
}
