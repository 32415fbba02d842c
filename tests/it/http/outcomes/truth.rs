//! Headroom follows machines that reserve something else than is predicted.

use std::path::PathBuf;
use std::sync::Arc;

use batchfit::jobs::{FitEngine, Limits};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Service;
use crate::sample::sample;

/// A machine that reserves so much more than is predicted, in parts of it, at its n-th training.
type Truth = fn(u32) -> f64;

/// What happened in some hundreds of trainings.
struct History {
    /// What the answer left free, and what came of it.
    trainings: Vec<(f64, &'static str)>,
}

impl History {
    fn misses(&self, from: usize) -> usize {
        let late = self.trainings[from..].iter();
        late.filter(|(_, outcome)| *outcome != "fits").count()
    }

    fn headroom(&self, training: usize) -> f64 {
        self.trainings[training - 1].0
    }
}

/// Asks for each training again, as launchers do, trains on a machine like that, and tells.
async fn train([card, gpu]: [&str; 2], truth: Truth, trainings: u32) -> History {
    let directory = Arc::new(TempDir::new().unwrap());
    // A simulated card needs no worker.
    let engine = FitEngine::new(PathBuf::from("batchfit"));
    let service = Service::on(directory, engine, Limits::default()).await;
    let request = json!({
        "model": {
            "layers": [{"type": "linear", "out_features": 512}, {"type": "relu"}, {"type": "linear", "out_features": 10}],
            "input": {"shape": [256]}, "loss": "cross_entropy"
        },
        "device": card, "memory_limit": "16GiB",
    })
    .to_string();
    let mut history = History {
        trainings: Vec::new(),
    };
    for number in 0..trainings {
        let fit = service.post_and_wait("/v1/fits", request.clone()).await;
        let fit = fit.json();
        let answer = &fit["result"]["recommendation"];
        let whole = |name: &str| answer[name].as_u64().unwrap();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a byte more or less does not matter"
        )]
        let real = (whole("peak_reserved_bytes") as f64 * (1.0 + truth(number))) as u64;
        let mut outcome = json!({
            "batch": whole("micro_batch"), "outcome": "fits", "peak_reserved_bytes": real, "retries": 0, "steps": 100,
            "environment": {"gpu": gpu, "pytorch": "2.11.0"},
        });
        if real > whole("limit_bytes") {
            outcome["outcome"] = json!("out_of_memory");
            outcome["peak_reserved_bytes"] = Value::Null;
        }
        let told = service
            .tell_outcome(fit["id"].as_str().unwrap(), &outcome)
            .await;
        assert_eq!(told.status, 201, "{}", told.text);
        assert_eq!(told.json()["doubt"], Value::Null);
        let headroom = answer["headroom"]["fraction"].as_f64().unwrap();
        let ended = if real > whole("limit_bytes") {
            "out of memory"
        } else {
            "fits"
        };
        history.trainings.push((headroom, ended));
    }
    history
}

/// Up to one percent less and two percent more than predicted, without chance.
fn noise(training: u32) -> f64 {
    let mixed = (training + 1).wrapping_mul(2_654_435_761) >> 16;
    f64::from(mixed % 3001) / 100_000.0 - 0.01
}

const H200: [&str; 2] = ["sim:h200", "NVIDIA H200"];
const RTX4090: [&str; 2] = ["sim:rtx4090", "NVIDIA GeForce RTX 4090"];

/// What a machine does and which it is, the trainings from and up to which memory may run out at most four times, and within which
/// bounds headroom lies in the end: 3 % more than predicted are 2.91 % of what is reserved.
type Case = (&'static str, [&'static str; 2], Truth, [usize; 2], [f64; 2]);

#[rustfmt::skip]
const CASES: [Case; 6] = [
    ("3 % more, from training 41 on as predicted", H200, |at| if at < 40 { 0.03 } else { 0.0 }, [0, 4], [0.005, 0.005]),
    ("3 % more than predicted", H200, |_| 0.03, [0, 4], [0.0291, 0.036]),
    ("between 1 % less and 2 % more", H200, noise, [0, 50], [0.005, 1.0]),
    ("as predicted, on a card that was not measured", RTX4090, |_| 0.0, [0, 0], [0.005, 0.005]),
    // What fits says what it needed, so that what drifts is followed before memory runs out.
    ("as predicted at first, each time 0.03 % more", H200, |at| f64::from(at) * 0.0003, [0, 0], [0.0565, 0.075]),
    ("as predicted, from training 61 on 3 % more", H200, |at| if at < 60 { 0.0 } else { 0.03 }, [60, 64], [0.0291, 1.0]),
];

#[tokio::test]
async fn headroom_follows_a_biased_truth() {
    let shown = [1, 2, 3, 4, 5, 25, 50, 100, 200];
    println!(
        "| the machine reserves | {} | out of memory |",
        shown.map(|it| it.to_string()).join(" | ")
    );
    for (name, machine, truth, [from, to], [least, most]) in sample(6, CASES) {
        let history = train(machine, truth, 200).await;

        let at = shown.map(|training| format!("{:.2} %", history.headroom(training) * 100.0));
        println!("| {name} | {} | {} |", at.join(" | "), history.misses(0));
        let mut before = history.headroom(1);
        let mut since = 0;
        for (headroom, _) in &history.trainings {
            assert!(*headroom >= 0.005 - 1e-9, "{name}: {headroom}");
            if *headroom < before - 1e-9 {
                assert!(since >= 20, "{name}: sank after {since}");
                since = 0;
            }
            since += 1;
            before = *headroom;
        }
        assert_eq!(history.misses(0), history.misses(from), "{name}");
        assert!(history.misses(from) <= 4, "{name}");
        assert_eq!(history.misses(to), 0, "{name}");
        let last = history.headroom(200);
        assert!(least - 1e-6 < last && last < most + 1e-6, "{name}: {last}");
        let measured = if machine == H200 { 0.0 } else { 0.015 };
        assert!(history.headroom(1) >= measured - 1e-6, "{name}");
    }
}
