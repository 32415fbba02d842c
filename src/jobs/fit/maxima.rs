//! The two maxima of one variant on one device.

use crate::jobs::EngineError;
use crate::probe::Evidence;
use crate::search::{Above, Agreement, Goal, MAX_BATCH, Prediction, Search};

use super::prober::Bench;

/// Most real probes of a fit that a simulation has prepared. Two confirm it; the rest are for a
/// simulation that was wrong by more than a few samples.
const CONFIRMATIONS: u64 = 16;
/// Most real probes of a fit without a simulation. Galloping and bisection to 2^24 take fewer.
const REAL_PROBES: u64 = 64;
/// Where a search by real probes alone begins: small enough to fail fast, large enough to be near most.
const FIRST_GUESS: u64 = 32;

/// Both maxima, and what they rest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Maxima {
    pub(super) prediction: Prediction,
    /// Of the maximum without retries.
    pub(super) evidence: Evidence,
    /// Of the maximum with retries.
    pub(super) evidence_of_max: Evidence,
    /// Whether the search ended because no larger batch is ever tried.
    pub(super) at_ceiling: bool,
}

/// Finds the maxima by simulation alone.
pub(super) fn simulate(bench: &mut Bench<'_>) -> Result<Maxima, EngineError> {
    let mut search = Search::simulated(guess(bench)?, MAX_BATCH);
    drive(&mut search, bench)?;
    Ok(maxima(&search, Evidence::Simulated))
}

/// Has real probes confirm what was simulated, or find out what is true instead.
pub(super) fn confirm(simulated: Maxima, real: &mut Bench<'_>) -> Result<Maxima, EngineError> {
    let prediction = simulated.prediction;
    let mut calm =
        Search::confirming(prediction, MAX_BATCH, CONFIRMATIONS).only(Goal::FinishWithoutRetries);
    drive(&mut calm, real)?;
    if calm.agreement(Goal::FinishWithoutRetries) == Agreement::Agrees {
        return Ok(Maxima {
            evidence: Evidence::Probed,
            ..simulated
        });
    }
    // The simulation was wrong about one maximum, so it is not believed about the other.
    let found = calm.largest(Goal::FinishWithoutRetries).batch;
    let shifted = Prediction {
        max_batch_without_retries: found,
        max_batch: (prediction.max_batch + found)
            .saturating_sub(prediction.max_batch_without_retries)
            .max(found),
    };
    let mut both = Search::confirming(shifted, MAX_BATCH, CONFIRMATIONS);
    drive(&mut both, real)?;
    Ok(maxima(&both, Evidence::Probed))
}

/// Finds the maxima by real probes alone.
pub(super) fn probe(real: &mut Bench<'_>) -> Result<Maxima, EngineError> {
    let mut search = Search::probing(FIRST_GUESS, MAX_BATCH, REAL_PROBES);
    drive(&mut search, real)?;
    Ok(maxima(&search, real.evidence()))
}

fn drive(search: &mut Search, bench: &mut Bench<'_>) -> Result<(), EngineError> {
    while let Some(batch) = search.next_batch() {
        let verdict = bench.probe(batch)?.verdict;
        search.record(batch, verdict);
    }
    Ok(())
}

fn maxima(search: &Search, evidence: Evidence) -> Maxima {
    let calm = search.largest(Goal::FinishWithoutRetries);
    Maxima {
        prediction: Prediction {
            max_batch: search.largest(Goal::Finish).batch.max(calm.batch),
            max_batch_without_retries: calm.batch,
        },
        evidence,
        evidence_of_max: evidence,
        at_ceiling: calm.above == Above::Ceiling,
    }
}

/// Where the limit would be reached if memory grew as it does between small batches.
fn guess(bench: &mut Bench<'_>) -> Result<u64, EngineError> {
    let (few, more) = (4, 16);
    let of_few = bench.probe(few)?.clone();
    let of_more = bench.probe(more)?;
    let grown = of_more
        .peak_allocated_bytes
        .saturating_sub(of_few.peak_allocated_bytes);
    let left = of_few
        .limit_bytes
        .saturating_sub(of_few.peak_allocated_bytes);
    if grown == 0 {
        return Ok(more);
    }
    let samples = u128::from(left) * u128::from(more - few) / u128::from(grown);
    Ok(few.saturating_add(u64::try_from(samples).unwrap_or(MAX_BATCH)))
}
