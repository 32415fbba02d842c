//! All variants of a request, ranked.

use crate::model::{Compare, Variant};
use crate::units::Bytes;
use crate::{EngineError, Environment, FitResult, Limit, LimitKind, ProbeSummary, Recommendation};

use super::memory_budget::MemoryBudget;
use super::plan::BatchTarget;
use super::probing::observer::Observer;
use super::probing::runner::{ProbeCache, ProbeOutcome, Runner};
use super::variant_search::VariantSearch;
use crate::fitting::recommendation::headroom_policy::HeadroomPolicy;
use crate::fitting::recommendation::ranked::{Entry, ranked};
use crate::fitting::recommendation::recommend::recommend;
use crate::fitting::recommendation::why::LimitSource;

/// What a fit has to find out.
#[derive(Debug, Clone)]
pub(super) struct FitSpec {
    /// In request order; never empty.
    pub(super) variants: Vec<Variant>,
    pub(super) target: BatchTarget,
    /// What there is for the allocator.
    pub(super) budget: MemoryBudget,
    /// What is said of what to leave free.
    pub(super) headroom: HeadroomPolicy,
    /// The largest batch that may be tried: the graph holds for no larger one.
    pub(super) ceiling: u64,
    pub(super) method: SearchStrategy,
    pub(super) compare: Compare,
    /// What the host has for what is offloaded, where the request says it.
    pub(super) host_memory: Option<Bytes>,
    /// What the reader should know whatever the answer is.
    pub(super) notes: Vec<String>,
    /// What was assumed of the model.
    pub(super) assumptions: Vec<String>,
}

/// Who decides where the maxima are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SearchStrategy {
    /// Simulation brackets the answer; real probes, where there is a GPU, confirm it.
    SimulateFirst,
    /// Real probes alone, where there is a GPU.
    ProbesAlone,
}

/// The devices of a fit.
pub(super) struct Devices<'p> {
    pub(super) simulated: &'p mut dyn Runner,
    pub(super) real: Option<&'p mut dyn Runner>,
}

/// Answers for every variant and ranks them.
pub(super) fn answer(
    question: &FitSpec,
    mut devices: Devices<'_>,
    environment: Environment,
    observer: &Observer<'_>,
) -> Result<FitResult, EngineError> {
    let mut entries = Vec::new();
    let mut probes = Vec::new();
    let mut lost = None;
    for variant in &question.variants {
        let answered = answer_variant(question, variant, &mut devices, observer)?;
        let mut recommendation = answered.recommendation;
        recommendation.notes.extend(lost.clone());
        lost = lost.or(answered.lost);
        if lost.is_some() {
            // What could not be replaced will not be there for the next variant.
            devices.real = None;
        }
        let run = answered.probes.into_iter();
        probes.extend(run.map(|probed| (entries.len(), probed)));
        entries.push(Entry {
            variant: variant.clone(),
            recomputed: devices.simulated.recomputed(variant),
            recommendation,
        });
    }
    let (variants, places) = ranked(&entries, question.compare);
    let summaries = probes.into_iter();
    Ok(FitResult {
        recommendation: variants[0].recommendation.clone(),
        variants,
        probes: summaries
            .map(|(index, probed)| summary(places[index], probed))
            .collect(),
        gpu_work: None,
        assumptions: question.assumptions.clone(),
        lengths: None,
        soak: None,
        environment,
        suggested_for: None,
        suggestions: Vec::new(),
    })
}

/// A probe, and how many micro-steps it ran for each optimizer step.
type ProbeEntry = (u32, ProbeOutcome);

/// What came of one variant.
struct Answered {
    recommendation: Recommendation,
    /// The probes to show with it.
    probes: Vec<ProbeEntry>,
    /// What to tell of a GPU that can be asked nothing more.
    lost: Option<String>,
}

