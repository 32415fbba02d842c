//! Answers for several ranks: which of them differ, what each sends, what each has of a card.

mod adapted;

use std::path::PathBuf;

use batchfit::jobs::{Engine as _, FitEngine, FitResult, Isolation, Work, validate};
use batchfit::limits::Cancel;
use batchfit::model::{Request, RequestDocument};
use batchfit::probe::{Detail, ProbeReport};
use proptest::prelude::*;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// Three layers of unlike sizes: 64, 16 and 4 MiB, and their biases.
fn layers() -> Value {
    let layer = |out: u64| json!({ "type": "linear", "out_features": out });
    json!({
        "input": { "shape": [4096] }, "loss": "cross_entropy",
        "layers": [layer(4096), { "type": "relu" }, layer(1024), { "type": "relu" }, layer(1024)],
    })
}

/// Bytes of all gradients.
const GRADIENTS: u64 = 4 * (4096 * 4096 + 4096 + 4096 * 1024 + 1024 + 1024 * 1024 + 1024);

fn request(document: Value) -> Request {
    let document = RequestDocument::from(document);
    Request::parse(document).unwrap()
}

fn answer_for(parallel: &Value, limit: Option<&str>) -> Value {
    let mut document = json!({
        "model": layers(), "training": { "parallel": parallel }, "device": "sim:h200",
    });
    if let Some(limit) = limit {
        document["memory_limit"] = json!(limit);
    }
    document
}

fn engine() -> FitEngine {
    FitEngine::new(PathBuf::from(env!("CARGO_BIN_EXE_batchfit")))
}

fn fit(document: Value) -> FitResult {
    let request = request(document);
    engine()
        .fit(&request, Isolation::Shared, &Work::UNWATCHED)
        .unwrap()
}

fn probe(parallel: &Value, batch: u64) -> ProbeReport {
    let request = request(answer_for(parallel, None));
    engine()
        .probe(&request, batch, Detail::Full, &Cancel::NEVER)
        .unwrap()
}

#[test]
fn a_million_ranks_cost_hardly_more_work_than_a_few_thousand() {
    let probed = |ranks: u64| {
        let parallel = json!({ "strategy": "ddp", "world_size": ranks });
        let request = request(answer_for(&parallel, None));
        let report = engine()
            .probe(&request, 1, Detail::Events, &Cancel::NEVER)
            .unwrap();
        let told = report.events.unwrap();
        let events = u64::from(told.events) + told.omitted;
        (report.peak_reserved_bytes, events)
    };
    let (few, fewer_events) = probed(4096);
    let (many, events) = probed(1 << 20);

    // Shapes are compared in a tensor for each rank, of 512 bytes in memory.
    let more = ((1 << 20) - 4096) * 512;
    assert!((many - few).abs_diff(more) <= 2 * MIB, "{few} {many}");
    assert!(events < 2 * fewer_events, "{fewer_events} {events}");
}

#[test]
fn ranks_that_differ_are_told_and_the_one_that_needs_most_decides() {
    // Largest first: 64 MiB for rank 0, 16 and 4 and all biases for rank 1, nothing for others.
    let report = probe(&json!({ "strategy": "zero1", "world_size": 64 }), 8);

    let ranks: Vec<(u32, Option<&str>)> = report
        .ranks
        .iter()
        .map(|rank| (rank.rank, rank.stands_for.as_deref()))
        .collect();
    assert_eq!(ranks, [(0, Some("0-63"))]);

    let report = probe(&json!({ "strategy": "zero1", "world_size": 2 }), 8);
    let ranks = report.ranks.iter().map(|rank| rank.rank);
    assert_eq!(ranks.collect::<Vec<_>>(), [0, 1]);
    assert_eq!(report.binding_rank, Some(0));
    let [first, second] = report.ranks.as_slice() else {
        panic!("two ranks");
    };
    assert!(first.peak_allocated_bytes > second.peak_allocated_bytes);
    assert_eq!(first.steps, report.steps);
    assert_eq!(report.peak_allocated_bytes, first.peak_allocated_bytes);
    // The state of the one is 128 MiB, of the other 40.
    let left = |rank: usize| report.ranks[rank].steps.last().unwrap().allocated_bytes;
    let apart = (left(0) - left(1)) as f64 / MIB as f64;
    assert!((86.0..=90.0).contains(&apart), "{apart}");
}

#[test]
fn both_ends_of_the_race_for_the_first_buckets_are_told() {
    let report = probe(&json!({ "strategy": "ddp", "world_size": 2 }), 8);
    let without = report.without_overlap.unwrap();
    assert!(without.peak_allocated_bytes <= report.peak_allocated_bytes);
    assert!(without.peak_reserved_bytes < report.peak_reserved_bytes);
    // It overlaps in the second step alone.
    let [_, second, third] = report.steps.as_slice() else {
        panic!("three steps");
    };
    assert!(second.peak_allocated_bytes >= third.peak_allocated_bytes);

    // These keep their first buckets.
    let unused = json!({ "strategy": "ddp", "world_size": 2, "find_unused_parameters": true });
    assert_eq!(probe(&unused, 8).without_overlap, None);
    let alone = probe(&json!({ "strategy": "none", "world_size": 2 }), 8);
    assert_eq!(alone.without_overlap, None);
    assert_eq!((alone.binding_rank, alone.communicated_bytes), (None, None));
    assert!(alone.ranks.is_empty());
}

