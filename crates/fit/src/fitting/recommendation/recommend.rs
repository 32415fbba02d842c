//! From maxima to what to train with.

use crate::fitting::Result;
use crate::model::Objective;
use crate::probe::{Detail, ProbeReport, Verdict};
use crate::program::Category;
use crate::search::MAX_BATCH;
use crate::units::Bytes;
use crate::{AcrossRanks, LimitKind, Recommendation, Why};

use crate::fitting::plan::{
    BatchTarget, choose, for_unconfirmed, nearly_as_fast, shortfall_note, without_a_plan,
};
use crate::fitting::probing::runner::{ProbeCache, StepTime};
use crate::fitting::recommendation::alternate_plan::TIME_UNKNOWN;
use crate::fitting::recommendation::notes::{Around, LimitSource};
use crate::fitting::variant_search::{VariantSearch, micro_steps};

/// How the note begins that is given where both are asked for.
pub(crate) const TARGET_DECIDES: &str = "`target_batch` decides the number of accumulation steps";

/// What is said where one other key's reports alone lower the batch.
pub(in crate::fitting) const UNCONFIRMED: &str = "another key reported that this model or others on this card need more memory than predicted; until a second key does, that makes the batch at \
     most 5 % smaller";

/// Headroom of more than a twentieth of the limit is what limits a batch; less is a detail of what else does.
const MUCH_HEADROOM: u64 = 20;

/// How exactly the missing memory is found.
const MISSING_GRAIN: Bytes = Bytes::mib(2);

