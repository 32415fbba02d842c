//! From maxima to what to train with.

use crate::jobs::{EngineError, Recommendation};
use crate::probe::{Evidence, ProbeReport, Verdict};
use crate::program::Category;
use crate::search::{Kept, MemorySlope, Plan, keep_headroom, plans};
use crate::units::Bytes;

use super::doubts::Doubt;
use super::maxima::Maxima;
use super::prober::Bench;

/// Most micro-steps that a probe of a plan runs. From the second on, when gradients exist, each repeats
/// the one before allocation by allocation, so more would only take longer.
const PROBED_MICRO_STEPS: u64 = 8;
/// How many batches below a hole are tried.
const BELOW_A_HOLE: u64 = 64;
/// How exactly the missing memory is found.
const MISSING_GRAIN: Bytes = Bytes::mib(2);

/// What the user wants of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    /// Samples per optimizer step over all ranks.
    pub(super) target_batch: Option<u64>,
    /// Ranks.
    pub(super) world_size: u64,
}

/// What a recommendation is made from: a device that decides, and a simulation beside a real one.
pub(super) struct Benches<'a, 'b> {
    pub(super) simulated: &'a mut Bench<'b>,
    pub(super) real: Option<&'a mut Bench<'b>>,
}

impl<'b> Benches<'_, 'b> {
    /// The device whose word counts.
    fn deciding(&mut self) -> &mut Bench<'b> {
        match &mut self.real {
            Some(real) => real,
            None => self.simulated,
        }
    }

    /// Whether these steps run without a retry, first simulated, because that is cheap.
    fn fits(&mut self, steps: u64, batch: u64) -> Result<bool, EngineError> {
        let accumulation = micro_steps(self.simulated, steps);
        let fits = |report: &ProbeReport| report.verdict == Verdict::Fits;
        if self.real.is_none() || steps > 1 {
            let report = self.simulated.probe_accumulating(accumulation, batch)?;
            if !fits(report) {
                return Ok(false);
            }
        }
        match &mut self.real {
            Some(real) => real.probe_accumulating(accumulation, batch).map(fits),
            None => Ok(true),
        }
    }
}

/// The number of micro-steps that a probe of a plan runs.
fn micro_steps(bench: &Bench<'_>, steps: u64) -> u32 {
    let asked_for = bench.variant().accumulation;
    if steps == u64::from(asked_for) {
        return asked_for;
    }
    u32::try_from(steps.min(PROBED_MICRO_STEPS)).expect("it is at most eight")
}