#[test]
fn what_a_rank_sends_is_what_a_ring_moves() {
    let sent = |parallel: Value| probe(&parallel, 8).communicated_bytes.unwrap();
    let all_reduced = |ranks: u64| 2 * (ranks - 1) * GRADIENTS / ranks;
    for ranks in [2, 3, 8, 1024] {
        let ddp = sent(json!({ "strategy": "ddp", "world_size": ranks }));
        assert!(ddp.abs_diff(all_reduced(ranks)) <= 8, "{ranks}: {ddp}");
        // Then each part of the parameters is sent to all.
        let zero1 = sent(json!({ "strategy": "zero1", "world_size": ranks }));
        assert_eq!(zero1, ddp + GRADIENTS, "{ranks}");
    }
    // All parameters are gathered once and all gradients reduced once: the model is one unit, and keeps what it gathered.
    for ranks in [2, 8] {
        let sharded = sent(json!({ "strategy": "fsdp2", "world_size": ranks }));
        assert_eq!(sharded, all_reduced(ranks));
    }
    assert_eq!(sent(json!({ "strategy": "ddp", "world_size": 1 })), 0);
    let halved = sent(json!({ "strategy": "ddp", "world_size": 2, "comm_hook": "bf16" }));
    assert_eq!(halved, all_reduced(2) / 2);
}

#[test]
fn micro_steps_send_once_or_each_time() {
    let sent = |always: bool| {
        let parallel =
            json!({ "strategy": "ddp", "world_size": 2, "sync_every_micro_step": always });
        let mut document = answer_for(&parallel, Some("2GiB"));
        document["training"]["accumulation"] = json!(10);
        let found = fit(document).recommendation;
        assert_eq!(found.accumulation_steps, 10);
        found.parallel.unwrap().communicated_bytes.unwrap()
    };
    assert_eq!(sent(false), GRADIENTS);
    assert_eq!(sent(true), 10 * GRADIENTS);
}

#[test]
fn each_strategy_has_a_limit_of_its_own() {
    let found = fit(answer_for(
        &json!({ "strategy": ["ddp", "none", "zero1"], "world_size": 8 }),
        None,
    ));
    let limit = |name: Option<&str>| {
        let variants = &mut found.variants.iter();
        let variant = variants.find(|variant| variant.training.parallel.name() == name);
        variant.unwrap().recommendation.limit_bytes
    };
    assert_eq!(limit(None) - limit(Some("ddp")), (1613 - 780) * MIB);
    assert_eq!(limit(Some("ddp")), limit(Some("zero1")));
    // Eight GPUs take more samples at once than one does, though each of them takes fewer.
    assert_eq!(
        found.variants.last().unwrap().training.parallel.name(),
        None
    );

    // What is asked for is asked for by all, as far as each has it.
    let within = fit(answer_for(
        &json!({ "strategy": ["ddp", "none"], "world_size": 8 }),
        Some("2GiB"),
    ));
    let limits = within
        .variants
        .iter()
        .map(|one| one.recommendation.limit_bytes);
    assert_eq!(limits.collect::<Vec<_>>(), [2 << 30; 2]);
}

#[test]
fn the_note_says_what_was_measured_and_what_was_not() {
    let notes = |ranks: u64| {
        let found = fit(answer_for(
            &json!({ "strategy": "ddp", "world_size": ranks }),
            Some("2GiB"),
        ));
        found.recommendation.notes.join("\n")
    };
    assert!(notes(2).contains("NVLink multicast"));
    assert!(!notes(2).contains("unchecked"));
    assert!(notes(64).contains("for 64 the same rules are taken to hold, unchecked"));
}

#[test]
fn the_card_with_the_least_memory_decides_for_all() {
    let mut document = answer_for(&json!({ "strategy": "ddp", "world_size": 8 }), None);
    document["device"] = json!(["sim:h200", "sim:t4"]);
    let uneven = fit(document.clone());
    document["device"] = json!("sim:t4");
    let alone = fit(document);

    assert_eq!(uneven.environment.device, "sim:t4");
    assert_eq!(
        uneven.recommendation.micro_batch,
        alone.recommendation.micro_batch
    );
    let said =
        |note: &String| note.starts_with("of the cards in this job, t4 leaves PyTorch the least");
    assert_eq!(
        uneven
            .recommendation
            .notes
            .iter()
            .filter(|note| said(note))
            .count(),
        1
    );
    assert_eq!(
        alone
            .recommendation
            .notes
            .iter()
            .filter(|note| said(note))
            .count(),
        0
    );
}

