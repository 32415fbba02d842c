//! What a search comes to.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::observations::Observations;
use super::predicted::{Predicted, Prediction};
use super::{Ended, SearchRequest};
use crate::probe::Evidence;
use crate::search::{Goal, Plan, Search};
use crate::units::Bytes;

/// What to train with, as far as runs of the program itself have shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
    /// The largest batch that was seen to finish, or that recordings predict to.
    pub max_batch: u64,
    /// The largest batch that was seen to finish without retries of the allocator, or that recordings predict to.
    pub max_batch_without_retries: u64,
    /// Most bytes that the recommended micro-batch reserved; null where it was not reported and nothing was recorded.
    pub peak_reserved_bytes: Option<u64>,
    /// Most bytes that it allocated, by recordings; null without.
    pub peak_allocated_bytes: Option<u64>,
    /// What the allocator may reserve; null where it was not given.
    pub limit_bytes: Option<u64>,
    /// `limit_bytes` less `peak_reserved_bytes`.
    pub headroom_bytes: Option<u64>,
    /// What keeps the batch from being larger.
    pub limited_by: String,
    /// `trained`: the program itself ran with this batch. `recorded`: nothing fits, as recordings predict.
    pub evidence: Evidence,
    /// The members whose figures recordings predict, by name; all others were seen.
    #[schema(example = json!(["max_batch"]))]
    pub predicted: Vec<String>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// The recommendation, for a plan whose micro-batch was seen to fit.
pub(super) fn recommended(
    terms: &SearchRequest,
    (seen, prediction): (&Observations, Option<&Prediction>),
    search: &Search,
    plan: Option<Plan>,
    ended: Option<&Ended>,
) -> Recommended {
    let largest = |goal| search.largest(goal).batch;
    let micro_batch = plan.map_or(0, |plan| plan.micro_batch);
    let recorded = prediction.and_then(|prediction| prediction.peaks(micro_batch));
    let told = seen.bytes(micro_batch);
    let peak = told.or(recorded.map(|peaks| peaks.reserved));
    let predicted = prediction.and_then(Prediction::predicted);
    let limit = terms
        .memory_limit
        .or(predicted.map(|predicted| predicted.limit));
    let headroom = limit
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
    notes.extend(
        predicted
            .into_iter()
            .flat_map(|predicted| predicted.notes.clone()),
    );
    let maxima = [with_retries, largest(Goal::FinishSteadily)];
    let [max_batch, max_batch_without_retries] = match predicted {
        Some(predicted) => further(maxima, predicted, terms, seen),
        None => maxima,
    };
    let is_recorded = prediction.is_some_and(|prediction| prediction.is_recorded(micro_batch));
    let names = [
        ("max_batch", max_batch > maxima[0]),
        (
            "max_batch_without_retries",
            max_batch_without_retries > maxima[1],
        ),
        (
            "peak_reserved_bytes",
            told.is_none() && recorded.is_some() && !is_recorded,
        ),
        ("peak_allocated_bytes", recorded.is_some() && !is_recorded),
    ];
    let names = names.into_iter().filter(|(_, is_predicted)| *is_predicted);
    Recommended {
        micro_batch,
        accumulation_steps: plan.map_or(0, |plan| plan.accumulation_steps),
        global_batch: plan.map_or(0, |plan| plan.global_batch),
        shortfall: plan.map_or(0, |plan| plan.shortfall),
        max_batch,
        max_batch_without_retries,
        peak_reserved_bytes: peak,
        peak_allocated_bytes: recorded.map(|peaks| peaks.allocated),
        limit_bytes: limit,
        headroom_bytes: headroom,
        limited_by: ended.map_or_else(
            || "nothing yet: the search is not at its end".to_owned(),
            |ended| limited_by(ended, seen),
        ),
        evidence: match (micro_batch, predicted) {
            (0, Some(_)) => Evidence::Recorded,
            (_, Some(_) | None) => Evidence::Trained,
        },
        predicted: names.map(|(name, _)| name.to_owned()).collect(),
        notes,
    }
}

/// Both maxima as recordings predict them, where that is more than what was seen and nothing that was seen speaks against
/// it.
fn further(
    maxima: [u64; 2],
    predicted: &Predicted,
    terms: &SearchRequest,
    seen: &Observations,
) -> [u64; 2] {
    let [finishes, fits] = maxima;
    let below =
        |high: Option<u64>| high.map_or(terms.ceiling(), |high| terms.ceiling().min(high - 1));
    let without = predicted.maxima.max_batch_without_retries;
    let without = without.min(below(seen.refused_above(fits))).max(fits);
    let with = predicted.maxima.max_batch;
    let with = with.min(below(seen.out_of_memory_above(finishes)));
    [with.max(finishes).max(without), without]
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
                "how much memory stays free at a micro-batch of {micro_batch} is not known: no observation says what it reserves"
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

fn limited_by(ended: &Ended, seen: &Observations) -> String {
    match ended {
        Ended::Refused(batch) => seen.why_refused(*batch),
        Ended::Ceiling { batch, why } => format!("{why}: batches above {batch} are not tried"),
        Ended::Full { batch, bytes } => format!(
            "batch {batch} would reserve about {}, by the bytes that smaller ones reserved",
            Bytes(*bytes)
        ),
        Ended::Predicted { batch } => {
            format!("batch {batch} does not fit without retries, as recordings of others predict")
        }
        Ended::Alone => "no other batch may be tried".to_owned(),
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
