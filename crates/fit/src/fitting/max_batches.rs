//! The maxima of one variant on one device.

use crate::EngineError;
use crate::probe::{Evidence, StepOutcome};
use crate::search::{
    Above, Agreement, Bisections, Goal, MAX_BATCH, PredictedBatches, Search, edge,
};

use super::probing::runner::ProbeCache;

/// Most real probes of a fit that a simulation has prepared. Two confirm it; the rest are for a
/// simulation that was wrong by more than a few samples.
const CONFIRMATIONS: u64 = 16;
/// Most real probes of a fit without a simulation. Galloping and bisection to 2^24 take fewer.
const REAL_PROBES: u64 = 64;
/// Most simulated probes from above. Galloping and bisection from 2^24 take fewer.
const DOWNWARD_PROBES: u64 = 64;
/// Where a search by real probes alone begins: small enough to fail fast, large enough to be near most.
pub(super) const FIRST_GUESS: u64 = 32;
/// Programs of more instructions are bisected only once, because each probe of them takes tenths of a
/// second. In what is so long no single block decides, so there are few holes.
const LONG_PROGRAM: usize = 500_000;

/// All maxima, and what they rest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MaxBatches {
    pub(super) prediction: PredictedBatches,
    /// Of the steady maximum.
    pub(super) evidence: Evidence,
    /// Of the other maxima.
    pub(super) evidence_of_max: Evidence,
    /// Whether the search ended because no larger batch is ever tried.
    pub(super) at_ceiling: bool,
}

/// Finds the maxima by simulation alone.
pub(super) fn simulate(cache: &mut ProbeCache<'_>) -> Result<MaxBatches, EngineError> {
    let is_met = |goal: Goal| {
        move |cache: &mut ProbeCache<'_>, batch| {
            Ok(goal.is_met_by(cache.probe(batch)?.report.course()))
        }
    };
    let max_batch = largest(cache, 0, is_met(Goal::Finish))?;
    let without_retries = largest(cache, 0, is_met(Goal::FinishWithoutRetries))?;
    // Recordings do not say what a convolution takes that is refused its workspace.
    let steady = if max_batch > without_retries && cache.evidence() != Evidence::Recorded {
        largest(cache, max_batch, is_met(Goal::FinishSteadily))?
    } else {
        without_retries
    };
    Ok(MaxBatches {
        prediction: PredictedBatches {
            max_batch,
            max_batch_steady: steady,
            max_batch_without_retries: without_retries,
        },
        evidence: cache.evidence(),
        evidence_of_max: cache.evidence(),
        at_ceiling: steady >= cache.ceiling().min(MAX_BATCH),
    })
}

/// The largest batch that `meets` something which no batch does whose tensors alone are larger than the limit.
///
/// What depends on retries is not monotone in the limit anyway, and has wide gaps: it is looked for from `from` downward, too.
/// See Note [One tree for every limit] in `search`.
pub(super) fn largest<'a>(
    cache: &mut ProbeCache<'a>,
    from: u64,
    mut meets: impl FnMut(&mut ProbeCache<'a>, u64) -> Result<bool, EngineError>,
) -> Result<u64, EngineError> {
    let outline = cache.outline(1)?;
    let is_long = outline.is_some_and(|outline| outline.instructions > LONG_PROGRAM);
    let bisections = if is_long {
        Bisections::One
    } else {
        Bisections::Four
    };
    let found = edge(cache.ceiling(), bisections, |batch| {
        Ok(!cache.is_beyond(batch)? && meets(cache, batch)?)
    })?;
    let goal = Goal::FinishSteadily;
    let mut downward = Search::probing(from, from, DOWNWARD_PROBES).only(goal);
    while found < from
        && let Some(batch) = downward.next_batch()
    {
        let course = if meets(cache, batch)? {
            StepOutcome::Steady
        } else {
            StepOutcome::Stopped
        };
        downward.record(batch, course);
    }
    Ok(found.max(downward.largest(goal).batch))
}

/// Has real probes confirm what was simulated, or find out what is true instead.
pub(super) fn confirm(
    simulated: MaxBatches,
    real: &mut ProbeCache<'_>,
) -> Result<MaxBatches, EngineError> {
    let prediction = simulated.prediction;
    let ceiling = real.ceiling();
    let mut steady =
        Search::confirming(prediction, ceiling, CONFIRMATIONS).only(Goal::FinishSteadily);
    drive(&mut steady, real)?;
    if steady.agreement(Goal::FinishSteadily) == Agreement::Agrees {
        return Ok(MaxBatches {
            evidence: Evidence::Probed,
            ..simulated
        });
    }
    // The simulation was wrong about one maximum, so it is not believed about the others.
    let found = steady.largest(Goal::FinishSteadily).batch;
    let shifted = |batch: u64| (batch + found).saturating_sub(prediction.max_batch_steady);
    let shifted = PredictedBatches {
        max_batch: shifted(prediction.max_batch).max(found),
        max_batch_steady: found,
        max_batch_without_retries: shifted(prediction.max_batch_without_retries).min(found),
    };
    let mut all = Search::confirming(shifted, ceiling, CONFIRMATIONS);
    drive(&mut all, real)?;
    Ok(maxima(&all, Evidence::Probed))
}

/// Finds the maxima by real probes alone, from a guess.
pub(super) fn probe(real: &mut ProbeCache<'_>, guess: u64) -> Result<MaxBatches, EngineError> {
    let mut search = Search::probing(guess, real.ceiling(), REAL_PROBES);
    drive(&mut search, real)?;
    Ok(maxima(&search, real.evidence()))
}

fn drive(search: &mut Search, cache: &mut ProbeCache<'_>) -> Result<(), EngineError> {
    while let Some(batch) = search.next_batch() {
        let course = cache.probe(batch)?.report.course();
        search.record(batch, course);
    }
    Ok(())
}

fn maxima(search: &Search, evidence: Evidence) -> MaxBatches {
    let without_retries = search.largest(Goal::FinishWithoutRetries).batch;
    let steady = search.largest(Goal::FinishSteadily);
    MaxBatches {
        prediction: PredictedBatches {
            max_batch: search.largest(Goal::Finish).batch.max(steady.batch),
            max_batch_steady: steady.batch,
            max_batch_without_retries: without_retries,
        },
        evidence,
        evidence_of_max: evidence,
        at_ceiling: steady.above == Above::Ceiling,
    }
}