#[test]
fn what_a_wrapper_refuses_of_a_model_is_told_before_anything_runs() {
    let refused = |layers: Value, parallel: Value| {
        let model =
            json!({ "input": { "shape": [3, 8, 8] }, "layers": layers, "loss": "cross_entropy" });
        let training = json!({ "parallel": parallel });
        let request = request(json!({ "model": model, "training": training, "device": "sim:t4" }));
        validate(&request)
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let untrained = json!([{ "type": "flatten" }]);
    let normalizes = json!([
        { "type": "conv2d", "out_channels": 4, "kernel_size": 3 }, { "type": "batch_norm2d", "name": "bn" },
        { "type": "flatten" }, { "type": "linear", "out_features": 10 },
    ]);
    for strategy in ["ddp", "zero1"] {
        let told = refused(
            untrained.clone(),
            json!({ "strategy": strategy, "world_size": 2 }),
        );
        let expected =
            "at /training/parallel/strategy: DistributedDataParallel refuses a model without";
        assert!(told.unwrap_err().starts_with(expected));
    }
    let casting = json!({ "param_dtype": "bf16" });
    let sharded =
        |mixed: Value| json!({ "strategy": "fsdp2", "world_size": 2, "mixed_precision": mixed });
    let told = refused(normalizes.clone(), sharded(casting)).unwrap_err();
    let expected = "at /training/parallel/mixed_precision/param_dtype: batch norm in bn fails";
    assert!(told.starts_with(expected), "{told}");
    let reducing = json!({ "reduce_dtype": "bf16" });
    assert_eq!(refused(normalizes, sharded(reducing)), Ok(()));
}

proptest! {
    /// With strategies of unlike world sizes in one list, every plan is whole micro-batches of all ranks, and exact where any is.
    #[test]
    fn targets_are_shared_by_the_ranks_that_there_are(ranks in 1_u64..=9, share in 1_u64..=400, rest in 0_u64..9) {
        let target = ranks * share + rest.min(ranks - 1);
        let parallel = json!({ "strategy": ["ddp", "none", "zero1", "fsdp2"], "world_size": ranks });
        let mut document = answer_for(&parallel, Some("1GiB"));
        document["target_batch"] = json!(target);
        for variant in fit(document).variants {
            let world = variant.training.parallel.world_size();
            let plan = variant.recommendation;
            prop_assert_eq!(world, if variant.training.parallel.is_none() { 1 } else { ranks });
            prop_assert!(plan.micro_batch > 0);
            prop_assert_eq!(plan.global_batch, plan.micro_batch * plan.accumulation_steps * world);
            prop_assert_eq!(plan.global_batch + plan.shortfall, target);
            // A sample at a time always fits here, and makes all that the ranks can share.
            prop_assert_eq!(plan.shortfall, target % world);
        }
    }
}

#[test]
fn a_loss_that_pairs_samples_is_said_to_pair_those_of_a_rank_alone() {
    let pairing = include_str!("../../golden/parallel/pairs.json");
    let pairing = json!({ "exported": serde_json::from_str::<Value>(pairing).unwrap() });
    let is_said = |model: &Value, strategy: &str| {
        let mut document = answer_for(
            &json!({ "strategy": strategy, "world_size": 8 }),
            Some("1GiB"),
        );
        document["model"] = model.clone();
        let notes = fit(document).recommendation.notes;
        notes.iter().any(|note| {
            note.starts_with("the loss pairs samples of a batch with each other (matmul")
        })
    };
    for strategy in ["ddp", "zero1", "fsdp2"] {
        assert!(is_said(&pairing, strategy), "{strategy}");
        assert!(!is_said(&layers(), strategy), "{strategy}");
    }
    assert!(!is_said(&pairing, "none"));
}

#[test]
fn zero1_is_said_not_to_be_deepspeeds_and_one_gpu_can_offload() {
    let notes = |parallel: Value| {
        let found = fit(answer_for(&parallel, Some("2GiB")));
        found.recommendation.notes.join("\n")
    };
    let zero1 = notes(json!({ "strategy": "zero1", "world_size": 2 }));
    assert!(zero1.contains("not DeepSpeed's ZeRO-1"), "{zero1}");
    assert!(zero1.contains("16 bytes a parameter"), "{zero1}");

    let one = json!({ "strategy": "fsdp2", "cpu_offload": true });
    let offloaded = fit(answer_for(&one, None)).recommendation;
    let alone = fit(answer_for(&json!({ "strategy": "none" }), None)).recommendation;
    assert_eq!(offloaded.limit_bytes, alone.limit_bytes);
    assert!(offloaded.host_bytes > 3 * GRADIENTS);
    let document = answer_for(&json!({ "strategy": "fsdp2" }), None);
    let document = RequestDocument::from(document);
    let refused = Request::parse(document).unwrap_err();
    assert!(
        refused.to_string().contains("`--world-size 2`"),
        "{refused}"
    );
}
