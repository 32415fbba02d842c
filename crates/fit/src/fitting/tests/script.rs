//! A device that does as the test says.

use std::borrow::Cow;
use std::sync::Arc;

use crate::fitting::Result;
use crate::fitting::answer::{Devices, answer};
use crate::fitting::engine::{FitSpec, MemoryBudget};
use crate::fitting::probing::runner::{Observer, ProbeOutcome, Runner, RunnerDevice, StepTime};
use crate::fitting::recommendation::headroom::{Uncertainty, VariantHeadroom};
use crate::model::{Checkpointing, Optimizer, Request, RequestDocument, Variant};
use crate::probe::{CategoryBytes, Detail, Evidence, ProbeReport, SpeedFrom, StepMemory, Verdict};
use crate::program::Category;
use crate::search::MAX_BATCH;
use crate::units::Bytes;
use crate::{EngineError, Environment, FitResult, Recommendation, Work};

pub(super) const MIB: u64 = 1 << 20;

/// Needs `fixed + per_sample * batch` MiB, with checkpoints half of `per_sample`, and `accumulating` more with several micro-steps. It reserves
/// `retrying` MiB beyond that, unless retries give them back.
#[derive(Clone)]
pub(super) struct Script {
    pub(super) evidence: Evidence,
    pub(super) fixed: u64,
    pub(super) per_sample: u64,
    pub(super) accumulating: u64,
    pub(super) retrying: u64,
    /// Batches that run out of memory though larger ones do not.
    pub(super) holes: Vec<u64>,
    /// A batch whose steps do not run.
    pub(super) breaks_at: Option<u64>,
    /// How many probes it answers before it is lost.
    pub(super) lost_after: usize,
    pub(super) uncertainties: Vec<Uncertainty>,
    /// What passes through operators taken to be elementwise, for each sample.
    pub(super) assumed_per_sample: Bytes,
    /// Seconds of a micro-step: so many, and so many for each sample, twice that with checkpoints. `None` where it is unknown.
    pub(super) seconds: Option<(f64, f64)>,
    pub(super) asked: Vec<(u32, u64)>,
}

impl Script {
    pub(super) fn new(evidence: Evidence) -> Script {
        Script {
            evidence,
            fixed: 100,
            per_sample: 10,
            accumulating: 0,
            retrying: 100,
            holes: Vec::new(),
            breaks_at: None,
            lost_after: usize::MAX,
            uncertainties: if evidence.is_real() {
                Vec::new()
            } else {
                vec![Uncertainty::Driver, Uncertainty::Lifetimes]
            },
            assumed_per_sample: Bytes::ZERO,
            seconds: evidence.is_real().then_some((0.0, 0.001)),
            asked: Vec::new(),
        }
    }

    /// Seconds of a micro-step.
    fn takes(&self, variant: &Variant, batch: u64) -> Option<f64> {
        let (fixed, per_sample) = self.seconds?;
        let often = match variant.checkpointing {
            Checkpointing::None => 1.0,
            Checkpointing::PerBlock | Checkpointing::Modules(_) => 2.0,
        };
        Some(fixed + often * per_sample * batch as f64)
    }
}

