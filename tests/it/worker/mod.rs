//! What if the child dies, hangs, babbles: the real binary, with a planned failure.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use batchfit::model::Variant;
use batchfit::probe::{ProbeReport, Verdict};
use batchfit::worker::{
    Activity, Deadlines, Launch, Loss, Opening, ProbeOrder, Ready, Refusal, Supervisor, WorkerError,
};

/// Long enough for a busy machine to start a process, short enough to wait for in a test.
const DEADLINES: Deadlines = Deadlines {
    start: Duration::from_secs(20),
    open: Duration::from_secs(20),
    probe: Duration::from_secs(1),
};

fn launch(arguments: &[&str]) -> Launch {
    let arguments = ["worker", "--misbehave"].iter().chain(arguments);
    Launch {
        program: PathBuf::from(env!("CARGO_BIN_EXE_batchfit")),
        arguments: arguments.map(Into::into).collect(),
    }
}

fn opening() -> Opening {
    Opening {
        device: "sim:h200".to_owned(),
        request: serde_json::json!({}),
    }
}

fn order(batch: u64) -> ProbeOrder {
    ProbeOrder {
        variant: Variant {
            accumulation: 1,
            ..Variant::default()
        },
        batch,
        limit_bytes: 1 << 30,
    }
}

fn open(launch: Launch) -> Result<(Supervisor, Ready), WorkerError> {
    Supervisor::open(launch, opening(), DEADLINES, &AtomicBool::new(false))
}

fn probe(supervisor: &mut Supervisor, batch: u64) -> Result<ProbeReport, WorkerError> {
    supervisor.probe(&order(batch), &AtomicBool::new(false))
}

/// The error of a probe by a worker that misbehaves each time.
fn failure(misbehaviour: &str) -> WorkerError {
    let (mut supervisor, _) = open(launch(&[misbehaviour])).unwrap();
    probe(&mut supervisor, 8).unwrap_err()
}

/// The report of a probe by a worker whose predecessor misbehaved.
fn recovery(misbehaviour: &str) -> ProbeReport {
    let directory = tempfile::tempdir().unwrap();
    let once = directory.path().join("misbehaved");
    let arguments = [misbehaviour, "--once", once.to_str().unwrap()];
    let (mut supervisor, _) = open(launch(&arguments)).unwrap();

    let report = probe(&mut supervisor, 8).unwrap();

    assert!(once.exists(), "nothing misbehaved");
    report
}

#[test]
fn a_worker_that_behaves_answers_every_probe() {
    let (mut supervisor, ready) = open(launch(&["none"])).unwrap();

    assert_eq!(ready.gpu.name, "Rehearsal");
    assert_eq!(probe(&mut supervisor, 64).unwrap().verdict, Verdict::Fits);
    let above = probe(&mut supervisor, 65).unwrap();
    assert_eq!((above.batch, above.verdict), (65, Verdict::OutOfMemory));
}

#[test]
fn a_worker_that_dies_is_replaced_and_the_probe_repeated() {
    let report = recovery("exit-after=2");

    assert_eq!((report.batch, report.verdict), (8, Verdict::Fits));
}

#[test]
fn a_worker_that_dies_while_opening_is_replaced() {
    recovery("exit-after=1");
}

#[test]
fn a_worker_that_hangs_is_killed_and_replaced() {
    recovery("hang");
}

#[test]
fn a_worker_that_babbles_is_killed_and_replaced() {
    recovery("babble");
}

#[test]
fn a_worker_that_writes_half_a_line_is_replaced() {
    recovery("half-line");
}

#[test]
fn a_worker_that_writes_without_end_is_killed_and_replaced() {
    recovery("huge-line");
}

