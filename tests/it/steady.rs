//! Batches at which the allocator retries in the first steps and never again, beside what PyTorch did under the same limits
//! (`tests/record/first_step_retries.py`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use batchfit::jobs::{Engine as _, FitEngine, Isolation, Recommendation, Work};
use batchfit::limits::Cancel;
use batchfit::model::{Request, RequestDocument};
use batchfit::probe::{Detail, ProbeReport, StepOutcome};
use serde::Deserialize;
use serde_json::json;

use crate::sample::sample;

/// What five steps came to.
#[derive(Deserialize)]
struct SteadyCase {
    model: String,
    pixels: u64,
    limit_gib: u64,
    batch: u64,
    finishes: bool,
    /// `num_alloc_retries` after each step that ended.
    retries: Vec<u64>,
}

impl SteadyCase {
    fn course(&self) -> StepOutcome {
        match self.retries[..] {
            _ if !self.finishes => StepOutcome::Stopped,
            [_, _, _, _, 0] => StepOutcome::WithoutRetries,
            [_, second, .., last] if second == last => StepOutcome::Steady,
            _ => StepOutcome::WithRetries,
        }
    }

    fn request(&self) -> Request {
        let request = json!({
            "model": {"preset": self.model, "image_size": self.pixels},
            "training": {"precision": "fp32", "optimizer": "adamw"},
            "device": "sim:h100-80g",
            "memory_limit": format!("{}GiB", self.limit_gib),
        });
        Request::parse(RequestDocument::from(request)).unwrap()
    }

    fn probe(&self) -> ProbeReport {
        engine()
            .probe(&self.request(), self.batch, Detail::Full, &Cancel::NEVER)
            .unwrap()
    }

    fn fit(&self) -> Recommendation {
        let answered = engine().fit(&self.request(), Isolation::Shared, &Work::UNWATCHED);
        answered.unwrap().recommendation
    }
}

fn engine() -> FitEngine {
    FitEngine::new(PathBuf::from(env!("CARGO_BIN_EXE_batchfit")))
}

fn rows() -> Vec<SteadyCase> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/first_step_retries.json");
    serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap()
}

#[test]
fn retries_are_told_by_the_step_that_they_happen_in() {
    let (mut table, mut same, mut all) = (String::new(), 0, 0);
    for row in sample(3, rows()) {
        let report = row.probe();
        let simulated: Vec<u64> = report
            .steps
            .iter()
            .map(|step| step.retries.unwrap())
            .collect();
        let _ = writeln!(
            table,
            "{} {} in {} GiB, batch {}: {:?} {:?}, simulated {:?} {simulated:?}",
            row.model,
            row.pixels,
            row.limit_gib,
            row.batch,
            row.course(),
            row.retries,
            report.course(),
        );
        same += usize::from(report.course() == row.course());
        all += 1;
    }
    println!("{table}{same} of {all}");
    assert!(same * 100 >= all * 85, "{same} of {all}:\n{table}");
}

#[test]
fn what_is_recommended_runs_steadily_and_little_is_left_on_the_table() {
    let mut cases: BTreeMap<(String, u64), Vec<SteadyCase>> = BTreeMap::new();
    for row in rows() {
        cases
            .entry((row.model.clone(), row.pixels))
            .or_default()
            .push(row);
    }
    let (mut table, mut wrong) = (String::new(), Vec::new());
    for rows in sample(2, cases.into_values()) {
        let found = rows[0].fit();
        let most = |courses: &[StepOutcome]| {
            let batches = rows.iter().filter(|row| courses.contains(&row.course()));
            batches.map(|row| row.batch).max().unwrap_or(0)
        };
        let steady = most(&[StepOutcome::WithoutRetries, StepOutcome::Steady]);
        let finishing = most(&[
            StepOutcome::WithoutRetries,
            StepOutcome::Steady,
            StepOutcome::WithRetries,
        ]);
        let line = format!(
            "{} {} in {} GiB: {} recommended, {} steady, {} without retries, {} with them; recorded {steady} steady, {finishing} finish",
            rows[0].model,
            rows[0].pixels,
            rows[0].limit_gib,
            found.micro_batch,
            found.max_batch_steady,
            found.max_batch_without_retries,
            found.max_batch
        );
        let above = rows.iter().find(|row| row.batch >= found.micro_batch);
        let runs = above.is_none_or(|row| row.course() < StepOutcome::Stopped);
        if !runs || found.micro_batch * 100 < steady * 80 {
            wrong.push(line.clone());
        }
        let _ = writeln!(table, "{line}");
    }
    println!("{table}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Limits under which bisection from a guess ended at smaller batches than under smaller limits.
#[test]
fn a_larger_limit_never_lowers_the_largest_batch_without_retries() {
    for (model, precision, card, from) in [
        ("resnet18", "amp_fp16", "sim:rtx3090", 9278),
        ("resnet18", "bf16", "sim:h200", 6548),
        ("regnet_y_400mf", "amp_bf16", "sim:h200", 5634),
    ] {
        let without_retries: Vec<u64> = (0..8)
            .map(|step| {
                let request = json!({
                    "model": {"preset": model},
                    "training": {"precision": precision, "optimizer": "adafactor"},
                    "device": card,
                    "memory_limit": format!("{}MiB", from + 64 * step),
                });
                let request = Request::parse(RequestDocument::from(request)).unwrap();
                let answered = engine().fit(&request, Isolation::Shared, &Work::UNWATCHED);
                answered.unwrap().recommendation.max_batch_without_retries
            })
            .collect();

        assert!(without_retries.is_sorted(), "{model}: {without_retries:?}");
    }
}