impl Runner for Script {
    fn device(&self) -> RunnerDevice<'_> {
        RunnerDevice {
            name: "cuda:0",
            evidence: self.evidence,
            largest_recorded: None,
            is_lost: self.asked.len() > self.lost_after,
        }
    }

    fn probe(
        &mut self,
        variant: &Variant,
        batch: u64,
        limit: Bytes,
        _detail: Detail,
    ) -> Result<ProbeOutcome> {
        self.asked.push((variant.accumulation, batch));
        if self.device().is_lost {
            return Err(EngineError::DeviceFailed {
                device: "cuda:0".to_owned(),
                cause: "the worker ended (signal: 9 (SIGKILL))".to_owned(),
            });
        }
        let state = u64::from(variant.optimizer != Optimizer::Sgd) * 200;
        let extra = u64::from(variant.accumulation > 1) * self.accumulating;
        let per_sample = match variant.checkpointing {
            Checkpointing::None => self.per_sample,
            Checkpointing::PerBlock | Checkpointing::Modules(_) => self.per_sample / 2,
        };
        let needed = (self.fixed + state + extra + per_sample * batch) * MIB;
        let verdict = if needed > limit.0 || self.holes.contains(&batch) {
            Verdict::OutOfMemory
        } else if self.breaks_at == Some(batch) {
            Verdict::Failed
        } else if needed + self.retrying * MIB > limit.0 {
            Verdict::FitsWithRetries
        } else {
            Verdict::Fits
        };
        let is_timed = self.evidence.is_real() && verdict != Verdict::OutOfMemory;
        let elapsed_ms = self.takes(variant, batch).filter(|_| is_timed);
        let elapsed_ms = elapsed_ms.map(|micro| 1000.0 * micro * f64::from(variant.accumulation));
        let step = StepMemory {
            elapsed_ms,
            ..StepMemory::default()
        };
        let report = ProbeReport {
            peak_allocated_bytes: needed.min(limit.0),
            peak_reserved_bytes: (needed + self.retrying * MIB).min(limit.0),
            model_allocated_bytes: self.fixed * MIB,
            steps: vec![step; 3],
            at_peak: vec![CategoryBytes {
                category: Category::Activations,
                bytes: needed,
            }],
            cause: (verdict == Verdict::OutOfMemory).then(|| "conv1 wants 10 MiB".to_owned()),
            ..ProbeReport::new(batch, verdict, self.evidence, limit)
        };
        Ok(ProbeOutcome {
            report,
            wall_ms: 1.0,
            headroom: VariantHeadroom::default(),
            uncertainties: {
                let assumed = Bytes(self.assumed_per_sample.0 * batch);
                let assumed = Some(Uncertainty::Assumed(assumed)).filter(|_| assumed > Bytes::ZERO);
                self.uncertainties.iter().copied().chain(assumed).collect()
            },
        })
    }

    fn step_time(&mut self, variant: &Variant, batch: u64, steps: u64) -> Result<StepTime> {
        Ok(match self.takes(variant, batch) {
            Some(micro) => StepTime::Seconds(micro * steps as f64, SpeedFrom::Estimated),
            None => StepTime::Unknown("the script does not say"),
        })
    }
}

pub(super) fn simulated() -> Script {
    Script::new(Evidence::Simulated)
}

pub(super) fn real() -> Script {
    Script::new(Evidence::Probed)
}

pub(super) fn sgd() -> Variant {
    Variant {
        optimizer: Optimizer::Sgd,
        accumulation: 1,
        ..Variant::default()
    }
}

/// A card of which the allocator may have so much.
pub(super) fn budget_within(limit: Bytes) -> MemoryBudget {
    MemoryBudget {
        asked: Some(limit),
        available: limit,
        is_of_rank: true,
    }
}

/// What the allocator may have.
pub(super) fn limit(question: &FitSpec<'_>) -> Bytes {
    question
        .budget
        .limit(&question.request.variants[0].parallel)
}

pub(super) fn question() -> FitSpec<'static> {
    let text = br#"{"model": {"preset": "resnet18"}, "device": "sim:h200"}"#;
    let document = RequestDocument::from_json(text).unwrap();
    let mut request = Request::parse(document).unwrap();
    request.variants = vec![sgd()];
    FitSpec {
        request: Cow::Owned(request),
        budget: budget_within(Bytes::mib(1200)),
        ceiling: MAX_BATCH,
        environment: Environment::new("sim:h200", "NVIDIA H200"),
        assumptions: Vec::new(),
        notes: Vec::new(),
    }
}

/// Whether a note has this in it.
pub(super) fn notes(found: &Recommendation, part: &str) -> bool {
    found.notes.iter().any(|note| note.contains(part))
}

pub(super) fn fit(
    question: &FitSpec<'_>,
    simulated: &mut Script,
    real: Option<&mut Script>,
) -> FitResult {
    let cancel = Arc::default();
    let observer = Observer::new(&Work::quiet(&cancel));
    let devices = Devices {
        simulated,
        real: real.map(|real| real as &mut dyn Runner),
    };
    answer(question, devices, &observer).unwrap()
}
