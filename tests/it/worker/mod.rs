//! What if the child dies, hangs, babbles: the real binary, with a planned failure.

mod faults;
mod fits;
mod ranks;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use batchfit::limits::Cancel;
use batchfit::model::Variant;
use batchfit::probe::{ProbeReport, Verdict};
use batchfit::worker::{
    Activity, Caller, Deadlines, GpuLock, Loss, Opening, ProbeOrder, Ready, Refusal, Supervisor,
    WorkerCommand, WorkerError, WorkerStats,
};

use crate::wait::{self, HANG};

/// None that a worker of the slowest machine misses.
const DEADLINES: Deadlines = Deadlines {
    start: HANG,
    open: HANG,
    probe: HANG,
    turn: HANG,
    end: HANG,
    left_alone: HANG,
};

/// For workers of which each hangs in its probe.
const HANGING: Deadlines = Deadlines {
    probe: Duration::from_millis(100),
    ..DEADLINES
};

/// What comes of workers of which one hangs in its probe. A slow machine may miss the deadline that ends it with the one that takes its
/// place, too, and gets ten times as long then.
fn after_a_hang<T>(attempt: impl Fn(Deadlines) -> Result<T, WorkerError>) -> T {
    let mut deadlines = HANGING;
    loop {
        match attempt(deadlines) {
            Err(WorkerError::Lost {
                loss: Loss::TimedOut(within),
                ..
            }) if within < HANG / 10 => deadlines.probe *= 10,
            ended => return ended.unwrap(),
        }
    }
}

/// Somebody who waits for every answer and listens to nothing.
const CALLER: Caller<'static> = Caller {
    cancel: &Cancel::NEVER,
    notice: &|_| {},
};

fn launch(arguments: &[&str]) -> WorkerCommand {
    let arguments = ["worker", "--misbehave"].iter().chain(arguments);
    WorkerCommand {
        program: PathBuf::from(env!("CARGO_BIN_EXE_batchfit")),
        arguments: arguments.map(Into::into).collect(),
    }
}

