//! Several ranks, a worker each: what becomes of the others when one is lost.

use std::fs;

use super::*;
use batchfit::limits::Cancel;

const RANKS: usize = 3;

fn together(arguments: &[&str]) -> Result<(Supervisor, Ready), WorkerError> {
    together_within(DEADLINES, arguments)
}

fn together_within(
    deadlines: Deadlines,
    arguments: &[&str],
) -> Result<(Supervisor, Ready), WorkerError> {
    let opening = Opening {
        devices: vec!["sim:h200".to_owned(); RANKS],
        together: true,
        ..opening()
    };
    Supervisor::open(launch(arguments), opening, deadlines, CALLER)
}

/// How many workers with this among their arguments live.
fn alive(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let arguments = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let is_ours = |arguments: &Vec<u8>| {
        let arguments = String::from_utf8_lossy(arguments);
        arguments.contains("--misbehave") && arguments.contains(mark)
    };
    arguments.filter(is_ours).count()
}

#[test]
fn ranks_report_together() {
    let (mut supervisor, ready) = together(&["none"]).unwrap();

    let report = probe(&mut supervisor, 8).unwrap();
    let above = probe(&mut supervisor, 65).unwrap();

    assert_eq!(ready.available_bytes, 8 << 30);
    assert_eq!((report.batch, report.verdict), (8, Verdict::Fits));
    let ranks: Vec<u32> = report.ranks.iter().map(|rank| rank.rank).collect();
    assert_eq!(ranks, [0, 1, 2]);
    assert_eq!(report.notes.len(), 1);
    // All of them said so at once, and are there for the next probe.
    assert_eq!(above.verdict, Verdict::OutOfMemory);
    assert_eq!(above.ranks.len(), RANKS);
    assert_eq!(supervisor.account().workers, 3);
}

#[test]
fn a_rank_that_is_lost_once_costs_all_workers_and_no_answer() {
    let recovery = |misbehaviour: &str, deadlines| -> Result<(), WorkerError> {
        let directory = tempfile::tempdir().unwrap();
        let once = directory.path().join("misbehaved");
        let arguments = [misbehaviour, "--once", once.to_str().unwrap()];
        let (mut supervisor, _) = together_within(deadlines, &arguments).unwrap();

        let report = probe(&mut supervisor, 8)?;

        assert_eq!(report.verdict, Verdict::Fits, "{misbehaviour}");
        assert_eq!(report.ranks.len(), RANKS, "{misbehaviour}");
        assert!(once.exists(), "{misbehaviour}");
        assert_eq!(alive(once.to_str().unwrap()), RANKS, "{misbehaviour}");
        drop(supervisor);
        assert_eq!(alive(once.to_str().unwrap()), 0, "{misbehaviour}");
        Ok(())
    };
    for misbehaviour in ["abort", "lose", "panic", "exit-after=3", "exit-after=4"] {
        recovery(misbehaviour, DEADLINES).unwrap();
    }
    after_a_hang(|deadlines| recovery("hang", deadlines));
}

#[test]
fn the_rank_that_is_lost_again_is_named() {
    let (mut supervisor, _) = together(&["abort"]).unwrap();

    let error = probe(&mut supervisor, 8).unwrap_err().to_string();

    assert!(
        error.starts_with("the worker of rank ") && error.contains(" ended (signal: 6 (SIGABRT)"),
        "{error}"
    );
    assert_eq!(supervisor.account().workers, 6);
}

#[test]
fn a_rank_out_of_memory_is_the_answer_though_the_others_wait_for_it_for_ever() {
    let alone = Deadlines {
        left_alone: Duration::ZERO,
        ..DEADLINES
    };
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().to_str().unwrap();
    let arguments = ["out-of-memory-alone", "--locks", mark];
    let (mut supervisor, _) = together_within(alone, &arguments).unwrap();

    let report = probe(&mut supervisor, 8).unwrap();

    assert_eq!(report.verdict, Verdict::OutOfMemory);
    let ranks: Vec<u32> = report.ranks.iter().map(|rank| rank.rank).collect();
    assert_eq!(ranks, [2]);
    assert_eq!(alive(mark), 0);
    // That is an answer, and costs no replacement: the next probe finds all again.
    assert_eq!(
        probe(&mut supervisor, 8).unwrap().verdict,
        Verdict::OutOfMemory
    );
    assert_eq!(supervisor.account().workers, 6);
}

#[test]
fn ranks_without_room_do_not_wait_for_each_other() {
    let (supervisor, ready) = together(&["no-room"]).unwrap();

    assert_eq!(ready.no_room.as_deref(), Some("all is taken"));
    assert_eq!(supervisor.account().workers, 3);
}

#[test]
fn a_cancelled_probe_ends_all_ranks() {
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().to_str().unwrap();
    let (mut supervisor, _) = together(&["hang", "--locks", mark]).unwrap();
    let cancel = Cancel::default();
    cancel.cancel();
    let caller = Caller {
        cancel: &cancel,
        ..CALLER
    };

    let ended = supervisor.probe(&order(8), caller);

    assert!(matches!(ended, Err(WorkerError::Cancelled)));
    assert_eq!(alive(mark), 0);
}

/// Real workers on simulated cards: under ZeRO-1 each has another part of the optimizer's state.
#[test]
fn ranks_run_their_own_part() {
    let layers = serde_json::json!([
        {"type": "linear", "out_features": 1024},
        {"type": "linear", "out_features": 10},
    ]);
    let model =
        serde_json::json!({"layers": layers, "input": {"shape": [64]}, "loss": "cross_entropy"});
    let training = serde_json::json!({"optimizer": "adamw", "parallel": {"strategy": "zero1", "world_size": 2}});
    let request = serde_json::json!({"model": model, "device": "sim:t4", "training": training});
    let document =
        batchfit::model::RequestDocument::from_json(request.to_string().as_bytes()).unwrap();
    let parsed = batchfit::model::Request::parse(document).unwrap();
    let opening = Opening {
        devices: vec!["sim:t4".to_owned(); 2],
        together: true,
        request: request.to_string(),
    };
    let real = WorkerCommand::this_binary(PathBuf::from(env!("CARGO_BIN_EXE_batchfit")));
    let (mut supervisor, _) = Supervisor::open(real, opening, DEADLINES, CALLER).unwrap();
    let order = ProbeOrder {
        variant: parsed.variants[0].clone(),
        ..order(8)
    };

    let report = supervisor.probe(&order, CALLER).unwrap();

    let peaks: Vec<u64> = report
        .ranks
        .iter()
        .map(|rank| rank.peak_allocated_bytes)
        .collect();
    // 65,536 weights are the first rank's, 11,274 other parameters the second's: two moments of four bytes each, but for
    // what blocks are rounded by.
    assert!(peaks[0] > peaks[1] + (65_536 - 11_274) * 7, "{peaks:?}");
    assert_eq!(report.peak_allocated_bytes, peaks[0]);
}
