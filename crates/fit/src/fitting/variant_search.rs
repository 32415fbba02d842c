//! What is found out about one variant: its maxima, and which batches leave headroom.

use std::collections::BTreeMap;

use crate::fitting::Result;
use crate::model::SearchMode;
use crate::probe::{Evidence, StepOutcome, Verdict};
use crate::search::{
    Above, Agreement, Bisections, Goal, MAX_BATCH, PredictedBatches, SamplingDensity, Search, edge,
};
use crate::units::Bytes;

use super::probing::runner::{ProbeCache, ProbeOutcome, StepTime};
use super::recommendation::headroom::VariantHeadroom;

/// Most micro-steps that a probe runs for each optimizer step. Gradients exist from the second micro-step on,
/// so that each repeats the one before, allocation by allocation: peaks of ResNet, GPT-2, Llama, ViT and U-Net
/// are the same to the byte from three micro-steps to 33.
pub(super) const MOST_MICRO_STEPS: u32 = 4;
/// How far below the largest batch the growth of memory is measured, as a part of that batch.
const SLOPE_PART: u64 = 16;

/// Most real probes of a fit that a simulation has prepared. Two confirm it; the rest are for a
/// simulation that was wrong by more than a few samples.
const CONFIRMATIONS: u64 = 16;
/// Most real probes of a fit without a simulation. Galloping and bisection to 2^24 take fewer.
const REAL_PROBES: u64 = 64;
/// Most simulated probes from above. Galloping and bisection from 2^24 take fewer.
const DOWNWARD_PROBES: u64 = 64;
/// Where a search by real probes alone begins: small enough to fail fast, large enough to be near most.
const FIRST_GUESS: u64 = 32;
/// Programs of more instructions are bisected only once, because each probe of them takes tenths of a
/// second. In what is so long no single block decides, so there are few holes.
const LONG_PROGRAM: usize = 500_000;

/// The number of micro-steps that a probe of an optimizer step with `steps` of them runs.
pub(super) fn micro_steps(steps: u64) -> u32 {
    u32::try_from(steps).map_or(MOST_MICRO_STEPS, |steps| steps.min(MOST_MICRO_STEPS))
}

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

/// Asks a simulation about one variant, and a real device where there is one.
///
/// Everything depends on the number of micro-steps (gradients live through the later forwards), so everything
/// is kept by it. The simulation proposes; what a real device was asked, it decides. See Note [Leaving headroom] in
/// `headroom`.
pub(super) struct VariantSearch<'a, 'b> {
    simulated: &'a mut ProbeCache<'b>,
    real: Option<&'a mut ProbeCache<'b>>,
    method: SearchMode,
    simulated_maxima: BTreeMap<u32, MaxBatches>,
    /// What real probes confirmed or corrected.
    real_maxima: BTreeMap<u32, MaxBatches>,
    /// The largest batches that leave headroom.
    safe: BTreeMap<u32, u64>,
}

impl<'a, 'b> VariantSearch<'a, 'b> {
    pub(super) fn new(
        simulated: &'a mut ProbeCache<'b>,
        real: Option<&'a mut ProbeCache<'b>>,
        method: SearchMode,
    ) -> VariantSearch<'a, 'b> {
        VariantSearch {
            simulated,
            real,
            method,
            simulated_maxima: BTreeMap::new(),
            real_maxima: BTreeMap::new(),
            safe: BTreeMap::new(),
        }
    }

