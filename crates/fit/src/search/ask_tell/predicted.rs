//! What recordings of the program predict.

use std::collections::BTreeMap;

use crate::search::{Plan, PredictedBatches};

/// Most bytes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peaks {
    /// That were allocated.
    pub allocated: u64,
    /// That were reserved.
    pub reserved: u64,
}

/// What recordings of several batches predict.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Predicted {
    /// Both maxima.
    pub maxima: PredictedBatches,
    /// What to train with, with what is kept free because the prediction may be too low; nothing where not even one sample
    /// leaves that.
    pub plan: Option<Plan>,
    /// The batch to record next, where the prediction is too far from all recordings to be relied on.
    pub record_next: Option<u64>,
    /// What the allocator may reserve.
    pub limit: u64,
    /// The recorded batches and the plan's.
    pub peaks: BTreeMap<u64, Peaks>,
    /// The batches that were recorded.
    pub recorded: Vec<u64>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// What a recording of one batch tells: nothing of other batches, but of what does not depend on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Alone {
    /// The batch.
    pub batch: u64,
    /// Its peaks.
    pub peaks: Peaks,
    /// Of what was reserved, so much does not grow with the batch.
    pub standing: u64,
}

/// What recordings tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prediction {
    /// One batch was recorded.
    Alone(Alone),
    /// Several were.
    Several(Box<Predicted>),
}

impl Prediction {
    /// What is predicted, where several batches were recorded.
    pub fn predicted(&self) -> Option<&Predicted> {
        match self {
            Prediction::Alone(_) => None,
            Prediction::Several(predicted) => Some(predicted),
        }
    }

    /// The peaks of a batch, as they are known or predicted.
    pub(super) fn peaks(&self, batch: u64) -> Option<Peaks> {
        match self {
            Prediction::Alone(alone) => (alone.batch == batch).then_some(alone.peaks),
            Prediction::Several(predicted) => predicted.peaks.get(&batch).copied(),
        }
    }

    /// Whether the batch itself was recorded.
    pub(super) fn is_recorded(&self, batch: u64) -> bool {
        match self {
            Prediction::Alone(alone) => alone.batch == batch,
            Prediction::Several(predicted) => predicted.recorded.contains(&batch),
        }
    }
}
