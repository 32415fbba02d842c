//! What a search comes to.

use serde::Serialize;
use utoipa::ToSchema;

use super::seen::Seen;
use super::{Ended, Terms};
use crate::probe::Evidence;
use crate::search::{Goal, Plan, Search};
use crate::units::Bytes;

/// What to train with, as far as runs of the program itself have shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(title = "SearchRecommendation")]
pub struct Recommended {
    /// Samples per micro-step on one GPU; 0 when nothing was seen to fit.
    pub micro_batch: u64,
    /// Micro-steps per optimizer step.
    pub accumulation_steps: u64,
    /// Samples per optimizer step over all ranks: `micro_batch * accumulation_steps * world_size`.
    pub global_batch: u64,
    /// What `global_batch` lacks of `target_batch`; 0 without a target.
    pub shortfall: u64,
    /// The largest batch that was seen to finish.
    pub max_batch: u64,
    /// The largest batch that was seen to finish without retries of the allocator.
    pub max_batch_without_retries: u64,
    /// Most bytes that the recommended micro-batch reserved; null where nobody told.
    pub peak_reserved_bytes: Option<u64>,
    /// What the allocator may reserve; null where nobody told.
    pub limit_bytes: Option<u64>,
    /// `limit_bytes` less `peak_reserved_bytes`.
    pub headroom_bytes: Option<u64>,
    /// What keeps the batch from being larger.
    pub limited_by: String,
    /// `trained`: the program itself ran with this batch.
    pub evidence: Evidence,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// The recommendation, for a plan whose micro-batch was seen to fit.
pub(super) fn recommended(
    terms: &Terms,
    seen: &Seen,
    search: &Search,
    plan: Option<Plan>,
    ended: Option<&Ended>,
) -> Recommended {
    let largest = |goal| search.largest(goal).batch;
    let micro_batch = plan.map_or(0, |plan| plan.micro_batch);
    let peak = seen.bytes(micro_batch);
    let headroom = terms
        .memory_limit
        .zip(peak)
        .map(|(limit, peak)| limit.saturating_sub(peak));
    let mut notes = Vec::new();
    if let Some(plan) = plan {
        notes.push(headroom_in_words(micro_batch, headroom, peak));
        notes.extend(accumulating(&plan));
    }
    let with_retries = largest(Goal::Finish);
    if plan.is_none() && with_retries > 0 {
        notes.push(format!(
            "batch {with_retries} finishes, but the allocator has to free its cache and retry: training works, slowly and near \
             the edge"
        ));
    }
    notes.extend(seen.notes(terms.ceiling()));
    Recommended {
        micro_batch,
        accumulation_steps: plan.map_or(0, |plan| plan.accumulation_steps),
        global_batch: plan.map_or(0, |plan| plan.global_batch),
        shortfall: plan.map_or(0, |plan| plan.shortfall),
        max_batch: with_retries,
        max_batch_without_retries: largest(Goal::FinishWithoutRetries),
        peak_reserved_bytes: peak,
        limit_bytes: terms.memory_limit,
        headroom_bytes: headroom,
        limited_by: ended.map_or_else(
            || "nothing yet: the search is not at its end".to_owned(),
            |ended| limited_by(ended, seen),
        ),
        evidence: Evidence::Trained,
        notes,
    }
}

/// What a reader is told of the memory that stays free.
fn headroom_in_words(micro_batch: u64, headroom: Option<u64>, peak: Option<u64>) -> String {
    let free = match (headroom, peak) {
        (Some(free), _) => format!(
            "{} of the limit stay free at a micro-batch of {micro_batch}",
            Bytes(free)
        ),
        (None, Some(peak)) => {
            format!(
                "a micro-batch of {micro_batch} reserves {}; of which limit was not told",
                Bytes(peak)
            )
        }
        (None, None) => {
            format!(
                "how much memory stays free at a micro-batch of {micro_batch} is not known: nobody told what it reserves"
            )
        }
    };
    format!(
        "{free}; the program itself ran with it, so nothing is kept free on purpose: samples that are longer than those that \
         ran need more"
    )
}

/// What a reader is told of a plan of several steps.
fn accumulating(plan: &Plan) -> Option<String> {
    let steps = plan.accumulation_steps;
    (steps > 1).then(|| {
        format!(
            "gradients stay allocated through the forward passes of {steps} accumulation steps: where the runs did not \
             accumulate, run {micro} samples twice before a step of the optimizer to be certain",
            micro = plan.micro_batch
        )
    })
}

fn limited_by(ended: &Ended, seen: &Seen) -> String {
    match ended {
        Ended::Refused(batch) => seen.why_refused(*batch),
        Ended::Ceiling { batch, why } => format!("{why}: batches above {batch} are not tried"),
        Ended::Full { batch, bytes } => format!(
            "batch {batch} would reserve about {}, by the bytes that smaller ones reserved",
            Bytes(*bytes)
        ),
        Ended::Predicted { batch } => {
            format!("batch {batch} does not fit, as recordings of smaller ones predict")
        }
        Ended::NowhereElse { batch } => {
            format!("batch {batch} crashed, and so did all near it that could be tried instead")
        }
        Ended::Crashes { batches } => {
            let batches: Vec<String> = batches.iter().map(u64::to_string).collect();
            format!(
                "crashes: {} runs in a row (batches {}) ended neither well nor for lack of memory, so the search ended",
                batches.len(),
                batches.join(", ")
            )
        }
    }
}