/// Says what to train one variant with; `accumulation` is the number of micro-steps asked for.
#[expect(
    clippy::too_many_lines,
    reason = "a line for each member of the answer"
)]
pub(crate) fn recommend(
    target: BatchTarget,
    accumulation: u32,
    mut search: VariantSearch<'_, '_>,
    source: LimitSource,
    mut notes: Vec<String>,
) -> Result<Recommendation> {
    if let (Some(_), 2..) = (target.target_batch, accumulation) {
        notes.push(format!(
            "{TARGET_DECIDES}, so `training.accumulation` ({accumulation}) is not used"
        ));
    }
    let Some(mut chosen) = choose(target, accumulation, &mut search)? else {
        let steps = without_a_plan(target, accumulation);
        return nothing_fits(steps, target.world_size, search, (source, notes));
    };
    if let Some(smaller) = for_unconfirmed(&chosen, target, accumulation, &mut search)? {
        chosen = smaller;
        notes.push(UNCONFIRMED.to_owned());
    }
    let plan = chosen.plan;
    let micro_steps = micro_steps(plan.accumulation_steps);
    let maxima = search.maxima(micro_steps)?;
    // An edge was searched for; the plan may be one of the batches beyond it, and was seen to run.
    let steady = maxima.prediction.max_batch_steady.max(plan.micro_batch);
    notes.extend(shortfall_note(&plan, target));
    notes.extend(chosen.instead_of.map(|larger| larger.note(&plan)));
    notes.extend(nearly_as_fast(&plan, target, &mut search)?);
    let next_batch = next_to_record(steady, search.simulation(micro_steps))?;
    let communicated_bytes = communicated(plan.accumulation_steps, plan.micro_batch, &mut search)?;
    let step_time = search.step_time(plan.accumulation_steps, plan.micro_batch)?;
    if let StepTime::Unknown(why) = step_time {
        let instead = match target.objective {
            Objective::LargestBatch => "",
            Objective::Throughput => ", so the largest batch is recommended",
        };
        notes.push(format!("{TIME_UNKNOWN}: {why}{instead}"));
    }
    let limit = search.limit();
    let deciding = search.deciding(micro_steps);
    let binding = match &chosen.instead_of {
        Some(larger) => Binding {
            name: larger.limits(),
            report: None,
        },
        None => binding(steady, maxima.at_ceiling, deciding)?,
    };
    let probed = deciding.probe_in_full(plan.micro_batch)?;
    let headroom = probed.headroom(limit);
    if headroom > Bytes::ZERO {
        let why = probed.headroom.why(&probed.uncertainties, limit);
        notes.push(if probed.leaves(headroom, limit) {
            why
        } else {
            format!(
                "it uses part of the safety margin, and would still run if that were gone: {why}"
            )
        });
    }
    if maxima.evidence != maxima.evidence_of_max {
        notes.push("the largest batch that runs steadily was tried on the GPU; `max_batch` and `max_batch_without_retries` are simulated".to_owned());
    }
    let report = &probed.report;
    let mut without_retries = maxima.prediction.max_batch_without_retries;
    if report.verdict == Verdict::Fits {
        without_retries = without_retries.max(plan.micro_batch);
    }
    notes.extend(
        report
            .retries_by_step()
            .map(|when| format!("the allocator frees its cache {when}")),
    );
    let around = Around {
        at: report,
        above: binding.report.as_ref(),
        largest: steady,
        at_ceiling: maxima.at_ceiling,
        headroom,
        objective: chosen.instead_of.as_ref(),
        has_target: target.target_batch.is_some(),
        source,
    };
    let why = around.why();
    let limited_by = match why.limit.kind {
        LimitKind::Headroom if headroom.0 > limit.0 / MUCH_HEADROOM => {
            format!("headroom; {}", why.limit.explanation)
        }
        _ => binding.name,
    };
    let (optimizer_step_ms, speed_from) = match step_time {
        StepTime::Seconds(seconds, from) => (Some(1000.0 * seconds), Some(from)),
        StepTime::Unknown(_) => (None, None),
    };
    let micro_step_ms = optimizer_step_ms.map(|ms| ms / plan.accumulation_steps as f64);
    for note in &report.notes {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    Ok(Recommendation {
        fits: Some(true),
        micro_batch: plan.micro_batch,
        accumulation_steps: plan.accumulation_steps,
        global_batch: plan.global_batch,
        shortfall: plan.shortfall,
        exactly: chosen.exactly,
        max_batch: maxima.prediction.max_batch.max(steady),
        max_batch_steady: steady,
        max_batch_without_retries: without_retries,
        peak_allocated_bytes: report.peak_allocated_bytes,
        peak_reserved_bytes: report.peak_reserved_bytes,
        limit_bytes: limit.0,
        headroom_bytes: limit.0.saturating_sub(report.peak_reserved_bytes),
        headroom: probed.document(limit),
        limited_by,
        why: Some(why),
        evidence: maxima.evidence,
        step_ms: micro_step_ms,
        optimizer_step_ms,
        samples_per_second: step_time.speed(plan.accumulation_steps, plan.micro_batch),
        speed_from,
        missing_bytes: None,
        host_bytes: report.host_bytes,
        next_batch,
        parallel: across_ranks(report, target.world_size, communicated_bytes),
        notes,
    })
}

/// Bytes that a rank sends to others in an optimizer step of so many micro-steps. Later micro-steps of a step all send the same.
fn communicated(steps: u64, batch: u64, search: &mut VariantSearch<'_, '_>) -> Result<Option<u64>> {
    let run = micro_steps(steps);
    let Some(of_run) = search.simulation(run).communicated(batch)? else {
        return Ok(None);
    };
    let more = steps.saturating_sub(run.into());
    if more == 0 {
        return Ok(Some(of_run));
    }
    let of_fewer = search.simulation(run - 1).communicated(batch)?;
    let each = of_run.saturating_sub(of_fewer.unwrap_or(of_run));
    Ok(Some(of_run.saturating_add(each.saturating_mul(more))))
}

/// What is to be known of a probe of several ranks.
pub(crate) fn across_ranks(
    report: &ProbeReport,
    world_size: u64,
    communicated_bytes: Option<u64>,
) -> Option<AcrossRanks> {
    Some(AcrossRanks {
        world_size,
        ranks: report.ranks.clone(),
        binding_rank: report.binding_rank?,
        without_overlap: report.without_overlap,
        communicated_bytes,
    })
}

/// Which batch to record next, where the answer is more than twice the largest recorded batch: half the answer, or as
/// much of it as takes no more than half of the limit.
pub(crate) fn next_to_record(answer: u64, cache: &mut ProbeCache<'_>) -> Result<Option<u64>> {
    let Some(recorded) = cache.largest_recorded() else {
        return Ok(None);
    };
    let half = Bytes(cache.limit.0 / 2);
    let (mut low, mut high) = (recorded, answer / 2);
    // The first is tried alone: it is nearly always it.
    let mut batch = high;
    while low < high {
        let report = &cache.probe(batch)?.report;
        if report.verdict == Verdict::Fits && Bytes(report.peak_reserved_bytes) <= half {
            low = batch;
        } else {
            high = batch - 1;
        }
        batch = low + (high - low).div_ceil(2);
    }
    Ok((low > recorded).then_some(low))
}

/// The answer when no batch runs steadily and leaves headroom, not even a batch of one.
fn nothing_fits(
    steps: u64,
    world_size: u64,
    mut search: VariantSearch<'_, '_>,
    (source, mut notes): (LimitSource, Vec<String>),
) -> Result<Recommendation> {
    let micro_steps = micro_steps(steps);
    let maxima = search.maxima(micro_steps)?;
    let communicated_bytes = communicated(steps, 1, &mut search)?;
    let limit = search.limit();
    let (simulated, whole) = missing(search.simulation(micro_steps))?;
    let probed = search.deciding(micro_steps).probe_in_full(1)?;
    let (report, headroom) = (&probed.report, probed.headroom(limit));
    let needed = Bytes(report.peak_reserved_bytes) + headroom;
    if report.verdict == Verdict::Fits {
        notes.push(format!(
            "a batch of one runs without retries and reserves {}, which does not leave {headroom} of the limit free",
            Bytes(report.peak_reserved_bytes)
        ));
        notes.push(probed.headroom.why(&probed.uncertainties, limit));
    }
    let missing = simulated.max(needed.saturating_sub(limit));
    let around = Around {
        at: report,
        above: Some(report),
        largest: maxima.prediction.max_batch_steady,
        at_ceiling: false,
        headroom,
        objective: None,
        has_target: false,
        source,
    };
    Ok(Recommendation {
        fits: Some(false),
        max_batch: maxima.prediction.max_batch,
        max_batch_steady: maxima.prediction.max_batch_steady,
        max_batch_without_retries: maxima.prediction.max_batch_without_retries,
        peak_allocated_bytes: report.peak_allocated_bytes,
        peak_reserved_bytes: report.peak_reserved_bytes,
        limit_bytes: limit.0,
        headroom: probed.document(limit),
        limited_by: described(report),
        why: Some(Why {
            at_peak: whole.at_peak,
            peak: whole.peak,
            ..around.why()
        }),
        evidence: maxima.evidence,
        missing_bytes: Some(missing.0),
        host_bytes: report.host_bytes,
        parallel: across_ranks(report, world_size, communicated_bytes),
        notes,
        ..Recommendation::default()
    })
}

/// How much higher the limit would have to be for a batch of one to leave headroom, by simulation; and the batch with all that it takes.
fn missing(cache: &mut ProbeCache<'_>) -> Result<(Bytes, ProbeReport)> {
    /// Far above any card, far below where sums of bytes overflow.
    const PLENTY: Bytes = Bytes::gib(1 << 20);
    let limit = cache.limit;
    let is_enough = |cache: &mut ProbeCache<'_>, limit: Bytes| {
        let probed = cache.probe_within(limit, 1, Detail::Verdict)?;
        probed.is_safe(probed.headroom(limit), limit, |room| {
            cache.probe_within(room, 1, Detail::Verdict)
        })
    };
    let whole = cache.probe_within(PLENTY, 1, Detail::Full)?.report;
    let needed = Bytes(whole.peak_reserved_bytes);
    let (mut low, mut high) = (limit, needed.max(limit + MISSING_GRAIN));
    while high < PLENTY && !is_enough(cache, high)? {
        (low, high) = (high, Bytes(high.0 * 2));
    }
    while high.saturating_sub(low) > MISSING_GRAIN {
        let middle = Bytes(low.0 + (high.0 - low.0) / 2);
        if is_enough(cache, middle)? {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok((high.saturating_sub(limit), whole))
}

/// What keeps the batch from being larger.
struct Binding {
    name: String,
    /// The probe that shows it, where there is one.
    report: Option<ProbeReport>,
}

fn binding(steady: u64, at_ceiling: bool, cache: &mut ProbeCache<'_>) -> Result<Binding> {
    let unseen = |name| Binding { name, report: None };
    if at_ceiling && cache.ceiling < MAX_BATCH {
        return Ok(unseen(format!(
            "the graph, which was exported for batches up to {}",
            cache.ceiling
        )));
    }
    if at_ceiling {
        return Ok(unseen(format!(
            "nothing: batches above {steady} are not tried"
        )));
    }
    // A real probe above the maximum is not worth its time for a name alone.
    let above = steady + 1;
    let is_cheap = !cache.evidence().is_real();
    let named = if is_cheap || cache.seen(cache.accumulation(), above).is_some() {
        above
    } else {
        steady
    };
    let probed = cache.probe_in_full(named)?;
    Ok(Binding {
        name: described(&probed.report),
        report: Some(probed.report.clone()),
    })
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
            let often = match (report.retries_by_step(), report.retries) {
                (Some(when), _) => when,
                (None, 1) => "once".to_owned(),
                (None, retries) => format!("{retries} times"),
            };
            format!(
                "{mainly}; batch {batch} flushes the allocator's cache {often}, which takes time"
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
        Category::Communication => "communication between GPUs",
    }
}