    /// The simulation, with so many micro-steps.
    pub(super) fn simulation(&mut self, micro_steps: u32) -> &mut ProbeCache<'b> {
        self.simulated.accumulate(micro_steps);
        self.simulated
    }

    /// The device whose word counts, with so many micro-steps.
    pub(super) fn deciding(&mut self, micro_steps: u32) -> &mut ProbeCache<'b> {
        let cache = match &mut self.real {
            Some(real) => real,
            None => &mut *self.simulated,
        };
        cache.accumulate(micro_steps);
        cache
    }

    /// How long an optimizer step of so many micro-steps takes on that device.
    pub(super) fn step_time(&mut self, steps: u64, batch: u64) -> Result<StepTime> {
        self.deciding(micro_steps(steps)).step_time(batch, steps)
    }

    /// Samples a second of such steps, on one GPU.
    pub(super) fn speed(&mut self, steps: u64, batch: u64) -> Result<Option<f64>> {
        Ok(self.step_time(steps, batch)?.speed(steps, batch))
    }

    /// How closely speeds may be looked at: each is a training run where there is a real device.
    pub(super) fn look(&self) -> SamplingDensity {
        match self.real {
            Some(_) => SamplingDensity::Sparingly,
            None => SamplingDensity::Closely,
        }
    }

    pub(super) fn limit(&self) -> Bytes {
        self.simulated.limit
    }

    /// The headroom that batches leave.
    pub(super) fn headroom(&self) -> VariantHeadroom {
        self.simulated.headroom.clone()
    }

    /// Has batches leave this headroom from now on.
    pub(super) fn keep(&mut self, headroom: VariantHeadroom) {
        self.safe.clear();
        if let Some(real) = &mut self.real {
            real.keep(headroom.clone());
        }
        self.simulated.keep(headroom);
    }

    /// The maxima as far as they are known: confirmed, or else simulated.
    pub(super) fn maxima(&mut self, micro_steps: u32) -> Result<MaxBatches> {
        if let Some(confirmed) = self.real_maxima.get(&micro_steps) {
            return Ok(*confirmed);
        }
        if self.real.is_some() && self.method == SearchMode::Probes {
            return self.settle(micro_steps);
        }
        if let Some(known) = self.simulated_maxima.get(&micro_steps) {
            return Ok(*known);
        }
        let found = simulate(self.simulation(micro_steps))?;
        self.simulated_maxima.insert(micro_steps, found);
        Ok(found)
    }

    /// Whether the device that decides was asked about the maxima.
    pub(super) fn is_settled(&self, micro_steps: u32) -> bool {
        let known = match self.real {
            Some(_) => &self.real_maxima,
            None => &self.simulated_maxima,
        };
        known.contains_key(&micro_steps)
    }

    /// Asks the device that decides about the maxima.
    pub(super) fn settle(&mut self, micro_steps: u32) -> Result<MaxBatches> {
        let guess = self
            .real_maxima
            .values()
            .next()
            .map_or(FIRST_GUESS, |known| known.prediction.max_batch_steady);
        let simulated = match self.method {
            SearchMode::Auto | SearchMode::Recorded => Some(self.maxima(micro_steps)?),
            SearchMode::Probes => None,
        };
        let Some(real) = &mut self.real else {
            return self.maxima(micro_steps);
        };
        real.accumulate(micro_steps);
        let found = match simulated {
            Some(simulated) => confirm(simulated, real)?,
            None => probe(real, guess)?,
        };
        self.real_maxima.insert(micro_steps, found);
        self.safe.remove(&micro_steps);
        Ok(found)
    }

    /// Whether a plan runs steadily and leaves headroom, as far as it was asked for: simulated first,
    /// because that is cheap.
    pub(super) fn leaves_headroom(&mut self, steps: u64, batch: u64) -> Result<bool> {
        if batch > self.simulated.ceiling {
            return Ok(false);
        }
        let micro_steps = micro_steps(steps);
        if self.simulation_counts(micro_steps)
            && !self.simulation_leaves_headroom(micro_steps, batch)?
        {
            return Ok(false);
        }
        self.real_leaves_headroom(micro_steps, batch)
    }

    /// The largest batch that runs steadily and leaves headroom, or 0: an edge, as all maxima are.
    pub(super) fn largest_safe(&mut self, micro_steps: u32) -> Result<u64> {
        if let Some(known) = self.safe.get(&micro_steps) {
            return Ok(*known);
        }
        let safe = match self.maxima(micro_steps)?.prediction.max_batch_steady {
            0 => 0,
            steady => self.largest_safe_up_to(steady, micro_steps)?,
        };
        self.safe.insert(micro_steps, safe);
        Ok(safe)
    }

    fn largest_safe_up_to(&mut self, steady: u64, micro_steps: u32) -> Result<u64> {
        let (mut highest, mut step) = (steady, 1);
        loop {
            let candidate = if self.simulation_counts(micro_steps) {
                self.simulated_safe(highest, micro_steps)?
            } else {
                highest
            };
            if !self.real_maxima.contains_key(&micro_steps) {
                return Ok(candidate);
            }
            // A simulation that sees nothing is not the last word.
            let candidate = candidate.max(1);
            if self.real_leaves_headroom(micro_steps, candidate)? {
                return Ok(candidate);
            }
            if candidate == 1 {
                return Ok(0);
            }
            let lacking = self.samples_lacking(micro_steps, candidate)?;
            highest = candidate.saturating_sub(lacking.max(step)).max(1);
            step *= 2;
        }
    }

    /// The largest batch of at most `highest` that leaves headroom in the simulation, or 0.
    fn simulated_safe(&mut self, highest: u64, micro_steps: u32) -> Result<u64> {
        let (of_real, limit) = (self.headroom_of_real(), self.limit());
        let cache = self.simulation(micro_steps);
        let retries = cache.probe(highest)?.report.course() == StepOutcome::Steady;
        let from = if retries { highest } else { 0 };
        largest(cache, from, |cache, batch| {
            Ok(batch <= highest && leaves_headroom(cache, of_real, limit, batch)?)
        })
    }

    /// Whether the simulation is worth asking: not where real probes have found it wrong.
    fn simulation_counts(&self, micro_steps: u32) -> bool {
        let steady = |maxima: &MaxBatches| maxima.prediction.max_batch_steady;
        match (&self.real, self.method) {
            (None, _) => true,
            (Some(_), SearchMode::Probes) => false,
            (Some(_), SearchMode::Auto | SearchMode::Recorded) => {
                let real = self.real_maxima.get(&micro_steps);
                let simulated = self.simulated_maxima.get(&micro_steps);
                real.is_none_or(|real| simulated.map(steady) == Some(steady(real)))
            }
        }
    }

    fn simulation_leaves_headroom(&mut self, micro_steps: u32, batch: u64) -> Result<bool> {
        let (of_real, limit) = (self.headroom_of_real(), self.limit());
        leaves_headroom(self.simulation(micro_steps), of_real, limit, batch)
    }

    /// What a real device says of it, where that was asked about this number of micro-steps at all.
    fn real_leaves_headroom(&mut self, micro_steps: u32, batch: u64) -> Result<bool> {
        let limit = self.limit();
        let simulation_counts = self.simulation_counts(micro_steps);
        match &mut self.real {
            Some(real) if self.real_maxima.contains_key(&micro_steps) => {
                real.accumulate(micro_steps);
                let probed = real.probe(batch)?;
                let is_steady = Goal::FinishSteadily.is_met_by(probed.report.course());
                let retried = probed.report.verdict == Verdict::FitsWithRetries;
                // What retried fills the limit by nature; what it needs of it, the simulation has said before.
                Ok((retried && is_steady && simulation_counts)
                    || probed.leaves(probed.headroom(limit), limit))
            }
            Some(_) | None => Ok(true),
        }
    }

    /// The headroom of real probes: they assume less than a simulation does.
    fn headroom_of_real(&self) -> Option<Bytes> {
        let real = self.real.as_ref()?;
        let (_, probed) = real.probes().next()?;
        Some(probed.headroom(self.limit()))
    }

    /// How many samples fewer than `batch` would leave headroom, if memory grew evenly; at least one.
    fn samples_lacking(&mut self, micro_steps: u32, batch: u64) -> Result<u64> {
        let limit = self.limit();
        let is_simulated = self.simulation_counts(micro_steps);
        let headroom = self.headroom_of_real();
        let cache = if is_simulated {
            self.simulation(micro_steps)
        } else {
            self.deciding(micro_steps)
        };
        let probed = cache.probe(batch)?;
        let headroom = headroom.unwrap_or_else(|| probed.headroom(limit));
        let over =
            Bytes(probed.report.peak_reserved_bytes).saturating_sub(limit.saturating_sub(headroom));
        let per_sample = if is_simulated {
            slope(batch, cache)?
        } else {
            // A slope is not worth another real probe.
            of_one_sample(probed)
        };
        Ok(over.0.div_ceil(per_sample.0.max(1)).max(1))
    }
}