fn opening() -> Opening {
    Opening {
        devices: vec!["sim:h200".to_owned()],
        together: false,
        request: "{}".to_owned(),
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

fn open(launch: WorkerCommand) -> Result<(Supervisor, Ready), WorkerError> {
    open_within(DEADLINES, launch)
}

fn open_within(
    deadlines: Deadlines,
    launch: WorkerCommand,
) -> Result<(Supervisor, Ready), WorkerError> {
    Supervisor::open(launch, opening(), deadlines, CALLER)
}

fn probe(supervisor: &mut Supervisor, batch: u64) -> Result<ProbeReport, WorkerError> {
    supervisor.probe(&order(batch), CALLER)
}

/// The error of a probe by a worker that misbehaves each time.
fn failure(misbehaviour: &str) -> WorkerError {
    let deadlines = if misbehaviour == "hang" {
        HANGING
    } else {
        DEADLINES
    };
    let (mut supervisor, _) = open_within(deadlines, launch(&[misbehaviour])).unwrap();
    probe(&mut supervisor, 8).unwrap_err()
}

/// The report of a probe by a worker whose predecessor misbehaved.
fn recovery(misbehaviour: &str, deadlines: Deadlines) -> Result<ProbeReport, WorkerError> {
    let directory = tempfile::tempdir().unwrap();
    let once = directory.path().join("misbehaved");
    let arguments = [misbehaviour, "--once", once.to_str().unwrap()];
    let (mut supervisor, _) = open_within(deadlines, launch(&arguments)).unwrap();

    let report = probe(&mut supervisor, 8);

    assert!(once.exists(), "nothing misbehaved");
    report
}

#[test]
fn a_worker_that_behaves_answers_every_probe() {
    let (mut supervisor, ready) = open(launch(&["none"])).unwrap();

    assert_eq!(ready.gpu.name, "Fake GPU");
    assert_eq!(probe(&mut supervisor, 64).unwrap().verdict, Verdict::Fits);
    let above = probe(&mut supervisor, 65).unwrap();
    assert_eq!((above.batch, above.verdict), (65, Verdict::OutOfMemory));
}

#[test]
fn a_worker_that_dies_is_replaced_and_the_probe_repeated() {
    let report = recovery("exit-after=3", DEADLINES).unwrap();

    assert_eq!((report.batch, report.verdict), (8, Verdict::Fits));
}

#[test]
fn a_worker_that_fails_in_another_way_is_replaced() {
    for misbehaviour in [
        // While opening.
        "exit-after=1",
        "exit-after=2",
        "babble",
        "half-line",
        "huge-line",
        "panic",
        "lose",
    ] {
        recovery(misbehaviour, DEADLINES).unwrap();
    }
    after_a_hang(|deadlines| recovery("hang", deadlines));
}

#[test]
fn the_second_death_is_reported_with_its_status_and_last_words() {
    let error = failure("exit-after=3");

    let WorkerError::Lost {
        activity,
        loss,
        stderr,
        ..
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
            "the worker did not answer within 0.1 s while probing batch 8",
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
        (
            "panic",
            "the worker gave up (panicked: planned) while probing batch 8",
        ),
        (
            "lose",
            "the worker gave up (CUDA_ERROR_ILLEGAL_ADDRESS (planned)) while probing batch 8",
        ),
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
        "the worker speaks version 8 of the protocol instead of 7 while starting"
    );
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let missing = WorkerCommand {
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
fn a_cancelled_probe_ends_though_its_worker_hangs() {
    let cancel = Cancel::default();
    let (mut supervisor, _) = open(launch(&["hang"])).unwrap();

    let ended = thread::scope(|scope| {
        let probe = scope.spawn(|| {
            let notice = &|_: &str| {};
            let cancel = &cancel;
            supervisor.probe(&order(8), Caller { cancel, notice })
        });
        cancel.cancel();
        probe.join().unwrap()
    });

    assert!(matches!(ended, Err(WorkerError::Cancelled)), "{ended:?}");
}

#[test]
fn a_real_worker_probes_a_simulated_card() {
    let layers = serde_json::json!([{"type": "linear", "out_features": 10}]);
    let model =
        serde_json::json!({"layers": layers, "input": {"shape": [64]}, "loss": "cross_entropy"});
    let opening = Opening {
        devices: vec!["sim:t4".to_owned()],
        together: false,
        request: serde_json::json!({"model": model, "device": "sim:t4"}).to_string(),
    };
    let real = WorkerCommand::this_binary(PathBuf::from(env!("CARGO_BIN_EXE_batchfit")));

    let (mut supervisor, ready) = Supervisor::open(real, opening, DEADLINES, CALLER).unwrap();
    let report = probe(&mut supervisor, 8).unwrap();

    assert_eq!(ready.gpu.name, "Tesla T4");
    assert_eq!((report.batch, report.verdict), (8, Verdict::Fits));
    // 640 weights and 10 biases of four bytes, in blocks of 512.
    assert_eq!(report.model_allocated_bytes, 2560 + 512);
}

#[test]
fn a_request_that_is_wrong_is_refused_by_the_worker() {
    let real = WorkerCommand::this_binary(PathBuf::from(env!("CARGO_BIN_EXE_batchfit")));

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
    let listed = Supervisor::list(&launch(&["none"]), DEADLINES, &Cancel::NEVER);

    let (gpus, missing) = listed.unwrap();
    assert_eq!((gpus.len(), missing), (1, None));
}

#[test]
fn gpus_are_listed_by_another_worker_where_the_first_is_lost() {
    for answers in ["exit-after=1", "exit-after=2"] {
        let directory = tempfile::tempdir().unwrap();
        let once = directory.path().join("misbehaved");
        let first = launch(&[answers, "--once", once.to_str().unwrap()]);

        let listed = Supervisor::list(&first, DEADLINES, &Cancel::NEVER);

        assert_eq!(listed.unwrap().0.len(), 1, "{answers}");
        assert!(once.exists(), "{answers}");
    }
    let lost = Supervisor::list(&launch(&["exit-after=1"]), DEADLINES, &Cancel::NEVER).unwrap_err();
    assert!(lost.to_string().contains("(exit status: 9)"), "{lost}");
}

#[test]
fn what_the_workers_cost_is_counted() {
    let (mut supervisor, _) = open(launch(&["lose"])).unwrap();
    let one = supervisor.account();

    probe(&mut supervisor, 8).unwrap_err();

    assert_eq!((one.workers, one.waited), (1, Duration::ZERO));
    assert!(one.start > Duration::ZERO);
    assert_eq!(supervisor.account().workers, 2);
}

/// A fake GPU that takes turns in this directory.
fn in_turn(directory: &Path) -> WorkerCommand {
    launch(&["take-turns", "--locks", directory.to_str().unwrap()])
}

/// What another process would hold.
fn lock_of_another_process(directory: &Path) -> GpuLock {
    GpuLock::take(directory, "GPU-fake", Duration::ZERO).unwrap()
}

#[test]
fn a_worker_waits_for_its_turn_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let theirs = Mutex::new(Some(lock_of_another_process(directory.path())));
    let said = Mutex::new(Vec::new());
    let notice = |note: &str| {
        said.lock().unwrap().push(note.to_owned());
        theirs.lock().unwrap().take();
    };
    let caller = Caller {
        notice: &notice,
        ..CALLER
    };

    let opened = Supervisor::open(in_turn(directory.path()), opening(), DEADLINES, caller);

    let WorkerStats {
        workers, waited, ..
    } = opened.unwrap().0.account();
    assert_eq!(workers, 1);
    assert!(waited > Duration::ZERO);
    let said = said.lock().unwrap();
    assert!(
        said[0].starts_with("waiting: another batchfit process is using this GPU (it holds "),
        "{said:?}"
    );
}

#[test]
fn a_worker_holds_its_turn_until_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (mut supervisor, _) = open(in_turn(directory.path())).unwrap();
    probe(&mut supervisor, 8).unwrap();

    let meanwhile = GpuLock::take(directory.path(), "GPU-fake", Duration::ZERO);
    drop(supervisor);
    let afterwards = GpuLock::take(directory.path(), "GPU-fake", Duration::ZERO);

    assert!(meanwhile.is_err() && afterwards.is_ok());
}

#[test]
fn a_turn_that_never_comes_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let _theirs = lock_of_another_process(directory.path());
    let impatient = Deadlines {
        turn: Duration::from_millis(1),
        ..DEADLINES
    };

    let waiting = Supervisor::open(in_turn(directory.path()), opening(), impatient, CALLER);

    let error = waiting.unwrap_err();
    assert!(matches!(error, WorkerError::Busy { .. }), "{error}");
}

#[test]
fn waiting_for_a_turn_can_be_cancelled() {
    let directory = tempfile::tempdir().unwrap();
    let _theirs = lock_of_another_process(directory.path());
    let cancel = Cancel::default();
    let caller = Caller {
        cancel: &cancel,
        notice: &|_| cancel.cancel(),
    };

    let ended = Supervisor::open(in_turn(directory.path()), opening(), DEADLINES, caller);

    assert!(matches!(ended, Err(WorkerError::Cancelled)));
}

#[test]
fn a_device_without_room_is_an_answer() {
    let (_, ready) = open(launch(&["no-room"])).unwrap();

    assert_eq!(ready.no_room.as_deref(), Some("all is taken"));
    assert_eq!(ready.available_bytes, 0);
}

/// Whoever inherited its pipes may hold them open for as long as it likes.
#[test]
fn a_worker_that_leaves_its_pipes_to_another_process_is_given_up() {
    let launch = WorkerCommand {
        program: PathBuf::from("/bin/sh"),
        arguments: ["-c", "sleep 600 & exit 9"].map(Into::into).to_vec(),
    };
    let impatient = Deadlines {
        start: Duration::from_millis(50),
        ..DEADLINES
    };

    let opened = thread::spawn(move || open_within(impatient, launch));
    wait::until("a worker that left its pipes to be given up", || {
        opened.is_finished()
    });

    let error = opened.join().unwrap().unwrap_err();
    assert!(matches!(error, WorkerError::Lost { .. }), "{error}");
}
