//! What a training that ran says about the headroom of the answer that it followed.

use super::{CEILING, FLOOR};
use crate::search::conversation::Outcome;
use crate::units::{Bytes, Share};

/// Steps after which a peak counts: what an answer predicts is the peak of three.
const STEPS: u64 = 3;

/// So many times its limit nobody reserves who trains by an answer. A little more is believed: many train without setting the limit
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

/// What somebody saw who trained by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Samples per micro-step on one GPU.
    pub batch: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// Most bytes that its allocator had reserved, where somebody looked.
    pub peak_reserved: Option<Bytes>,
    /// How often the allocator freed its cache and asked again, where somebody looked.
    pub retries: Option<u64>,
    /// Optimizer steps that were made, where somebody counted.
    pub steps: Option<u64>,
}

/// What is learnt of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lesson {
    /// So much headroom would just have been enough: it ran, and this is what was reserved beyond the prediction.
    Needs(Share),
    /// It ran out of memory, or had to retry, although so much was left free: more than this is needed, nobody knows how much.
    NeedsMoreThan(Share),
}

/// Why nothing is learnt of a run, which is kept all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// It crashed.
    Crashed,
    /// It ran a larger batch than was recommended.
    LargerBatch,
    /// It ran a smaller batch and nothing went wrong.
    SmallerBatch,
    /// Nobody looked how much was reserved.
    NoPeak,
    /// Its peak may be still to come.
    FewSteps,
    /// It ran out of memory with more left free than headroom ever gets.
    OtherCause,
    /// It does not say on which card, with which driver and PyTorch it ran.
    EnvironmentUnknown,
    /// It ran on another card, or with another driver, cuDNN or PyTorch than the answer is for.
    EnvironmentOther,
    /// It reserved far less than was predicted.
    Implausible,
    /// It reserved far more than it may under the limit that the answer is for.
    OtherLimit,
    /// The answer was made before outcomes were learnt from, and does not say for which model exactly.
    AnswerTooOld,
}

impl Doubt {
    /// All of them.
    pub const ALL: [Doubt; 11] = [
        Doubt::Crashed,
        Doubt::LargerBatch,
        Doubt::SmallerBatch,
        Doubt::NoPeak,
        Doubt::FewSteps,
        Doubt::OtherCause,
        Doubt::EnvironmentUnknown,
        Doubt::EnvironmentOther,
        Doubt::Implausible,
        Doubt::OtherLimit,
        Doubt::AnswerTooOld,
    ];

    /// Its name in documents and in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Doubt::Crashed => "crashed",
            Doubt::LargerBatch => "larger_batch",
            Doubt::SmallerBatch => "smaller_batch",
            Doubt::NoPeak => "no_peak",
            Doubt::FewSteps => "few_steps",
            Doubt::OtherCause => "other_cause",
            Doubt::EnvironmentUnknown => "environment_unknown",
            Doubt::EnvironmentOther => "environment_other",
            Doubt::Implausible => "implausible",
            Doubt::OtherLimit => "other_limit",
            Doubt::AnswerTooOld => "answer_too_old",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Doubt> {
        Doubt::ALL.into_iter().find(|doubt| doubt.name() == name)
    }

    /// What a person is told.
    pub const fn meaning(self) -> &'static str {
        match self {
            Doubt::Crashed => "a crash says nothing about memory",
            Doubt::LargerBatch => "it ran a larger batch than was recommended",
            Doubt::SmallerBatch => {
                "it ran a smaller batch than was recommended, of which nothing was predicted"
            }
            Doubt::NoPeak => "it does not say how much was reserved (`peak_reserved_bytes`)",
            Doubt::FewSteps => {
                "it does not say that it made three steps (`steps`): its peak may be still to come"
            }
            Doubt::OtherCause => {
                "it ran out of memory although more was left free than headroom ever gets: something else took it"
            }
            Doubt::EnvironmentUnknown => {
                "it does not say on which card, with which PyTorch and, for an answer from a GPU, with which driver it ran \
                 (`environment`)"
            }
            Doubt::EnvironmentOther => {
                "it ran on another card, or with another PyTorch, driver or cuDNN, than the answer is for"
            }
            Doubt::Implausible => {
                "it reserved less than half of what was predicted: another model ran, or the figure is wrong"
            }
            Doubt::OtherLimit => {
                "it reserved more than twice the limit that the answer is for: it ran under another one, or the figure is wrong"
            }
            Doubt::AnswerTooOld => {
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
pub fn lesson(answered: &Answered, seen: &Seen) -> Result<Lesson, Doubt> {
    let refused = match seen.outcome {
        Outcome::Crashed => return Err(Doubt::Crashed),
        Outcome::OutOfMemory => true,
        Outcome::FitsWithRetries => !answered.retries,
        Outcome::Fits => !answered.retries && seen.retries.is_some_and(|retries| retries > 0),
    };
    if seen.batch > answered.micro_batch {
        return Err(Doubt::LargerBatch);
    }
    if refused {
        let free = answered.limit.saturating_sub(answered.peak_reserved);
        let free = Share::of(free, answered.limit).max(answered.headroom);
        if free > CEILING {
            return Err(Doubt::OtherCause);
        }
        return Ok(Lesson::NeedsMoreThan(free.max(Share(FLOOR.0 / 2))));
    }
    let is_smaller = seen.batch < answered.micro_batch;
    let Some(reserved) = seen.peak_reserved else {
        return Err(if is_smaller {
            Doubt::SmallerBatch
        } else {
            Doubt::NoPeak
        });
    };
    if reserved.0 / MOST_LIMITS > answered.limit.0 {
        return Err(Doubt::OtherLimit);
    }
    if reserved.0 < answered.peak_reserved.0 / LEAST_PART && !is_smaller {
        return Err(Doubt::Implausible);
    }
    let short_by = reserved.saturating_sub(answered.peak_reserved);
    if short_by == Bytes::ZERO {
        if is_smaller {
            return Err(Doubt::SmallerBatch);
        }
        if seen.steps.is_none_or(|steps| steps < STEPS) {
            return Err(Doubt::FewSteps);
        }
    }
    let whole = reserved.max(Bytes(answered.limit.0 / 2));
    Ok(Lesson::Needs(Share::of(short_by, whole)))
}
