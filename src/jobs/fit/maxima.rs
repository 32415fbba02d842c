//! The maxima of one variant on one device.

use std::collections::BTreeMap;

use crate::jobs::EngineError;
use crate::probe::{Evidence, Verdict};
use crate::search::{Above, Agreement, Goal, MAX_BATCH, Prediction, Search};

use super::probing::prober::ProbeCache;

/// Most real probes of a fit that a simulation has prepared. Two confirm it; the rest are for a
/// simulation that was wrong by more than a few samples.
const CONFIRMATIONS: u64 = 16;
/// Most real probes of a fit without a simulation. Galloping and bisection to 2^24 take fewer.
const REAL_PROBES: u64 = 64;
/// Where a search by real probes alone begins: small enough to fail fast, large enough to be near most.
pub(super) const FIRST_GUESS: u64 = 32;
/// The batches that are tried where not even one sample fits. Memory is not monotone in the batch: for a single
/// sample cuDNN may want more scratch memory than for a few.
pub(super) const BESIDE_ONE: [u64; 5] = [2, 4, 8, 16, 32];

/// Where simulated searches start, counted from the guess in steps.
const STARTS: [i64; 5] = [0, 1, -1, 2, -2];
/// How many such steps the guess is long: each is 4 %.
const STEPS_TO_START: u64 = 25;
/// Programs of more instructions are searched from one start only, because each probe of them takes tenths of a
/// second. In what is so long no single block decides, so there are few holes.
const LONG_PROGRAM: usize = 500_000;

/// All maxima, and what they rest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Maxima {
    pub(super) prediction: Prediction,
    /// Of the steady maximum.
    pub(super) evidence: Evidence,
    /// Of the other maxima.
    pub(super) evidence_of_max: Evidence,
    /// Whether the search ended because no larger batch is ever tried.
    pub(super) at_ceiling: bool,
}

/// Finds the maxima by simulation alone.
///
/// Where there are holes, which edge a search comes to depends on where it starts. Several starts vote;
/// three that agree at once are enough. See Note [Holes] in `search`.
pub(super) fn simulate(cache: &mut ProbeCache<'_>) -> Result<Maxima, EngineError> {
    let guess = guess(cache)?;
    let outline = cache.outline(guess)?;
    let is_long = outline.is_some_and(|outline| outline.instructions > LONG_PROGRAM);
    let mut found: Vec<Maxima> = Vec::new();
    for away in STARTS {
        let distance = away.saturating_mul((guess / STEPS_TO_START).max(1).cast_signed());
        let start = guess
            .saturating_add_signed(distance)
            .clamp(1, cache.ceiling());
        let mut search = Search::simulated(start, cache.ceiling());
        drive(&mut search, cache)?;
        found.push(maxima(&search, cache.evidence()));
        let agree = |pair: &[Maxima]| pair[0].prediction == pair[1].prediction;
        if is_long || (found.len() == 3 && found.windows(2).all(agree)) {
            break;
        }
    }
    let without_retries = most_common(&found, |maxima| maxima.prediction.max_batch_without_retries);
    let largest = most_common(&found, |maxima| maxima.prediction.max_batch);
    let at_without_retries =
        |maxima: &&Maxima| maxima.prediction.max_batch_without_retries == without_retries;
    let without_retries_found = found
        .iter()
        .find(at_without_retries)
        .expect("it is one of them");
    let largest = largest.max(without_retries);
    let (mut steady, mut at_ceiling) = (without_retries, without_retries_found.at_ceiling);
    // Recordings do not say what a convolution takes that is refused its workspace.
    if largest > without_retries && cache.evidence() != Evidence::Recorded {
        let mut search = Search::steady(largest);
        drive(&mut search, cache)?;
        steady = steady.max(search.largest(Goal::FinishSteadily).batch);
        at_ceiling = steady >= cache.ceiling().min(MAX_BATCH);
    }
    Ok(Maxima {
        prediction: Prediction {
            max_batch: largest,
            max_batch_steady: steady,
            max_batch_without_retries: without_retries,
        },
        at_ceiling,
        ..*without_retries_found
    })
}

/// What most searches found, and the smaller of two that as many found.
fn most_common(found: &[Maxima], maximum: impl Fn(&Maxima) -> u64) -> u64 {
    let mut votes = BTreeMap::new();
    for maxima in found {
        *votes.entry(maximum(maxima)).or_insert(0) += 1;
    }
    // Of equals, `max_by_key` takes the last.
    let most = votes.into_iter().rev().max_by_key(|(_, votes)| *votes);
    most.map_or(0, |(batch, _)| batch)
}

