//! An engine that does what the test says.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use batchfit::jobs::{
    Catalogue, Engine, EngineError, Environment, FitResult, Headroom, Isolation, Progress,
    Recommendation, VariantResult, Work,
};
use batchfit::limits::Cancel;
use batchfit::model::{Request, Variant};
use batchfit::probe::{Detail, Evidence, ProbeReport, SpeedFrom, StepMemory, Verdict};
use batchfit::units::{Bytes, Share};
use tokio::sync::Semaphore;

use crate::wait;

/// What a fit does once it is let through.
#[derive(Debug, Clone, Default)]
pub(super) enum Outcome {
    /// Answers.
    #[default]
    Answers,
    /// Fails like this.
    Fails(EngineError),
    /// Panics.
    Panics,
    /// Notices neither cancellation nor anything else, ever.
    Hangs,
}

/// The engine.
#[derive(Clone)]
pub(super) struct Scripted {
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) outcome: Outcome,
    pub(super) gate: Option<Arc<Gate>>,
    /// How many probes more it tells of, once it is let through.
    pub(super) probes: u32,
    /// How often a fit was begun.
    pub(super) fits: Arc<AtomicU32>,
    /// The probes that arrived: the batch of each, and how much it yields to other threads.
    pub(super) probed: Arc<Mutex<Vec<(u64, i32)>>>,
    /// How many of them in a process of their own, so to say.
    pub(super) apart: Arc<AtomicU32>,
}

/// Holds fits back until it is opened.
pub(super) struct Gate {
    open: AtomicBool,
    /// One permit for each fit or probe that has arrived.
    arrived: Semaphore,
    /// One permit for each that noticed that it was cancelled.
    cancelled: Semaphore,
}

impl Gate {
    pub(super) fn closed() -> Arc<Gate> {
        Arc::new(Gate {
            open: AtomicBool::new(false),
            arrived: Semaphore::new(0),
            cancelled: Semaphore::new(0),
        })
    }

    /// Waits until a fit or a probe that was held back here was cancelled.
    pub(super) async fn cancellation(&self) {
        let cancelled = self.cancelled.acquire();
        let permit = wait::for_future("a fit or a probe to be cancelled", cancelled).await;
        permit.unwrap().forget();
    }

    /// Waits until a fit or a probe is held back here.
    pub(super) async fn arrival(&self) {
        let permit = wait::for_future("a fit or a probe to begin", self.arrived.acquire()).await;
        permit.unwrap().forget();
    }

    pub(super) fn open(&self) {
        self.open.store(true, Ordering::Relaxed);
    }

    /// False when the fit was cancelled first.
    fn pass(&self, cancel: &Cancel) -> bool {
        self.arrived.add_permits(1);
        // An engine polls for cancellation; so does this one.
        wait::until("a gate to open, or a cancellation", || {
            self.open.load(Ordering::Relaxed) || cancel.is_cancelled()
        });
        let is_open = self.open.load(Ordering::Relaxed);
        if !is_open {
            self.cancelled.add_permits(1);
        }
        is_open
    }
}

impl Default for Scripted {
    fn default() -> Scripted {
        Scripted {
            catalogue: Arc::new(Catalogue::without_gpus("no NVIDIA driver was found")),
            outcome: Outcome::default(),
            gate: None,
            probes: 0,
            fits: Arc::default(),
            probed: Arc::default(),
            apart: Arc::default(),
        }
    }
}

impl Scripted {
    pub(super) fn behind(gate: &Arc<Gate>) -> Scripted {
        Scripted {
            gate: Some(Arc::clone(gate)),
            ..Scripted::default()
        }
    }

    pub(super) fn that(outcome: Outcome) -> Scripted {
        Scripted {
            outcome,
            ..Scripted::default()
        }
    }
}

impl Engine for Scripted {
    fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    fn fit(
        &self,
        request: &Request,
        isolation: Isolation,
        work: &Work<'_>,
    ) -> Result<FitResult, EngineError> {
        if isolation == Isolation::OwnProcess {
            self.apart.fetch_add(1, Ordering::Relaxed);
        }
        self.fits.fetch_add(1, Ordering::Relaxed);
        (work.progress)(Progress {
            probes_done: 1,
            batch: 64,
            note: "simulating".to_owned(),
        });
        if let Some(gate) = &self.gate
            && !gate.pass(work.cancel)
        {
            return Err(EngineError::Cancelled);
        }
        for probe in 0..self.probes {
            (work.progress)(Progress {
                probes_done: 2 + probe,
                batch: 64,
                note: "simulating".to_owned(),
            });
        }
        match &self.outcome {
            Outcome::Answers => Ok(result(request)),
            Outcome::Fails(error) => Err(error.clone()),
            Outcome::Panics => panic!("the script says so"),
            Outcome::Hangs => loop {
                std::thread::park();
            },
        }
    }

    fn probe(
        &self,
        _: &Request,
        batch: u64,
        _: Detail,
        cancel: &Cancel,
    ) -> Result<ProbeReport, EngineError> {
        let niceness = rustix::process::getpriority_process(None).unwrap();
        self.probed.lock().unwrap().push((batch, niceness));
        if let Some(gate) = &self.gate
            && !gate.pass(cancel)
        {
            return Err(EngineError::Cancelled);
        }
        if matches!(self.outcome, Outcome::Hangs) {
            loop {
                std::thread::park();
            }
        }
        let step = StepMemory {
            peak_allocated_bytes: batch << 20,
            peak_reserved_bytes: batch << 21,
            allocated_bytes: 1 << 20,
            ..StepMemory::default()
        };
        Ok(ProbeReport {
            peak_allocated_bytes: batch << 20,
            peak_reserved_bytes: batch << 21,
            model_allocated_bytes: 1 << 20,
            steps: vec![step; 3],
            ..ProbeReport::new(batch, Verdict::Fits, Evidence::Simulated, Bytes::gib(12))
        })
    }
}

/// An answer with a variant for each of the request's.
pub(super) fn result(request: &Request) -> FitResult {
    let recommendation = Recommendation {
        fits: Some(true),
        micro_batch: 256,
        accumulation_steps: 4,
        global_batch: 1024,
        shortfall: 0,
        max_batch: 460,
        max_batch_steady: 256,
        max_batch_without_retries: 256,
        peak_allocated_bytes: 11 << 30,
        peak_reserved_bytes: (11 << 30) + (1 << 29),
        limit_bytes: 12 << 30,
        headroom_bytes: 1 << 29,
        headroom: Headroom {
            fraction: request.headroom.map_or(0.01, Share::fraction),
            ..Headroom::default()
        },
        limited_by: "activations of layer1.0.conv1".to_owned(),
        why: None,
        evidence: Evidence::Simulated,
        step_ms: Some(100.0),
        optimizer_step_ms: Some(400.0),
        samples_per_second: Some(2560.0),
        speed_from: Some(SpeedFrom::Calibrated),
        missing_bytes: None,
        host_bytes: 0,
        exactly: None,
        next_batch: None,
        parallel: None,
        notes: Vec::new(),
    };
    let variants: Vec<Variant> = request.variants.clone();
    let variants = (1..).zip(variants).map(|(rank, training)| VariantResult {
        rank,
        cost: None,
        recomputes: 0.0,
        pareto: Some(rank == 1),
        training,
        recommendation: recommendation.clone(),
    });
    let environment = Environment {
        cudnn: Some("9.19".to_owned()),
        batchfit: "0.1.0".to_owned(),
        pytorch: "2.11".to_owned(),
        ..Environment::new(request.device.to_string(), "NVIDIA H200")
    };
    FitResult::of(variants.collect(), environment)
}
