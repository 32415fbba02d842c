//! Answers on the simulated H200 beside what PyTorch did on a real one.

use std::path::{Path, PathBuf};

use batchfit::jobs::{Engine, FitEngine, Isolation, Work};
use batchfit::limits::Cancel;
use batchfit::model::{ModelFiles, Request, RequestDocument};
use batchfit::probe::Detail;
use serde::Deserialize;

/// How exactly PyTorch's largest batches were bisected.
const BISECTED_TO: f64 = 0.002;

#[derive(Debug, Deserialize)]
struct Truth {
    cells: Vec<Cell>,
    peaks: Vec<Training>,
}

/// The largest batches of one case under one limit.
#[derive(Debug, Deserialize)]
struct Cell {
    case: String,
    limit_gib: u64,
    max_batch: u64,
    max_batch_without_retries: u64,
    /// Largest error of either, as a part of it, where it is more than [`BISECTED_TO`].
    tolerance: Option<f64>,
}

/// The peaks of one case at one batch, without a limit.
#[derive(Debug, Deserialize)]
struct Training {
    case: String,
    batch: u64,
    peak_allocated_bytes: u64,
    peak_reserved_bytes: u64,
    /// Largest errors, as parts of them.
    #[serde(default)]
    allocated_tolerance: f64,
    #[serde(default)]
    reserved_tolerance: f64,
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn truth() -> Truth {
    serde_json::from_slice(&std::fs::read(golden().join("truth/truth.json")).unwrap()).unwrap()
}

/// The request of a case; what has no layers or preset brings its exported graph.
fn request(case: &str, limit: Option<String>) -> Request {
    let path = golden().join(format!("truth/requests/{case}.json"));
    let mut document = RequestDocument::from_json(&std::fs::read(path).unwrap()).unwrap();
    match limit {
        Some(limit) => document.set("memory_limit", limit),
        None => document.set("memory_limit", "0.99"),
    }
    if serde_json::to_value(&document)
        .unwrap()
        .get("model")
        .is_some()
    {
        return Request::parse(document).unwrap();
    }
    let model = case.split('-').next().unwrap();
    let graph = std::fs::read(golden().join(format!("exported/{model}.json.gz"))).unwrap();
    Request::parse(document.with_files(ModelFiles::Graph(graph))).unwrap()
}

fn engine() -> FitEngine {
    FitEngine::new(PathBuf::from(env!("CARGO_BIN_EXE_batchfit")))
}

fn error(ours: u64, theirs: u64) -> f64 {
    ours as f64 / theirs as f64 - 1.0
}

/// Fits every recorded cell of the cases whose name starts so.
#[expect(clippy::print_stdout, reason = "the table that the README quotes")]
fn check_cells(family: &str) {
    let truth = truth();
    let cells: Vec<&Cell> = truth
        .cells
        .iter()
        .filter(|cell| cell.case.starts_with(family))
        .collect();
    assert!(!cells.is_empty(), "no truth for {family}");
    let mut wrong = Vec::new();
    for cell in cells {
        let request = request(&cell.case, Some(format!("{}GiB", cell.limit_gib)));
        let result = engine()
            .fit(&request, Isolation::Shared, &Work::UNWATCHED)
            .unwrap();
        let best = result.recommendation;
        println!(
            "{} at {} GiB: {} recommended, {} without retries (PyTorch {}), {} at all (PyTorch {})",
            cell.case,
            cell.limit_gib,
            best.micro_batch,
            best.max_batch_without_retries,
            cell.max_batch_without_retries,
            best.max_batch,
            cell.max_batch,
        );
        if best.micro_batch > cell.max_batch {
            wrong.push(format!(
                "{} at {} GiB: {} recommended, and PyTorch finishes {}",
                cell.case, cell.limit_gib, best.micro_batch, cell.max_batch
            ));
        }
        let tolerance = cell.tolerance.unwrap_or(BISECTED_TO);
        for (what, ours, theirs) in [
            (
                "without retries",
                best.max_batch_without_retries,
                cell.max_batch_without_retries,
            ),
            ("at all", best.max_batch, cell.max_batch),
        ] {
            let error = error(ours, theirs);
            if error.abs() > tolerance {
                wrong.push(format!(
                    "{} at {} GiB {what}: {:+.2}%, more than {:.2}%",
                    cell.case,
                    cell.limit_gib,
                    100.0 * error,
                    100.0 * tolerance
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn largest_batches_of_cifarnet_are_those_of_pytorch() {
    check_cells("cifarnet");
}

#[test]
fn largest_batches_of_mlps_are_those_of_pytorch() {
    check_cells("mlp");
}

#[test]
fn largest_batches_of_resnets_are_those_of_pytorch() {
    check_cells("resnet");
}

#[test]
fn largest_batches_of_gpt2_are_those_of_pytorch() {
    check_cells("gpt2");
}

#[test]
fn peaks_are_those_of_pytorch() {
    let mut wrong = Vec::new();
    for peak in truth().peaks {
        let report = engine()
            .probe(
                &request(&peak.case, None),
                peak.batch,
                Detail::Full,
                &Cancel::NEVER,
            )
            .unwrap();

        let allocated = error(report.peak_allocated_bytes, peak.peak_allocated_bytes);
        let reserved = error(report.peak_reserved_bytes, peak.peak_reserved_bytes);
        println!(
            "{} batch {}: allocated {:+.3}%, reserved {:+.3}%",
            peak.case,
            peak.batch,
            100.0 * allocated,
            100.0 * reserved
        );
        if allocated.abs() > peak.allocated_tolerance || reserved.abs() > peak.reserved_tolerance {
            wrong.push(format!(
                "{} batch {}: allocated {:+.3}%, reserved {:+.3}%",
                peak.case,
                peak.batch,
                100.0 * allocated,
                100.0 * reserved
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