/// Whether a batch leaves headroom in a simulation: as much as a real device wants, where there is one.
fn leaves_headroom(
    cache: &mut ProbeCache<'_>,
    of_real: Option<Bytes>,
    limit: Bytes,
    batch: u64,
) -> Result<bool> {
    let headroom = match of_real {
        Some(headroom) => headroom,
        None => cache.probe(batch)?.headroom(limit),
    };
    cache.is_safe(headroom, limit, batch)
}

/// How much the peak grows with a sample, around a batch.
fn slope(batch: u64, cache: &mut ProbeCache<'_>) -> Result<Bytes> {
    let at_batch = cache.probe(batch)?;
    let below = batch - batch.div_ceil(SLOPE_PART);
    if below == 0 {
        return Ok(of_one_sample(at_batch));
    }
    let peak = at_batch.report.peak_allocated_bytes;
    let peak_below = cache.probe(below)?.report.peak_allocated_bytes;
    Ok(Bytes(peak.saturating_sub(peak_below) / (batch - below)))
}

/// What a sample takes, if the model takes nothing but its parameters.
fn of_one_sample(probed: &ProbeOutcome) -> Bytes {
    let report = &probed.report;
    let grown = report
        .peak_allocated_bytes
        .saturating_sub(report.model_allocated_bytes);
    Bytes(grown / report.batch.max(1))
}

/// Finds the maxima by simulation alone.
fn simulate(cache: &mut ProbeCache<'_>) -> Result<MaxBatches> {
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
        at_ceiling: steady >= cache.ceiling.min(MAX_BATCH),
    })
}

/// The largest batch that `meets` something which no batch does whose tensors alone are larger than the limit.
///
/// What depends on retries is not monotone in the limit anyway, and has wide gaps: it is looked for from `from` downward, too.
/// See Note [One tree for every limit] in `search`.
fn largest<'a>(
    cache: &mut ProbeCache<'a>,
    from: u64,
    mut meets: impl FnMut(&mut ProbeCache<'a>, u64) -> Result<bool>,
) -> Result<u64> {
    let outline = cache.outline(1)?;
    let is_long = outline.is_some_and(|outline| outline.instructions > LONG_PROGRAM);
    let bisections = if is_long {
        Bisections::One
    } else {
        Bisections::Four
    };
    let found = edge(cache.ceiling, bisections, |batch| -> Result<_> {
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
fn confirm(simulated: MaxBatches, real: &mut ProbeCache<'_>) -> Result<MaxBatches> {
    let prediction = simulated.prediction;
    let ceiling = real.ceiling;
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
fn probe(real: &mut ProbeCache<'_>, guess: u64) -> Result<MaxBatches> {
    let mut search = Search::probing(guess, real.ceiling, REAL_PROBES);
    drive(&mut search, real)?;
    Ok(maxima(&search, real.evidence()))
}

fn drive(search: &mut Search, cache: &mut ProbeCache<'_>) -> Result<()> {
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
