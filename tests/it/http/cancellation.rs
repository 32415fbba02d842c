//! How soon a thread is free again when its fit is cancelled, whatever it is doing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batchfit::jobs::{
    DeviceSummary, Engine, EngineError, FitEngine, FitResult, Limits, Progress, Runs,
};
use batchfit::model::Request;
use batchfit::probe::ProbeReport;
use batchfit::search::conversation::Foreseen;
use serde_json::json;
use tempfile::TempDir;

use super::{DEADLINE, Service};

/// How many fits are cancelled.
const CANCELLED: u64 = 100;

/// The engine, and when it was done with a fit last.
struct Watched {
    engine: FitEngine,
    begun: Arc<AtomicBool>,
    /// How many steps it told of.
    steps: Arc<AtomicU64>,
    /// When it was done, and what it was doing before.
    done: Arc<Mutex<Option<(Instant, String)>>>,
}

impl Engine for Watched {
    fn fit(
        &self,
        request: &Request,
        progress: &dyn Fn(Progress),
        cancel: &Arc<AtomicBool>,
    ) -> Result<FitResult, EngineError> {
        self.begun.store(true, Ordering::Relaxed);
        let last = Mutex::new("reading the model".to_owned());
        let progress = |step: Progress| {
            last.lock().unwrap().clone_from(&step.note);
            self.steps.fetch_add(1, Ordering::Relaxed);
            progress(step);
        };
        let outcome = self.engine.fit(request, &progress, cancel);
        let last = last.into_inner().unwrap();
        *self.done.lock().unwrap() = Some((Instant::now(), last));
        outcome
    }

    fn fit_apart(
        &self,
        request: &Request,
        progress: &dyn Fn(Progress),
        cancel: &Arc<AtomicBool>,
    ) -> Result<FitResult, EngineError> {
        self.fit(request, progress, cancel)
    }

    fn probe(
        &self,
        request: &Request,
        batch: u64,
        cancel: &Arc<AtomicBool>,
    ) -> Result<ProbeReport, EngineError> {
        self.engine.probe(request, batch, cancel)
    }

    fn foresee(
        &self,
        request: &Request,
        runs: &Runs,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Foreseen, EngineError> {
        self.engine.foresee(request, runs, cancel)
    }

    fn devices(&self) -> Vec<DeviceSummary> {
        self.engine.devices()
    }
}

/// A question of some seconds, other than the last: large models, many variants, many ranks.
fn question(number: u64) -> String {
    let models = [
        json!({"preset": "resnet152"}),
        json!({"preset": "gpt2", "seq_len": 1024}),
        json!({"preset": "unet"}),
        json!({"preset": "vgg16_bn"}),
        json!({"preset": "resnet50", "image_size": 512}),
    ];
    let at = usize::try_from(number).unwrap() % models.len();
    let has_blocks = [true, true, false, false, true][at];
    let training = json!({
        "precision": ["fp32", "amp_fp16", "amp_bf16"],
        "optimizer": ["sgd", "adam", "adamw"],
        "checkpointing": if has_blocks { vec!["none", "per_block"] } else { vec!["none"] },
    });
    json!({
        "model": models[at],
        "training": training,
        "device": "sim:h200",
        "memory_limit": (60 << 30) + number * (8 << 20),
        "compare": "across_optimizers",
    })
    .to_string()
}

/// Prints how long it took: `cargo test --release --test it cancelled_fits -- --nocapture`.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_fits_leave_their_threads() {
    let (begun, done) = (Arc::<AtomicBool>::default(), Arc::default());
    let steps = Arc::<AtomicU64>::default();
    let engine = Watched {
        engine: FitEngine::new("/nowhere/batchfit".into()),
        begun: Arc::clone(&begun),
        steps: Arc::clone(&steps),
        done: Arc::clone(&done),
    };
    let directory = Arc::new(TempDir::new().unwrap());
    let service = Service::on(directory, engine, Limits::default()).await;

    let mut took = Vec::new();
    let mut answered_first = 0;
    for number in 0..CANCELLED {
        begun.store(false, Ordering::Relaxed);
        steps.store(0, Ordering::Relaxed);
        *done.lock().unwrap() = None;
        let fit = service.post("/v1/fits", question(number)).await;
        assert_eq!(fit.status, 202, "{}", fit.text);
        let deadline = Instant::now() + DEADLINE;
        while !begun.load(Ordering::Relaxed) {
            assert!(Instant::now() < deadline, "the fit never began");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Each after another number of steps, however fast the machine is, and somewhere within the step.
        while steps.load(Ordering::Relaxed) < number * 37 % 50 && done.lock().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the fit made no steps");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(number % 5)).await;
        let asked = Instant::now();
        let cancelled = service.delete(fit.header("location")).await;
        if cancelled.status == 409 {
            answered_first += 1;
            continue;
        }
        let (when, doing) = loop {
            if let Some(done) = done.lock().unwrap().take() {
                break done;
            }
            assert!(Instant::now() < deadline, "the thread never ended");
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        took.push((when.saturating_duration_since(asked), doing));
    }

    took.sort();
    let at = |part: usize| took[(took.len() - 1) * part / 100].0;
    let mut phases: Vec<_> = took.iter().map(|(_, doing)| doing.as_str()).collect();
    phases.sort_unstable();
    phases.dedup();
    let (longest, doing) = took.last().unwrap();
    println!(
        "{} fits cancelled, {answered_first} answered before: thread free after {:?} (median), {:?} (99 of 100), {longest:?} \
         (longest, while {doing:?}); {} different things were being done",
        took.len(),
        at(50),
        at(99),
        phases.len()
    );
    assert!(took.len() >= 80, "{answered_first} were answered first");
}
