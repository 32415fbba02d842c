//! A recommendation of another plan than the one that was found for a length alone: its figures, and how long its steps take.

use crate::fitting::Result;
use crate::fitting::composite::{simulated_probe, simulated_step_time};
use crate::fitting::probing::runner::StepTime;
use crate::fitting::recommendation::recommend::across_ranks;
use crate::fitting::variant_search::{MOST_MICRO_STEPS, micro_steps};
use crate::limits::Cancel;
use crate::model::{Request, Variant};
use crate::probe::{Detail, PeakMemory};
use crate::search::Plan;
use crate::{Limit, LimitKind, Recommendation, Why};

/// How a note begins that says why the time of a step is unknown.
pub(crate) const TIME_UNKNOWN: &str = "how long a step takes is not known";

/// What a plan is asked about: a request about one length, and how it trains.
pub(crate) type Of<'a> = (&'a Request, &'a Variant);

/// Recommends another plan, which reserves so much; how long its steps take is that of the length that is asked about.
pub(crate) fn alternate_plan(
    best: &mut Recommendation,
    plan: &Plan,
    (question, training): Of<'_>,
    peaks: PeakMemory,
    cancel: &Cancel,
) -> Result<()> {
    best.micro_batch = plan.micro_batch;
    best.accumulation_steps = plan.accumulation_steps;
    best.global_batch = plan.global_batch;
    best.shortfall = plan.shortfall;
    best.exactly = None;
    best.peak_allocated_bytes = peaks.peak_allocated_bytes;
    best.peak_reserved_bytes = peaks.peak_reserved_bytes;
    best.headroom_bytes = best.limit_bytes.saturating_sub(peaks.peak_reserved_bytes);
    best.without_speed();
    let steps = plan.accumulation_steps;
    let variant = with_steps(training, steps);
    let time = simulated_step_time(question, &variant, (plan.micro_batch, steps), cancel)?;
    match time {
        StepTime::Seconds(seconds, from) => {
            let ms = 1000.0 * seconds;
            best.step_ms = Some(ms / steps.max(1) as f64);
            best.optimizer_step_ms = Some(ms);
            best.samples_per_second = time.speed(steps, plan.micro_batch);
            best.speed_from = Some(from);
        }
        StepTime::Unknown(why) => {
            if !best.notes.iter().any(|note| note.starts_with(TIME_UNKNOWN)) {
                best.notes.push(format!("{TIME_UNKNOWN}: {why}"));
            }
        }
    }
    Ok(())
}

/// Recommends a smaller plan than leaves headroom at the length that is asked about, because of another length.
pub(crate) fn lowered_to(
    best: &mut Recommendation,
    plan: &Plan,
    (question, training): Of<'_>,
    because_of: String,
    cancel: &Cancel,
) -> Result<()> {
    let refused = best.micro_batch;
    let variant = with_steps(training, plan.accumulation_steps);
    let batch = plan.micro_batch;
    let Some(simulated) = simulated_probe(question, &variant, batch, Detail::Full, cancel)? else {
        return Ok(());
    };
    let report = simulated.report();
    let peaks = PeakMemory {
        peak_allocated_bytes: report.peak_allocated_bytes,
        peak_reserved_bytes: report.peak_reserved_bytes,
    };
    alternate_plan(best, plan, (question, training), peaks, cancel)?;
    best.headroom = simulated.document();
    if let Some(ranks) = &best.parallel {
        // A probe runs no more micro-steps.
        let is_whole = plan.accumulation_steps <= u64::from(MOST_MICRO_STEPS);
        let sent = report.communicated_bytes.filter(|_| is_whole);
        best.parallel = across_ranks(report, ranks.world_size, sent);
    }
    best.why = Some(Why {
        at_peak: report.at_peak.clone(),
        peak: report.peak.clone(),
        limit: Limit::new(LimitKind::Headroom, Some(refused), because_of.clone()),
    });
    best.limited_by = because_of;
    Ok(())
}

/// Recommends nothing, because of this.
pub(crate) fn nothing_of(best: &mut Recommendation, because_of: String) {
    best.nothing();
    if let Some(why) = &mut best.why {
        why.limit = Limit::new(LimitKind::Headroom, None, because_of.clone());
    }
    best.limited_by = because_of;
}

/// What is probed of so many steps.
fn with_steps(training: &Variant, steps: u64) -> Variant {
    Variant {
        accumulation: micro_steps(steps.max(1)),
        ..training.clone()
    }
}