/// Says what to train one variant with.
pub(super) fn recommend(
    maxima: Maxima,
    wish: Wish,
    mut benches: Benches<'_, '_>,
    mut notes: Vec<String>,
) -> Result<Recommendation, EngineError> {
    let calm = maxima.prediction.max_batch_without_retries;
    if calm == 0 {
        return nothing_fits(maxima, benches, notes);
    }
    let kept = headroom(calm, &mut benches)?;
    let Some(plan) = choose(kept.batch, wish, &mut benches)? else {
        notes.push("no batch that leaves headroom runs without retries".to_owned());
        return nothing_fits(maxima, benches, notes);
    };
    if kept.headroom > Bytes::ZERO {
        let share = |bytes: Bytes| Bytes(share_of(bytes.0, kept.batch, calm));
        let doubts = benches.deciding().doubts(calm);
        notes.push(why(kept.headroom, doubts, share));
    }
    if maxima.evidence != maxima.evidence_of_max {
        notes.push("`max_batch` is simulated; `max_batch_without_retries` was probed".to_owned());
    }
    let limited_by = limited_by(calm, maxima.at_ceiling, benches.deciding())?;
    let deciding = benches.deciding();
    let accumulation = micro_steps(deciding, plan.accumulation_steps);
    let limit = deciding.limit();
    let report = deciding.probe_in_full(accumulation, plan.micro_batch)?;
    let step_ms = step_ms(report);
    let micro_step_ms = step_ms.map(|ms| ms / f64::from(accumulation));
    for note in &report.notes {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    Ok(Recommendation {
        micro_batch: plan.micro_batch,
        accumulation_steps: plan.accumulation_steps,
        global_batch: plan.global_batch,
        shortfall: plan.shortfall,
        max_batch: maxima.prediction.max_batch,
        max_batch_without_retries: calm,
        peak_allocated_bytes: report.peak_allocated_bytes,
        peak_reserved_bytes: report.peak_reserved_bytes,
        limit_bytes: limit.0,
        headroom_bytes: limit.0.saturating_sub(report.peak_reserved_bytes),
        limited_by,
        evidence: maxima.evidence,
        step_ms: micro_step_ms,
        samples_per_second: micro_step_ms.map(|ms| plan.micro_batch as f64 * 1000.0 / ms),
        missing_bytes: None,
        notes,
    })
}

/// The largest batch that leaves headroom: the largest calm one, where that leaves it already.
fn headroom(calm: u64, benches: &mut Benches<'_, '_>) -> Result<Kept, EngineError> {
    let per_sample = if benches.simulated.probes().next().is_some() {
        per_sample(calm, benches.simulated)?
    } else {
        // Only real probes were asked for, and a slope is not worth one.
        let report = benches.deciding().probe(calm)?;
        let grown = report
            .peak_allocated_bytes
            .saturating_sub(report.model_allocated_bytes);
        Bytes(grown / calm)
    };
    let deciding = benches.deciding();
    let slope = MemorySlope {
        limit: deciding.limit(),
        per_sample,
    };
    let peak_reserved = Bytes(deciding.probe(calm)?.peak_reserved_bytes);
    let doubts = deciding.doubts(calm);
    let error = doubts.iter().map(|doubt| doubt.share()).sum();
    let assumed = doubts.iter().map(|doubt| doubt.bytes()).sum();
    let kept = keep_headroom(below_assumed(calm, slope, assumed), slope, error);
    // What ran without a retry runs the same under any limit that it did not pass.
    let room = slope
        .limit
        .saturating_sub(kept.headroom)
        .saturating_sub(assumed);
    if peak_reserved <= room {
        let headroom = kept.headroom + assumed;
        return Ok(Kept {
            batch: calm,
            headroom,
        });
    }
    let of_batch = Bytes(share_of(assumed.0, kept.batch, calm));
    Ok(Kept {
        headroom: kept.headroom + of_batch,
        ..kept
    })
}

/// The largest batch at which what is `assumed` of `calm` samples, in proportion, still fits: with each sample
/// less, both the peak and what is assumed shrink.
fn below_assumed(calm: u64, slope: MemorySlope, assumed: Bytes) -> u64 {
    let per_sample = slope.per_sample.0.saturating_add(assumed.0 / calm.max(1));
    let samples = assumed.0.div_ceil(per_sample.max(1));
    calm.saturating_sub(samples).max(calm.min(1))
}

/// `bytes` of `all` samples, for `some` of them.
fn share_of(bytes: u64, some: u64, all: u64) -> u64 {
    let share = u128::from(bytes) * u128::from(some) / u128::from(all.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// What a reader is told of the headroom.
fn why(headroom: Bytes, doubts: &[Doubt], of_batch: impl Fn(Bytes) -> Bytes) -> String {
    let figure = |doubt: &Doubt| match doubt.bytes() {
        Bytes::ZERO => format!("{:.1}%", doubt.share() * 100.0),
        bytes => of_batch(bytes).to_string(),
    };
    let reasons: Vec<String> = doubts
        .iter()
        .map(|doubt| format!("{} for {}", figure(doubt), doubt.reason()))
        .collect();
    format!("{headroom} of headroom is kept: {}", reasons.join(", "))
}

/// How much the peak grows with a sample, around the largest batch.
fn per_sample(calm: u64, bench: &mut Bench<'_>) -> Result<Bytes, EngineError> {
    let at_calm = bench.probe(calm)?.peak_allocated_bytes;
    let below = calm - calm.div_ceil(16);
    if below == 0 {
        return Ok(Bytes(at_calm));
    }
    let at_below = bench.probe(below)?.peak_allocated_bytes;
    Ok(Bytes(at_calm.saturating_sub(at_below) / (calm - below)))
}

/// The plan to recommend: the first that was seen to run without a retry.
fn choose(
    safe_max: u64,
    wish: Wish,
    benches: &mut Benches<'_, '_>,
) -> Result<Option<Plan>, EngineError> {
    let Some(target) = wish.target_batch else {
        let accumulation = u64::from(benches.simulated.variant().accumulation);
        return largest_below(safe_max, accumulation, benches).map(|batch| {
            batch.map(|micro_batch| Plan {
                micro_batch,
                accumulation_steps: accumulation,
                global_batch: micro_batch * accumulation * wish.world_size,
                shortfall: 0,
            })
        });
    };
    for plan in plans(target, wish.world_size, safe_max) {
        if benches.fits(plan.accumulation_steps, plan.micro_batch)? {
            return Ok(Some(plan));
        }
    }
    // Accumulation takes so much more that half of the safe maximum is still too large.
    let Some(largest) = largest_accumulating(safe_max, benches)? else {
        return Ok(None);
    };
    for plan in plans(target, wish.world_size, largest) {
        if benches.fits(plan.accumulation_steps, plan.micro_batch)? {
            return Ok(Some(plan));
        }
    }
    Ok(None)
}

/// The largest batch of at most `safe_max` that runs without a retry.
fn largest_below(
    safe_max: u64,
    steps: u64,
    benches: &mut Benches<'_, '_>,
) -> Result<Option<u64>, EngineError> {
    let lowest = safe_max.saturating_sub(BELOW_A_HOLE).max(1);
    for batch in (lowest..=safe_max).rev() {
        if benches.fits(steps, batch)? {
            return Ok(Some(batch));
        }
    }
    Ok(None)
}

/// Halves until accumulating steps fit, then looks for the edge above.
fn largest_accumulating(
    safe_max: u64,
    benches: &mut Benches<'_, '_>,
) -> Result<Option<u64>, EngineError> {
    let steps = PROBED_MICRO_STEPS;
    let (mut low, mut high) = (safe_max / 2, safe_max);
    while low > 0 && !benches.fits(steps, low)? {
        (low, high) = (low / 2, low);
    }
    while low > 0 && high - low > 1 {
        let middle = low + (high - low) / 2;
        if benches.fits(steps, middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok((low > 0).then_some(low))
}

/// The answer when not even a batch of one runs without retries.
fn nothing_fits(
    maxima: Maxima,
    mut benches: Benches<'_, '_>,
    notes: Vec<String>,
) -> Result<Recommendation, EngineError> {
    let limit = benches.deciding().limit();
    let missing = missing(benches.simulated)?;
    let deciding = benches.deciding();
    let report = deciding.probe_in_full(deciding.variant().accumulation, 1)?;
    Ok(Recommendation {
        micro_batch: 0,
        accumulation_steps: 0,
        global_batch: 0,
        shortfall: 0,
        max_batch: maxima.prediction.max_batch,
        max_batch_without_retries: maxima.prediction.max_batch_without_retries,
        peak_allocated_bytes: report.peak_allocated_bytes,
        peak_reserved_bytes: report.peak_reserved_bytes,
        limit_bytes: limit.0,
        headroom_bytes: 0,
        limited_by: described(report),
        evidence: maxima.evidence,
        step_ms: None,
        samples_per_second: None,
        missing_bytes: Some(missing.0),
        notes,
    })
}

/// How much higher the limit would have to be for a batch of one.
fn missing(bench: &mut Bench<'_>) -> Result<Bytes, EngineError> {
    /// Far above any card, far below where sums of bytes overflow.
    const PLENTY: Bytes = Bytes::gib(1 << 20);
    let limit = bench.limit();
    let needed = Bytes(bench.probe_within(PLENTY, 1)?.peak_reserved_bytes);
    let (mut low, mut high) = (limit, needed.max(limit));
    while high.saturating_sub(low) > MISSING_GRAIN {
        let middle = Bytes(low.0 + (high.0 - low.0) / 2);
        if bench.probe_within(middle, 1)?.verdict == Verdict::Fits {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok(high.saturating_sub(limit).max(Bytes(1)))
}

/// What keeps the batch from being larger, by name.
fn limited_by(calm: u64, at_ceiling: bool, bench: &mut Bench<'_>) -> Result<String, EngineError> {
    if at_ceiling {
        return Ok(format!("nothing: batches above {calm} are not tried"));
    }
    let accumulation = bench.variant().accumulation;
    // A real probe above the maximum is not worth its time for a name alone.
    let named = match (bench.evidence(), bench.seen(accumulation, calm + 1)) {
        (Evidence::Probed, None) => calm,
        (Evidence::Probed, Some(_)) | (Evidence::Simulated, _) => calm + 1,
    };
    bench.probe_in_full(accumulation, named).map(described)
}

/// What a peak was mostly made of, and what did not fit on top of it.
fn described(report: &ProbeReport) -> String {
    let total: u64 = report.at_peak.iter().map(|part| part.bytes).sum();
    let largest = report.at_peak.iter().max_by_key(|part| part.bytes);
    let mainly = match largest {
        Some(part) if total > 0 => {
            let percent = part.bytes as f64 * 100.0 / total as f64;
            format!("{} ({percent:.0}% of the peak)", name(part.category))
        }
        Some(_) | None => "memory".to_owned(),
    };
    let batch = report.batch;
    match (&report.cause, report.verdict) {
        (Some(cause), _) => format!("{mainly}; batch {batch}: {cause}"),
        (None, Verdict::FitsWithRetries) => {
            let often = match report.retries {
                1 => "once".to_owned(),
                retries => format!("{retries} times"),
            };
            format!(
                "{mainly}; batch {batch} runs, but the allocator has to free its cache and retry {often}"
            )
        }
        (None, Verdict::Fits | Verdict::OutOfMemory | Verdict::Failed) => mainly,
    }
}

fn name(category: Category) -> &'static str {
    match category {
        Category::Parameters => "parameters",
        Category::Gradients => "gradients",
        Category::OptimizerState => "optimizer state",
        Category::OptimizerScratch => "temporaries of the optimizer",
        Category::Batch => "the batch itself",
        Category::Activations => "activations",
        Category::ActivationGradients => "gradients of activations",
        Category::Workspace => "library workspaces",
    }
}

/// Milliseconds of a warm step: the first one also tunes and fills caches.
fn step_ms(report: &ProbeReport) -> Option<f64> {
    report
        .steps
        .iter()
        .skip(1)
        .filter_map(|step| step.elapsed_ms)
        .min_by(f64::total_cmp)
}
