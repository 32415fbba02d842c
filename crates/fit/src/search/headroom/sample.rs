//! What a training that ran says about the headroom of the answer that it followed.

use super::{CEILING, FLOOR};
use crate::search::ask_tell::Outcome;
use crate::units::{Bytes, Share};

/// Steps after which a peak counts: what an answer predicts is the peak of three.
const STEPS: u64 = 3;

/// A training that follows an answer does not reserve so many times its limit. A little more is believed: many train without setting the limit
/// that they asked about.
const MOST_LIMITS: u64 = 2;

/// One part in so many of its prediction every training reserves: the worst of 1,056 measured peaks was 19 % off.
const LEAST_PART: u64 = 2;

/// What an answer said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// The batch that it recommends; 0 where nothing fits.
    pub micro_batch: u64,
    /// The peak that it predicts for it.
    pub peak_reserved: Bytes,
    /// What the allocator may reserve.
    pub limit: Bytes,
    /// What it left free, at the least. Where its first steps retry, the peak fills the limit all the same.
    pub headroom: Share,
    /// Whether it predicts that the first steps retry.
    pub retries: bool,
}

/// What a training that followed it came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainingRun {
    /// Samples per micro-step on one GPU.
    pub batch: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// Most bytes that its allocator had reserved, where it was read.
    pub peak_reserved: Option<Bytes>,
    /// How often the allocator freed its cache and retried, where it was read.
    pub retries: Option<u64>,
    /// Optimizer steps that ran, where they were counted.
    pub steps: Option<u64>,
}

/// What is learnt of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sample {
    /// So much headroom would just have been enough: it ran, and this is what was reserved beyond the prediction.
    Needs(Share),
    /// It ran out of memory, or had to retry, although so much was left free: more than this is needed, and how much is unknown.
    NeedsMoreThan(Share),
}

batchfit_step::listed! {
    /// Why nothing is learnt of a run, which is kept all the same.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RejectReason {
        /// It crashed.
        Crashed = "crashed",
        /// It ran a larger batch than was recommended.
        LargerBatch = "larger_batch",
        /// It ran a smaller batch and nothing went wrong.
        SmallerBatch = "smaller_batch",
        /// How much was reserved was not read.
        NoPeak = "no_peak",
        /// Its peak may be still to come.
        FewSteps = "few_steps",
        /// It ran out of memory with more left free than headroom ever gets, or long before the predicted peak.
        OtherCause = "other_cause",
        /// It does not say on which card, with which driver and PyTorch it ran.
        EnvironmentUnknown = "environment_unknown",
        /// It ran on another card, or with another driver, cuDNN or PyTorch than the answer is for.
        EnvironmentOther = "environment_other",
        /// It reserved far less than was predicted.
        Implausible = "implausible",
        /// It reserved far more than it may under the limit that the answer is for.
        OtherLimit = "other_limit",
        /// The answer was made before outcomes were learnt from, and does not say for which model exactly.
        AnswerTooOld = "answer_too_old",
    }
}

impl RejectReason {
    /// What a person is told.
    pub const fn meaning(self) -> &'static str {
        match self {
            RejectReason::Crashed => "a crash says nothing about memory",
            RejectReason::LargerBatch => "it ran a larger batch than was recommended",
            RejectReason::SmallerBatch => {
                "it ran a smaller batch than was recommended, of which nothing was predicted"
            }
            RejectReason::NoPeak => "it does not say how much was reserved (`peak_reserved_bytes`)",
            RejectReason::FewSteps => {
                "it does not say that it made three steps (`steps`): its peak may be still to come"
            }
            RejectReason::OtherCause => {
                "it ran out of memory where the answer left more free than is ever kept, or with less than half of the prediction reserved: something else \
                 took the memory"
            }
            RejectReason::EnvironmentUnknown => {
                "it does not say on which card, with which PyTorch and, for an answer from a GPU, with which driver it ran \
                 (`environment`)"
            }
            RejectReason::EnvironmentOther => {
                "it ran on another card, or with another PyTorch, driver or cuDNN, than the answer is for"
            }
            RejectReason::Implausible => {
                "it reserved less than half of what was predicted: another model ran, or the figure is wrong"
            }
            RejectReason::OtherLimit => {
                "it reserved more than twice the limit that the answer is for: it ran under another one, or the figure is wrong"
            }
            RejectReason::AnswerTooOld => {
                "an earlier batchfit made the answer, which does not say for which model exactly"
            }
        }
    }
}

/// What is learnt of a run in the environment that the answer is for.
///
/// What was reserved beyond the prediction is taken as a part of what was reserved, since a batch near the limit would be short
/// by the same part of the limit; where less than half of the limit was reserved, as a part of that half: small models are short
/// by a constant, too.
pub fn sample(answered: &Answered, seen: &TrainingRun) -> Result<Sample, RejectReason> {
    let refused = match seen.outcome {
        Outcome::Crashed => return Err(RejectReason::Crashed),
        Outcome::OutOfMemory => true,
        Outcome::FitsWithRetries => !answered.retries,
        Outcome::Fits => !answered.retries && seen.retries.is_some_and(|retries| retries > 0),
    };
    if seen.batch > answered.micro_batch {
        return Err(RejectReason::LargerBatch);
    }
    let is_recommended = seen.batch == answered.micro_batch;
    let is_far_below = |reserved: Bytes| reserved.0 < answered.peak_reserved.0 / LEAST_PART;
    if refused {
        if seen.peak_reserved.is_some_and(is_far_below) {
            return Err(RejectReason::OtherCause);
        }
        let free = answered.limit.saturating_sub(answered.peak_reserved);
        let free = Share::of(free, answered.limit).max(answered.headroom);
        if free > CEILING {
            return Err(RejectReason::OtherCause);
        }
        return Ok(Sample::NeedsMoreThan(free.max(Share(FLOOR.0 / 2))));
    }
    let is_smaller = !is_recommended;
    let Some(reserved) = seen.peak_reserved else {
        return Err(if is_smaller {
            RejectReason::SmallerBatch
        } else {
            RejectReason::NoPeak
        });
    };
    if reserved.0 / MOST_LIMITS > answered.limit.0 {
        return Err(RejectReason::OtherLimit);
    }
    if is_recommended && is_far_below(reserved) {
        return Err(RejectReason::Implausible);
    }
    let short_by = reserved.saturating_sub(answered.peak_reserved);
    if short_by == Bytes::ZERO {
        if is_smaller {
            return Err(RejectReason::SmallerBatch);
        }
        if seen.steps.is_none_or(|steps| steps < STEPS) {
            return Err(RejectReason::FewSteps);
        }
    }
    let whole = reserved.max(Bytes(answered.limit.0 / 2));
    Ok(Sample::Needs(Share::of(short_by, whole)))
}