/// Answers for one variant: by simulation alone where the GPU does not do its work.
fn answer_variant(
    question: &FitSpec,
    variant: &Variant,
    devices: &mut Devices<'_>,
    observer: &Observer<'_>,
) -> Result<Answered, EngineError> {
    let mut simulated = ProbeCache::new(
        &mut *devices.simulated,
        observer,
        variant.clone(),
        question.budget.limit(&variant.parallel),
        question.ceiling,
    )
    .with_headroom(question.headroom.about(variant));
    let alone = |simulated: &mut ProbeCache<'_>| {
        let recommendation = recommended(question, variant, simulated, None)?;
        let probes = around_answer(&recommendation, simulated);
        Ok(Answered {
            recommendation,
            probes,
            lost: None,
        })
    };
    let Some(prober) = &mut devices.real else {
        return alone(&mut simulated);
    };
    let mut real = ProbeCache::new(
        &mut **prober,
        observer,
        variant.clone(),
        question.budget.limit(&variant.parallel),
        question.ceiling,
    )
    .with_headroom(question.headroom.about(variant));
    let cause = match recommended(question, variant, &mut simulated, Some(&mut real)) {
        Err(EngineError::DeviceFailed { cause, .. })
            if question.method == SearchStrategy::SimulateFirst =>
        {
            cause
        }
        found => {
            return Ok(Answered {
                recommendation: found?,
                probes: beside_simulation(&real, &simulated),
                lost: None,
            });
        }
    };
    let is_lost = real.is_lost();
    let before = beside_simulation(&real, &simulated);
    let mut answered = alone(&mut simulated)?;
    let why = if is_lost {
        format!(
            "simulated, because the GPU's worker was lost and so was the one in its place: {cause}"
        )
    } else {
        format!("simulated, because probes on the GPU failed: {cause}")
    };
    answered.recommendation.notes.push(why.clone());
    answered.probes = before;
    answered.lost = is_lost.then_some(why);
    Ok(answered)
}

/// The recommendation for one variant.
fn recommended<'b>(
    question: &FitSpec,
    variant: &Variant,
    simulated: &mut ProbeCache<'b>,
    real: Option<&mut ProbeCache<'b>>,
) -> Result<Recommendation, EngineError> {
    let inquiry = VariantSearch::new(simulated, real, question.method);
    let notes = question.notes.clone();
    let source = match question.budget.asked {
        Some(asked) if asked <= question.budget.available(&variant.parallel) => LimitSource::Asked,
        Some(_) | None => LimitSource::Device,
    };
    let target = question.target.of(variant);
    let mut found = recommend(target, variant.accumulation, inquiry, source, notes)?;
    offloaded(&mut found, target.world_size, question.host_memory);
    Ok(found)
}

/// Says what is kept in the host's memory; where it has too little, nothing can be trained.
fn offloaded(found: &mut Recommendation, processes: u64, host: Option<Bytes>) {
    if found.host_bytes == 0 {
        return;
    }
    let each = Bytes(found.host_bytes);
    let all = Bytes(found.host_bytes.saturating_mul(processes));
    let of_all = match processes {
        0 | 1 => String::new(),
        _ => format!(", all {processes} of them {all}"),
    };
    found.notes.push(format!(
        "each process keeps {each} in the host's memory{of_all}: what is offloaded of parameters, gradients and moments"
    ));
    let Some(host) = host.filter(|host| all > *host) else {
        return;
    };
    let text = format!("what is offloaded takes {all} of the host's memory, which has {host}");
    found.nothing();
    found.limited_by.clone_from(&text);
    if let Some(why) = &mut found.why {
        why.limit = Limit {
            kind: LimitKind::Host,
            batch: None,
            explanation: text,
            shortage: None,
        };
    }
}

/// All real probes, each with what was simulated for the same batch.
fn beside_simulation(real: &ProbeCache<'_>, simulated: &ProbeCache<'_>) -> Vec<ProbeEntry> {
    let beside = |(accumulation, probed): (u32, &ProbeOutcome)| {
        let mut probed = probed.clone();
        let simulated = simulated.seen(accumulation, probed.report.batch);
        probed.report.simulated_peak_reserved_bytes =
            simulated.map(|probed| probed.report.peak_reserved_bytes);
        (accumulation, probed)
    };
    real.probes().map(beside).collect()
}

/// The simulated probes at the answer, at both maxima and just above them.
fn around_answer(recommendation: &Recommendation, simulated: &ProbeCache<'_>) -> Vec<ProbeEntry> {
    let maxima = [
        recommendation.max_batch_without_retries,
        recommendation.max_batch_steady,
        recommendation.max_batch,
    ];
    let mut shown = vec![recommendation.micro_batch];
    shown.extend(maxima.iter().flat_map(|largest| [*largest, largest + 1]));
    let is_shown = |(micro_steps, probed): &(u32, &ProbeOutcome)| {
        *micro_steps == simulated.accumulation() && shown.contains(&probed.report.batch)
    };
    let probes = simulated.probes().filter(is_shown);
    probes
        .map(|(micro_steps, probed)| (micro_steps, probed.clone()))
        .collect()
}

fn summary(place: usize, (accumulation, probed): ProbeEntry) -> ProbeSummary {
    let mut report = probed.report;
    report.timeline.clear();
    ProbeSummary {
        variant: u32::try_from(place).unwrap_or(u32::MAX),
        accumulation,
        report,
        wall_ms: probed.wall_ms,
    }
}
