//! Whether a batch stays safe over many steps of different lengths, with short batches and validation between epochs.

mod of_fit;
mod steps;

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::fitting::Result;
use crate::fitting::engine::card;
use crate::limits::Cancel;
use crate::model::{Length, Request, RequestError};
use crate::probe::{SoakReport, Verdict};
use crate::validate::validate_single;

pub(super) use of_fit::last;
use steps::Steps;

/// What came of a soak, and the batch that it leaves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SoakResult {
    /// Samples per micro-step.
    pub batch: u64,
    /// What the allocator may reserve.
    pub limit_bytes: u64,
    /// What came of that batch.
    pub report: SoakReport,
    /// The largest batch up to that one which goes through all steps without a retry, with what it reserves at most; null where
    /// none does. In a fit it leaves headroom, too.
    pub safe: Option<SafeBatch>,
    /// In a fit: where nothing lasts, the step that does not with the smallest batch that was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fails: Option<FailingStep>,
    /// What each step was; not in a fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(ignore)]
    pub order: Vec<SoakStep>,
}

/// The place of a step's length in the list of lengths, and what kind of step it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct SoakStep(usize, StepKind);

/// Kinds of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// An optimizer step.
    Step,
    /// The last optimizer step of an epoch.
    Last,
    /// A batch of validation.
    Validation,
    /// Prompts that are completed.
    Generation,
}

/// A step that keeps a training from lasting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailingStep {
    /// Counted from 1.
    pub step: u64,
    /// What it is.
    pub kind: StepKind,
    /// Samples in it.
    pub batch: u64,
    /// Their length; missing where there is one, and of prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub length: Option<Length>,
}

impl fmt::Display for FailingStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FailingStep { batch, kind, .. } = self;
        match kind {
            StepKind::Step | StepKind::Last => write!(f, "training with a micro-batch of {batch}")?,
            StepKind::Validation => write!(f, "validation with a batch of {batch}")?,
            StepKind::Generation => write!(f, "generation for {batch} prompts at a time")?,
        }
        match self.length {
            Some(length) => write!(f, " at length {length}"),
            None => Ok(()),
        }
    }
}

/// A batch that went through a soak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SafeBatch {
    /// Samples per micro-step.
    pub batch: u64,
    /// Most bytes reserved.
    pub peak_reserved_bytes: u64,
}

impl SafeBatch {
    fn of(batch: u64, report: &SoakReport) -> SafeBatch {
        SafeBatch {
            batch,
            peak_reserved_bytes: report.peak_reserved_bytes,
        }
    }
}

/// The error of a soak on a GPU.
pub(crate) fn on_a_gpu() -> RequestError {
    let problem = "a soak is of a simulated card; name one, such as sim:h200";
    RequestError::at("/device", problem)
}

/// Says why a request cannot be soaked, whatever its device is.
pub(crate) fn check(request: &Request) -> Result<(), RequestError> {
    if let Some(generation) = request.soak.as_ref().and_then(|course| course.generation) {
        // Built once more where it is run; what is wrong with it is said at once.
        request.generating(&generation)?.lower()?;
    }
    let mut variants = request.variants.iter();
    if variants.any(|variant| variant.recorded || !variant.parallel.is_none()) {
        let problem = "a soak is of one process whose model is described: no recordings, no strategy over several GPUs";
        return Err(RequestError::at("/training", problem));
    }
    Ok(())
}

/// Runs the course of a request with this batch: one model on one simulated card, at the lengths that its steps have.
pub fn soak(request: &Request, batch: u64, cancel: &Cancel) -> Result<SoakResult> {
    validate_single(request)?;
    card(request).ok_or_else(on_a_gpu)?;
    check(request)?;
    let course = request.soak.clone().unwrap_or_default();
    let variant = request.variants[0].clone();
    let steps = Steps::prepare(request, course, &variant, batch, cancel)?;
    let report = steps.run(batch)?;
    let fits = |report: &SoakReport| report.verdict == Verdict::Fits;
    let safe = if fits(&report) {
        Some(SafeBatch::of(batch, &report))
    } else {
        largest(batch, &mut |batch| {
            let report = steps.run(batch)?;
            Ok(fits(&report).then(|| SafeBatch::of(batch, &report)))
        })?
    };
    Ok(SoakResult {
        batch,
        limit_bytes: steps.limit().0,
        report,
        safe,
        fails: None,
        order: steps.into_order(),
    })
}

/// The largest batch below `too_large` that is safe: all smaller ones are taken to be where a larger one is.
fn largest(
    mut too_large: u64,
    safe: &mut dyn FnMut(u64) -> Result<Option<SafeBatch>>,
) -> Result<Option<SafeBatch>> {
    let (mut found, mut fits) = (None, 0);
    while too_large - fits > 1 {
        let middle = fits + (too_large - fits) / 2;
        match safe(middle)? {
            Some(batch) => (found, fits) = (Some(batch), middle),
            None => too_large = middle,
        }
    }
    Ok(found)
}