/// Has real probes confirm what was simulated, or find out what is true instead.
pub(super) fn confirm(simulated: Maxima, real: &mut ProbeCache<'_>) -> Result<Maxima, EngineError> {
    let prediction = simulated.prediction;
    let ceiling = real.ceiling();
    let mut steady =
        Search::confirming(prediction, ceiling, CONFIRMATIONS).only(Goal::FinishSteadily);
    drive(&mut steady, real)?;
    if steady.agreement(Goal::FinishSteadily) == Agreement::Agrees {
        return Ok(Maxima {
            evidence: Evidence::Probed,
            ..simulated
        });
    }
    // The simulation was wrong about one maximum, so it is not believed about the others.
    let found = steady.largest(Goal::FinishSteadily).batch;
    let shifted = |batch: u64| (batch + found).saturating_sub(prediction.max_batch_steady);
    let shifted = Prediction {
        max_batch: shifted(prediction.max_batch).max(found),
        max_batch_steady: found,
        max_batch_without_retries: shifted(prediction.max_batch_without_retries).min(found),
    };
    let mut all = Search::confirming(shifted, ceiling, CONFIRMATIONS);
    drive(&mut all, real)?;
    Ok(maxima(&all, Evidence::Probed))
}

/// Finds the maxima by real probes alone, from a guess.
pub(super) fn probe(real: &mut ProbeCache<'_>, guess: u64) -> Result<Maxima, EngineError> {
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

fn maxima(search: &Search, evidence: Evidence) -> Maxima {
    let without_retries = search.largest(Goal::FinishWithoutRetries).batch;
    let steady = search.largest(Goal::FinishSteadily);
    Maxima {
        prediction: Prediction {
            max_batch: search.largest(Goal::Finish).batch.max(steady.batch),
            max_batch_steady: steady.batch,
            max_batch_without_retries: without_retries,
        },
        evidence,
        evidence_of_max: evidence,
        at_ceiling: steady.above == Above::Ceiling,
    }
}

/// Where the limit would be reached if memory grew as it does between small batches, less a little for what
/// the allocator's fragments take.
fn guess(cache: &mut ProbeCache<'_>) -> Result<u64, EngineError> {
    let peak = |cache: &mut ProbeCache<'_>, batch| {
        let report = &cache.probe(batch)?.report;
        let fits = matches!(report.verdict, Verdict::Fits | Verdict::FitsWithRetries);
        Ok::<_, EngineError>(fits.then_some(report.peak_allocated_bytes))
    };
    let limit = cache.limit().0;
    let Some(of_one) = peak(cache, 1)? else {
        let ceiling = cache.ceiling();
        for batch in BESIDE_ONE.into_iter().filter(|batch| *batch <= ceiling) {
            if peak(cache, batch)?.is_some() {
                return Ok(batch);
            }
        }
        return Ok(1);
    };
    // The further from one sample, the better what grows is told from what does not. Where an outline says that a
    // batch is far from the limit, or beyond half of it, no probe has to.
    let far = |cache: &mut ProbeCache<'_>, batch| {
        let outline = cache.outline(batch)?;
        Ok::<_, EngineError>(outline.map(|outline| outline.allocated.0 < limit / 2))
    };
    let (mut batch, mut peak_there) = (1, of_one);
    let mut start = 1;
    let ceiling = cache.ceiling();
    while 2 * start <= ceiling && far(cache, 2 * start)? == Some(true) {
        start *= 2;
    }
    while start > 1 && batch == 1 {
        match peak(cache, start)? {
            Some(there) => (batch, peak_there) = (start, there),
            None => start /= 2,
        }
    }
    while 2 * batch <= ceiling && (batch == 1 || far(cache, 2 * batch)? != Some(false)) {
        match peak(cache, 2 * batch)? {
            Some(next) if next < limit / 2 || batch == 1 => (batch, peak_there) = (2 * batch, next),
            _ => break,
        }
    }
    let grown = peak_there.saturating_sub(of_one);
    if grown == 0 {
        return Ok(batch);
    }
    let left = u128::from(limit.saturating_sub(peak_there));
    let samples = left * u128::from(batch - 1) / u128::from(grown) * 97 / 100;
    Ok(batch
        .saturating_add(u64::try_from(samples).unwrap_or(ceiling))
        .min(ceiling))
}