#[test]
fn the_second_death_is_reported_with_its_status_and_last_words() {
    let error = failure("exit-after=2");

    let WorkerError::Lost {
        activity,
        loss,
        stderr,
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(*activity, Activity::Probing(8));
    assert!(matches!(loss, Loss::Exited(status) if status.code() == Some(9)));
    assert_eq!(stderr, &["CUDA_ERROR_ILLEGAL_ADDRESS (planned)"]);
    assert_eq!(
        error.to_string(),
        "the worker ended (exit status: 9) while probing batch 8; its last words: \
         CUDA_ERROR_ILLEGAL_ADDRESS (planned)"
    );
}

#[test]
fn each_failure_is_reported_by_name() {
    let shown = [
        (
            "hang",
            "the worker did not answer within 1.0 s while probing batch 8",
        ),
        (
            "babble",
            "the worker wrote `Segmentation fault (core dumped)`, which is no message, while \
             probing batch 8",
        ),
        (
            "half-line",
            "the worker ended in the middle of a line (exit status: 9) while probing batch 8",
        ),
        (
            "huge-line",
            "the worker wrote a line of more than 4 MiB while probing batch 8",
        ),
        ("panic", "the worker panicked: planned"),
        ("abort", "the worker ended (signal: 6 (SIGABRT)"),
    ];

    for (misbehaviour, message) in shown {
        let error = failure(misbehaviour).to_string();
        assert!(error.starts_with(message), "{misbehaviour}: {error}");
    }
}

#[test]
fn another_version_is_refused_at_once() {
    let error = open(launch(&["wrong-version"])).unwrap_err();

    assert_eq!(
        error.to_string(),
        "the worker speaks version 2 of the protocol instead of 1 while starting"
    );
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let missing = Launch {
        program: PathBuf::from("/nowhere/batchfit"),
        arguments: Vec::new(),
    };

    let error = open(missing).unwrap_err();

    assert_eq!(
        error.to_string(),
        "could not start the worker /nowhere/batchfit"
    );
}

#[test]
fn a_cancelled_probe_ends_its_worker_at_once() {
    let patient = Deadlines {
        probe: Duration::from_mins(10),
        ..DEADLINES
    };
    let cancel = AtomicBool::new(false);
    let hanging = launch(&["hang"]);
    let (mut supervisor, _) = Supervisor::open(hanging, opening(), patient, &cancel).unwrap();

    let (ended, took) = thread::scope(|scope| {
        let probe = scope.spawn(|| supervisor.probe(&order(8), &cancel));
        let since = Instant::now();
        cancel.store(true, Ordering::Relaxed);
        (probe.join().unwrap(), since.elapsed())
    });

    assert!(matches!(ended, Err(WorkerError::Cancelled)));
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_real_worker_probes_a_simulated_card() {
    let layers = serde_json::json!([{"type": "linear", "out_features": 10}]);
    let model =
        serde_json::json!({"layers": layers, "input": {"shape": [64]}, "loss": "cross_entropy"});
    let opening = Opening {
        device: "sim:t4".to_owned(),
        request: serde_json::json!({"model": model, "device": "sim:t4"}),
    };
    let real = Launch::this_binary(PathBuf::from(env!("CARGO_BIN_EXE_batchfit")));
    let never = AtomicBool::new(false);

    let (mut supervisor, ready) = Supervisor::open(real, opening, DEADLINES, &never).unwrap();
    let report = probe(&mut supervisor, 8).unwrap();

    assert_eq!(ready.gpu.name, "Tesla T4");
    assert_eq!((report.batch, report.verdict), (8, Verdict::Fits));
    // 640 weights and 10 biases of four bytes, in blocks of 512.
    assert_eq!(report.model_allocated_bytes, 2560 + 512);
}

#[test]
fn a_request_that_is_wrong_is_refused_by_the_worker() {
    let real = Launch::this_binary(PathBuf::from(env!("CARGO_BIN_EXE_batchfit")));

    let error = open(real).unwrap_err();

    assert!(matches!(
        error,
        WorkerError::Refused {
            refusal: Refusal::Invalid,
            ..
        }
    ));
}

#[test]
fn gpus_are_listed_by_a_worker_of_their_own() {
    let listed = Supervisor::list(&launch(&["none"]), DEADLINES, &AtomicBool::new(false));

    let (gpus, missing) = listed.unwrap();
    assert_eq!((gpus.len(), missing), (1, None));
}
