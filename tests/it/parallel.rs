//! Steps on two simulated H200s beside what PyTorch did on real ones.

use std::path::{Path, PathBuf};

use batchfit::jobs::{Engine, FitEngine, Isolation, Work};
use batchfit::limits::Cancel;
use batchfit::model::{ModelFiles, Request, RequestDocument};
use batchfit::probe::Detail;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// How far a peak may be off that nothing decides but what is modelled: a rank's share of GPT-2 differs by two tensors.
const NEAR: f64 = 0.002;

#[derive(Debug, Deserialize)]
struct Truth {
    cases: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
struct Case {
    model: String,
    precision: String,
    optimizer: String,
    parallel: Option<Map<String, Value>>,
    world: u64,
    peaks: Vec<Peaks>,
    max_batch: Vec<Largest>,
}

#[derive(Debug, Deserialize)]
struct Peaks {
    batch: u64,
    ranks: Vec<Rank>,
}

#[derive(Debug, Deserialize)]
struct Rank {
    step_peak_allocated: Vec<u64>,
}

#[derive(Debug, Deserialize)]
struct Largest {
    limit_gib: u64,
    hard: u64,
    no_retry: u64,
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

fn cases() -> Vec<(String, Case)> {
    let text = std::fs::read(golden("parallel/peaks.json")).unwrap();
    let truth: Truth = serde_json::from_slice(&text).unwrap();
    let cases = truth.cases.into_iter();
    let read = |(name, case)| (name, serde_json::from_value(case).unwrap());
    cases.map(read).collect()
}

fn request(case: &Case, limit: Option<u64>) -> Request {
    let (optimizer, implementation) = case
        .optimizer
        .split_once(':')
        .unwrap_or((&case.optimizer, "foreach"));
    let mut training = json!({
        "precision": case.precision, "optimizer": optimizer, "optimizer_impl": implementation,
    });
    let wrapped = case.parallel.as_ref();
    let sharded = wrapped.filter(|wrapped| wrapped["kind"] == "fsdp2");
    if let Some(wrapped) = sharded {
        training["parallel"] = json!({
            "strategy": "fsdp2",
            "world_size": case.world,
            "units": wrapped["units"],
            "mixed_precision": wrapped["mp"],
        });
        if wrapped.get("ckpt").is_some() {
            training["checkpointing"] = json!("per_block");
        }
    } else if let Some(wrapped) = wrapped {
        let is_zero = wrapped.get("zero1").is_some();
        training["parallel"] = json!({
            "strategy": if is_zero { "zero1" } else { "ddp" },
            "world_size": case.world,
            "gradient_as_bucket_view": wrapped.get("gradient_as_bucket_view").is_some(),
        });
    }
    let mut document = json!({ "device": "sim:h200", "training": training });
    document["memory_limit"] = match limit {
        Some(gib) => json!(format!("{gib}GiB")),
        None => json!("0.98"),
    };
    let document = RequestDocument::from_json(document.to_string().as_bytes()).unwrap();
    let graph = match case.model.as_str() {
        "llama" => "exported/llama1b-bf16.json.gz",
        "gpt2" => "exported/gpt2-table.json.gz",
        "resnet50" => "exported/resnet50.json.gz",
        other => panic!("no graph of {other}"),
    };
    let graph = std::fs::read(golden(graph)).unwrap();
    Request::parse(document.with_files(ModelFiles::Graph(graph))).unwrap()
}

fn engine() -> FitEngine {
    FitEngine::new(PathBuf::from(env!("CARGO_BIN_EXE_batchfit")))
}

#[test]
fn ranks_allocate_what_pytorch_does() {
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (name, case) in cases() {
        let request = request(&case, None);
        for peaks in &case.peaks {
            let report = engine()
                .probe(&request, peaks.batch, Detail::Full, &Cancel::NEVER)
                .unwrap();
            for rank in &peaks.ranks {
                for (index, theirs) in rank.step_peak_allocated.iter().enumerate() {
                    let ours = report.steps[index].peak_allocated_bytes;
                    let off = ours as f64 / *theirs as f64 - 1.0;
                    // In the second step a rank's first buckets may be gone already, or later still: that is a
                    // race, and they are taken to go with the first message of the backward pass.
                    let races = case
                        .parallel
                        .as_ref()
                        .is_some_and(|wrapped| wrapped["kind"] == "ddp")
                        && index == 1;
                    let range = if races { -0.005..=0.12 } else { -NEAR..=NEAR };
                    compared += 1;
                    if !range.contains(&off) {
                        wrong.push(format!(
                            "{name} b{} step {}: {off:+.4}",
                            peaks.batch,
                            index + 1
                        ));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(compared, 96);
}

#[test]
fn largest_batches_of_ranks_are_those_of_pytorch() {
    let mut found = Vec::new();
    for (name, case) in cases() {
        for largest in &case.max_batch {
            let request = request(&case, Some(largest.limit_gib));
            let result = engine()
                .fit(&request, Isolation::Shared, &Work::UNWATCHED)
                .unwrap();
            let ours = result.recommendation;
            assert_eq!(ours.max_batch, largest.hard, "{name}");
            let off = ours.max_batch_without_retries.abs_diff(largest.no_retry);
            // One that depends on the race above: 114 where PyTorch's ranks retried at 113.
            let most = if name == "resnet50-ddp-gbv-ampfp16-sgd" {
                2
            } else {
                0
            };
            assert!(
                off <= most,
                "{name}: {} for {}",
                ours.max_batch_without_retries,
                largest.no_retry
            );
            assert!(ours.micro_batch <= largest.hard, "{name}");
            found.push(name.clone());
        }
    }
    assert!(found.len() >= 6, "{found:?}");
}
