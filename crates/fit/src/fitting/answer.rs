//! All variants of a request, ranked.

use crate::model::{SearchMode, Variant};
use crate::units::Bytes;
use crate::{EngineError, FitResult, Limit, LimitKind, ProbeSummary, Recommendation};

use super::engine::{FitSpec, lowered};
use super::plan::BatchTarget;
use super::probing::runner::{Observer, ProbeCache, ProbeOutcome, Runner};
use super::variant_search::VariantSearch;
use crate::fitting::recommendation::headroom::VariantHeadroom;
use crate::fitting::recommendation::ranked::{Entry, ranked, recomputed_by};
use crate::fitting::recommendation::recommend::recommend;
use crate::fitting::recommendation::why::LimitSource;

/// The devices of a fit.
pub(super) struct Devices<'p> {
    pub(super) simulated: &'p mut dyn Runner,
    pub(super) real: Option<&'p mut dyn Runner>,
}

/// Answers for every variant and ranks them.
pub(super) fn answer(
    spec: &FitSpec<'_>,
    mut devices: Devices<'_>,
    observer: &Observer<'_>,
) -> Result<FitResult, EngineError> {
    let mut entries = Vec::new();
    let mut probes = Vec::new();
    let mut lost = None;
    let lowered = lowered(&spec.request, observer.cancel())?;
    for variant in &spec.request.variants {
        let answered = answer_variant(spec, variant, &mut devices, observer)?;
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
            recomputed: recomputed_by(&lowered.workload, variant),
            recommendation,
        });
    }
    let (variants, places) = ranked(&entries, spec.request.compare);
    let summaries = probes.into_iter();
    Ok(FitResult {
        probes: summaries
            .map(|(index, probed)| summary(places[index], probed))
            .collect(),
        assumptions: spec.assumptions.clone(),
        ..FitResult::of(variants, spec.environment.clone())
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
    spec: &FitSpec<'_>,
    variant: &Variant,
    devices: &mut Devices<'_>,
    observer: &Observer<'_>,
) -> Result<Answered, EngineError> {
    let mut simulated = ProbeCache::new(
        &mut *devices.simulated,
        observer,
        variant.clone(),
        spec.budget.limit(&variant.parallel),
        spec.ceiling,
    )
    .with_headroom(VariantHeadroom::of(&spec.request, variant));
    let alone = |simulated: &mut ProbeCache<'_>| {
        let recommendation = recommended(spec, variant, simulated, None)?;
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
        spec.budget.limit(&variant.parallel),
        spec.ceiling,
    )
    .with_headroom(VariantHeadroom::of(&spec.request, variant));
    let cause = match recommended(spec, variant, &mut simulated, Some(&mut real)) {
        Err(EngineError::DeviceFailed { cause, .. })
            if spec.request.search != SearchMode::Probes =>
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
    spec: &FitSpec<'_>,
    variant: &Variant,
    simulated: &mut ProbeCache<'b>,
    real: Option<&mut ProbeCache<'b>>,
) -> Result<Recommendation, EngineError> {
    let search = VariantSearch::new(simulated, real, spec.request.search);
    let notes = spec.notes.clone();
    let source = match spec.budget.asked {
        Some(asked) if asked <= spec.budget.available(&variant.parallel) => LimitSource::Asked,
        Some(_) | None => LimitSource::Device,
    };
    let target = BatchTarget::of(&spec.request, variant);
    let mut found = recommend(target, variant.accumulation, search, source, notes)?;
    offloaded(&mut found, target.world_size, spec.request.host_memory);
    Ok(found)
}

/// Says what is kept in the host's memory; where it has too little, nothing can be trained.
fn offloaded(found: &mut Recommendation, processes: u64, host: Option<Bytes>) {
    if found.host_bytes == 0 {
        if host.is_some() && found.micro_batch > 0 {
            let nothing =
                "nothing is offloaded to the host's memory, so `host_memory` changes nothing";
            found.notes.push(nothing.to_owned());
        }
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
