//! Faults in the middle of a real worker's probe, on a simulated card.

use std::io::Write as _;
use std::process::{Command, Stdio};

use batchfit::worker::Fault;
use batchfit::worker::protocol::Order;

use super::*;

fn faulty(fault: &str, once: Option<&Path>, deadlines: Deadlines) -> Supervisor {
    let mut arguments = vec!["worker".into(), "--fault".into(), fault.into()];
    if let Some(once) = once {
        arguments.extend(["--fault-once".into(), once.into()]);
    }
    let launch = WorkerCommand {
        program: PathBuf::from(env!("CARGO_BIN_EXE_batchfit")),
        arguments,
    };
    let layers = serde_json::json!([{"type": "linear", "out_features": 10}]);
    let model =
        serde_json::json!({"layers": layers, "input": {"shape": [64]}, "loss": "cross_entropy"});
    let opening = Opening {
        devices: vec!["sim:t4".to_owned()],
        together: false,
        request: serde_json::json!({"model": model, "device": "sim:t4"}).to_string(),
    };
    Supervisor::open(launch, opening, deadlines, CALLER)
        .unwrap()
        .0
}

#[test]
fn a_probe_that_is_hit_once_is_repeated_by_another_worker() {
    let hit = |fault, deadlines| -> Result<(), WorkerError> {
        let directory = tempfile::tempdir().unwrap();
        let once = directory.path().join("struck");
        let mut supervisor = faulty(fault, Some(&once), deadlines);

        let report = probe(&mut supervisor, 8)?;

        assert_eq!(report.verdict, Verdict::Fits, "{fault}");
        assert!(once.exists(), "{fault} was not injected");
        assert_eq!(supervisor.account().workers, 2, "{fault}");
        Ok(())
    };
    for fault in ["exit", "kill"] {
        hit(fault, DEADLINES).unwrap();
    }
    after_a_hang(|deadlines| hit("hang", deadlines));
}

#[test]
fn a_probe_that_is_hit_again_fails_with_its_cause() {
    let shown = [
        ("exit", DEADLINES, "the worker ended (exit status: 9)"),
        ("kill", DEADLINES, "the worker ended (signal: 9 (SIGKILL))"),
        ("hang", HANGING, "the worker did not answer within 0.1 s"),
    ];

    for (fault, deadlines, cause) in shown {
        let error = probe(&mut faulty(fault, None, deadlines), 8).unwrap_err();
        assert_eq!(error.to_string(), format!("{cause} while probing batch 8"));
    }
}

#[test]
fn a_pause_changes_nothing() {
    let mut supervisor = faulty("pause=0", None, DEADLINES);

    assert_eq!(probe(&mut supervisor, 8).unwrap().verdict, Verdict::Fits);
    assert_eq!(supervisor.account().workers, 1);
}

#[test]
fn an_unknown_fault_is_refused() {
    let refused = "meltdown".parse::<Fault>().unwrap_err();

    assert_eq!(
        refused.to_string(),
        "`meltdown` is none of exit, kill, hang, pause=SECONDS, illegal-access"
    );
}

#[test]
fn a_worker_whose_parent_is_gone_ends_though_its_probe_hangs() {
    let mut worker = Command::new(env!("CARGO_BIN_EXE_batchfit"))
        .args(["worker", "--misbehave", "hang"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut orders = worker.stdin.take().unwrap();
    let probe = serde_json::to_string(&Order::Probe(order(8))).unwrap();
    writeln!(orders, "{probe}").unwrap();

    drop(orders);

    let end = "a worker without a parent to end";
    let status = wait::until_some(end, || worker.try_wait().unwrap());
    assert!(status.success(), "{status}");
}
