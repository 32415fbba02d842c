//! Searches in which nothing is to run out of memory. See Note [Careful searches].

use super::observations::Observations;
use super::predicted::{Alone, Predicted, Prediction};
use super::{AskTell, Ended, Next, extrapolation, untried};
use crate::probe::Verdict;

/// A first batch that does not fit is divided by this: recordings of small batches say how much larger to go.
const DOWN: u64 = 4;

/// So many times a batch that was recorded alone is the next one at most: the program may do other things far from it.
const FARTHEST: u64 = 16;

/// What of the limit a second batch may take, in tenths, by what the first one took: recordings far apart say more, and
/// nothing is known yet.
const COMFORTABLE: u64 = 5;
const TIGHT: u64 = 8;

/// So many times the largest batch that ran is far: half of the prediction is recorded first. Where it is nearer, but more
/// than half as much again, three quarters are.
const FAR: u64 = 8;

/// Most runs near the answer that only make it more certain, and how near: within this part of it.
const MOST_CONFIRMATIONS: usize = 2;
const NEAR: u64 = 10;

/// A gain that is worth another run, as a part of the batch: half a percent.
const WORTH_A_RUN: u64 = 200;

/// How far below a batch that was predicted to fit and did not is tried next, as parts of it: for the first such batch, the
/// second, and all further ones. Where one ran out of memory, one further.
const BELOW: [u64; 3] = [100, 32, 8];

/// The next step; nothing where the bytes that were told lead on, or nothing was told at all.
pub(super) fn next(
    conversation: &AskTell,
    seen: &Observations,
    low: u64,
    prediction: Option<&Prediction>,
) -> Option<Next> {
    let ceiling = conversation.terms.ceiling();
    if low == ceiling {
        return Some(Next::End(conversation.at_ceiling(ceiling)));
    }
    if let Some(Prediction::Several(predicted)) = prediction {
        return Some(led(conversation, seen, low, predicted));
    }
    let high = seen.refused_above(low);
    if low == 0 {
        return down(seen, high?, ceiling);
    }
    match prediction {
        Some(Prediction::Alone(alone)) if seen.fitting() == 1 && alone.batch == low => {
            let limit = conversation.terms.memory_limit?;
            let most = high.map_or(ceiling, |high| ceiling.min(high - 1));
            Some(second(seen, alone, limit, most))
        }
        Some(_) | None => None,
    }
}

/// Far below what does not fit, while nothing does.
fn down(seen: &Observations, high: u64, ceiling: u64) -> Option<Next> {
    if high == 1 {
        return Some(Next::End(Ended::Refused(high)));
    }
    let wanted = (high / DOWN).clamp(1, ceiling);
    if !seen.was_tried(wanted) {
        return Some(Next::Try(wanted));
    }
    let end = high.min(ceiling.saturating_add(1));
    let near = untried::untried_near(seen, wanted, 0, end);
    near.map(Next::Try)
}

/// A second batch to record: larger, where it fits even if all grows in proportion but what certainly does not.
fn second(seen: &Observations, alone: &Alone, limit: u64, most: u64) -> Next {
    let batch = alone.batch;
    let peak = seen.bytes(batch).unwrap_or(alone.peaks.reserved);
    let standing = alone.standing.min(peak);
    let within = |tenths: u64| {
        let limit = (limit / 10 * tenths).saturating_sub(standing);
        extrapolation::in_proportion(batch, peak - standing, limit)
            .min(batch.saturating_mul(FARTHEST))
            .min(most)
    };
    let comfortable = within(COMFORTABLE);
    let wanted = if comfortable > batch {
        comfortable
    } else {
        let tight = within(TIGHT).min(batch.saturating_mul(2));
        if tight > batch.saturating_add(batch / 4) || (tight > batch && batch == 1) {
            tight
        } else {
            batch / 2
        }
    };
    if wanted == 0 {
        let bytes = peak.saturating_add((peak - standing) / batch);
        let batch = batch + 1;
        return Next::End(if most < batch {
            Ended::Alone
        } else {
            Ended::Full { batch, bytes }
        });
    }
    if !seen.was_tried(wanted) {
        return Next::Try(wanted);
    }
    // It crashed. Below, nothing needs more.
    let end = wanted.max(batch);
    match untried::untried_near(seen, wanted.min(end), 0, end) {
        Some(batch) => Next::Try(batch),
        None => Next::End(Ended::NowhereElse { batch: wanted }),
    }
}

/// The next step where recordings predict what fits.
fn led(conversation: &AskTell, seen: &Observations, low: u64, predicted: &Predicted) -> Next {
    let ceiling = conversation.terms.ceiling();
    let high = seen.refused_above(low).filter(|high| *high <= ceiling);
    let plan = predicted.plan.map_or(0, |plan| plan.micro_batch);
    let mut goal = plan.min(ceiling);
    if let Some(high) = high.filter(|high| *high <= goal) {
        // The prediction is wrong there.
        let refused = seen
            .verdicts()
            .filter(|(batch, verdict)| *batch > low && *verdict != Verdict::Fits);
        let out_of_memory = usize::from(seen.out_of_memory_above(low).is_some());
        let failures = refused.count() + out_of_memory;
        let parts = BELOW[failures.clamp(1, BELOW.len()) - 1];
        let most = high - (high / parts).max(1);
        let plans = conversation.plans(most, seen);
        goal = plans.first().map_or(most, |plan| plan.micro_batch);
    }
    let halfway = nearer(low, goal, predicted);
    let halfway = halfway.filter(|batch| high.is_none_or(|high| *batch < high));
    if let Some(batch) = halfway.filter(|batch| !seen.was_tried(*batch)) {
        return Next::Try(batch);
    }
    let near = seen
        .verdicts()
        .filter(|(batch, verdict)| *batch > goal - goal / NEAR && *verdict == Verdict::Fits);
    let is_worth_a_run = goal > low + low / WORTH_A_RUN && near.count() < MOST_CONFIRMATIONS;
    if !is_worth_a_run {
        return Next::End(ended(conversation, low, high, predicted));
    }
    if !seen.was_tried(goal) {
        return Next::Try(goal);
    }
    match untried::untried_near(seen, goal, low, goal) {
        Some(batch) => Next::Try(batch),
        None => Next::End(Ended::NowhereElse { batch: goal }),
    }
}

/// The batch to record before `goal`, where that is far from the largest that ran: what recordings of small batches predict
/// far from them may be wrong, and in the right direction nothing runs out of memory.
fn nearer(low: u64, goal: u64, predicted: &Predicted) -> Option<u64> {
    let peaks = predicted.peaks.get(&goal);
    // With half of the limit left, it may take twice what is predicted.
    let is_easy = peaks.is_some_and(|peaks| peaks.reserved <= predicted.limit / 2);
    if is_easy || goal <= low + low / 2 {
        return None;
    }
    let far = predicted.record_next.filter(|_| goal / FAR > low);
    let next = far.unwrap_or(goal - goal / 4);
    (low + 1..goal).contains(&next).then_some(next)
}

/// Why nothing larger is tried.
fn ended(conversation: &AskTell, low: u64, high: Option<u64>, predicted: &Predicted) -> Ended {
    let ceiling = conversation.terms.ceiling();
    let largest = predicted.maxima.max_batch_steady.max(low);
    match high {
        Some(high) => Ended::Refused(high),
        None if largest >= ceiling => conversation.at_ceiling(ceiling),
        None => Ended::Predicted { batch: largest + 1 },
    }
}
