//! Whether a batch stays safe over many steps of different lengths, with short batches and validation between epochs.

mod of_fit;
mod safety;
mod steps;

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::fitting::Result;
use crate::fitting::engine::card;
use crate::fitting::recommendation::headroom::VariantHeadroom;
use crate::limits::Cancel;
use crate::model::{Length, Request, RequestError};
use crate::probe::{PeakMemory, SoakReport, StepOutcome};
use crate::search::{Goal, Search};
use crate::validate::validate_single;

pub(super) use of_fit::last;
use safety::Safety;
use steps::Steps;

/// Most batches that are soaked to find one that is safe; a gallop and a bisection take fewer.
const MOST_BATCHES: u64 = 32;

/// What came of a soak, and the batch that it leaves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SoakResult {
    /// Samples per micro-step.
    pub batch: u64,
    /// What the allocator may reserve.
    pub limit_bytes: u64,
    /// What came of that batch.
    pub report: SoakReport,
    /// The largest batch up to that one that was found to last: it goes through all steps without a retry after the second and leaves
    /// headroom, and so does a step of the longest length alone; with what it reserves at most. Null where none does.
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
    fn of(batch: u64, peaks: PeakMemory) -> SafeBatch {
        SafeBatch {
            batch,
            peak_reserved_bytes: peaks.peak_reserved_bytes,
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
    let safety = Safety {
        longest: request.alone(),
        kept: VariantHeadroom::of(request, &variant),
        cancel,
    };
    let safe = |batch: u64, report: &SoakReport| -> Result<_> {
        let found = safety.lasts(&steps, &variant, batch, report)?;
        Ok(found.map(|peaks| SafeBatch::of(batch, peaks)))
    };
    let report = steps.run(batch)?;
    let safe = match safe(batch, &report)? {
        Some(as_asked) => Some(as_asked),
        None => largest(0..batch, |batch| safe(batch, &steps.run(batch)?))?,
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

/// The largest batch between two, which are taken not to be, that is safe and was found: memory is not monotone, so that it is looked for
/// from above.
fn largest<T>(
    between: Range<u64>,
    mut safe: impl FnMut(u64) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let Range { start, end } = between;
    let goal = Goal::FinishSteadily;
    let mut search = Search::probing(end - start, end - start, MOST_BATCHES).only(goal);
    search.record(end - start, StepOutcome::Stopped);
    let mut found = None;
    while let Some(above) = search.next_batch() {
        let tried = safe(start + above)?;
        let outcome = match tried {
            Some(_) => StepOutcome::Steady,
            None => StepOutcome::Stopped,
        };
        search.record(above, outcome);
        found = match tried {
            Some(_) if search.largest(goal).batch == above => tried,
            Some(_) | None => found,
        };
    }
    Ok(found)
}
