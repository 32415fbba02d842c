//! Whole fits whose GPU is a fake one.

use std::os::unix::fs::symlink;

use batchfit::jobs::{Engine as _, EngineError, FitEngine, FitResult, Isolation, Work};
use batchfit::model::{Request, RequestDocument};
use batchfit::probe::Evidence;
use batchfit::worker::CROWDED;

use super::*;

const FAKE_WORKER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/it/worker/fake-gpu-worker"
);

/// A fit whose workers misbehave.
fn fit(misbehaviour: &str) -> Result<FitResult, EngineError> {
    fit_with(misbehaviour, r#""device": "cuda:0""#)
}

/// The same with other members of the request.
fn fit_with(misbehaviour: &str, members: &str) -> Result<FitResult, EngineError> {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join(misbehaviour);
    symlink(
        env!("CARGO_BIN_EXE_batchfit"),
        directory.path().join("batchfit"),
    )
    .unwrap();
    symlink(FAKE_WORKER, &program).unwrap();
    let text = format!(r#"{{"model": {{"preset": "resnet18"}}, {members}}}"#);
    let document = RequestDocument::from_json(text.as_bytes()).unwrap();
    let request = Request::parse(document).unwrap();
    let engine = FitEngine::new(program).with_deadlines(DEADLINES);
    engine.fit(&request, Isolation::Shared, &Work::UNWATCHED)
}

#[test]
fn the_answer_says_what_was_done_on_the_gpu() {
    let work = fit("none").unwrap().gpu_work.unwrap();

    assert_eq!(work.workers, 1);
    assert!(work.worker_start_ms > 0.0);
    assert_eq!(work.probes as usize, work.runs.len());
    let out = |run: &&batchfit::jobs::GpuRun| run.verdict == Verdict::OutOfMemory;
    assert_eq!(
        work.out_of_memory as usize,
        work.runs.iter().filter(out).count()
    );
    assert!(work.out_of_memory > 0, "{work:?}");
}

#[test]
fn a_gpu_without_room_is_an_answer_with_numbers() {
    let result = fit("no-room").unwrap();

    let best = result.recommendation;
    assert_eq!((best.micro_batch, best.limit_bytes), (0, 0));
    assert!(best.missing_bytes.unwrap() > 100 << 20);
    assert!(best.notes.contains(&"all is taken".to_owned()));
    assert_eq!(result.gpu_work, None);
}

#[test]
fn a_limit_that_others_lower_is_the_limit_of_the_answer() {
    let best = fit("crowd").unwrap().recommendation;

    assert_eq!(best.limit_bytes, CROWDED.0);
    assert!(
        best.notes
            .iter()
            .any(|note| note.contains("other processes took memory of the GPU during the fit")),
        "{:?}",
        best.notes
    );
}

#[test]
fn a_gpu_that_is_lost_twice_is_answered_for_by_simulation() {
    let result = fit("lose").unwrap();

    let best = result.recommendation;
    assert_eq!(best.evidence, Evidence::Simulated);
    assert!(best.micro_batch > 0);
    let why = "simulated, because the GPU's worker was lost and so was the one in its place: the worker gave up \
               (CUDA_ERROR_ILLEGAL_ADDRESS (planned)) while probing batch ";
    assert!(
        best.notes.iter().any(|note| note.starts_with(why)),
        "{:?}",
        best.notes
    );
    assert_eq!(result.gpu_work.unwrap().workers, 2);
}

#[test]
fn a_gpu_that_no_worker_can_open_is_answered_for_by_simulation() {
    let result = fit("lose-opening").unwrap();

    let best = result.recommendation;
    assert_eq!(best.evidence, Evidence::Simulated);
    // Eight GiB, less what a process holds outside the allocator.
    assert_eq!(best.limit_bytes, (8 << 30) - (780 << 20));
    assert!(
        best.notes.iter().any(|note| note
            .starts_with("simulated, because no worker could open the GPU: the worker gave up")),
        "{:?}",
        best.notes
    );
    assert_eq!(result.gpu_work, None);
}

#[test]
fn a_gpu_that_is_lost_fails_a_fit_by_real_probes_alone() {
    let error = fit_with("lose", r#""device": "cuda:0", "search": "probes""#);

    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with(
            "cuda:0 failed: the worker gave up (CUDA_ERROR_ILLEGAL_ADDRESS (planned))"
        ),
        "{error}"
    );
}

#[test]
fn auto_is_the_gpu_that_the_worker_took() {
    let result = fit_with("none", r#""device": "auto""#).unwrap();

    assert_eq!(result.environment.device, "cuda:0");
    assert!(result.gpu_work.unwrap().probes > 0);
}
