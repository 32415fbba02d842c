//! All variants of a request, ranked: their order, and what each costs.

use std::collections::BTreeSet;

use crate::compile::{Recomputed, recomputed};
use crate::fitting::Result;
use crate::model::{
    Checkpointing, Compare, Ddp, Mode, Parallel, Precision, SearchMode, Variant, Workload,
};
use crate::probe::SpeedFrom;
use crate::search::{RankKey, rank, unbeaten};
use crate::units::Bytes;
use crate::{
    EngineError, FitResult, Limit, LimitKind, ProbeSummary, Recommendation, VariantResult,
};

use super::engine::{FitSpec, lowered};
use super::plan::BatchTarget;
use super::probing::runner::{Observer, ProbeCache, ProbeOutcome, Runner};
use super::variant_search::VariantSearch;
use crate::fitting::recommendation::headroom::VariantHeadroom;
use crate::fitting::recommendation::notes::LimitSource;
use crate::fitting::recommendation::recommend::recommend;

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
) -> Result<FitResult> {
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
) -> Result<Answered> {
    let bounds = (spec.budget.limit(&variant.parallel), spec.ceiling);
    let headroom = VariantHeadroom::of(&spec.request, variant);
    let of = variant.clone();
    let mut simulated = ProbeCache::new(
        &mut *devices.simulated,
        observer,
        of,
        bounds,
        headroom.clone(),
    );
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
    let mut real = ProbeCache::new(&mut **prober, observer, variant.clone(), bounds, headroom);
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
) -> Result<Recommendation> {
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
        why.limit = Limit::new(LimitKind::Host, None, text);
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

/// What was found out about one variant.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) variant: Variant,
    pub(super) recomputed: Recomputed,
    pub(super) recommendation: Recommendation,
}

/// What checkpointing has a model compute twice; of recordings it is not known.
pub(super) fn recomputed_by(workload: &Workload, variant: &Variant) -> Recomputed {
    match workload {
        Workload::Graph(graph) => recomputed(graph, variant),
        Workload::Recorded(_) => Recomputed::default(),
    }
}

/// The variants, best first, and the place of each of `entries` among them.
pub(super) fn ranked(entries: &[Entry], compare: Compare) -> (Vec<VariantResult>, Vec<usize>) {
    let keys: Vec<RankKey> = entries
        .iter()
        .map(|entry| RankKey {
            group: group(entries, entry, compare),
            at_once: at_once(entry),
            shortfall: entry.recommendation.shortfall,
            recomputes: entry.recomputed.share(),
            samples_per_second: comparable(entries, entry),
        })
        .collect();
    let marks = marks(&keys);
    let order = rank(&keys);
    let mut places = vec![0; entries.len()];
    for (place, index) in order.iter().enumerate() {
        places[*index] = place;
    }
    let result = |(rank, index): (u32, &usize)| {
        let entry = &entries[*index];
        VariantResult {
            rank,
            cost: cost(&entry.variant, entry.recomputed),
            recomputes: entry.recomputed.share(),
            pareto: marks[*index],
            training: entry.variant.clone(),
            recommendation: entry.recommendation.clone(),
        }
    };
    let mut variants: Vec<VariantResult> = (1..).zip(&order).map(result).collect();
    if let Some(best) = variants.first_mut() {
        let notes = &mut best.recommendation.notes;
        notes.extend(gain(&entries[order[0]], entries));
        let first = entries[0].variant.optimizer;
        if compare == Compare::WithinOptimizer && first != best.training.optimizer {
            notes.push(format!("`{}`{FITS_NOTHING}", first.name()));
        }
    }
    (variants, places)
}

/// How the notes begin, or what they say, that a ranking adds to the best variant.
const GAINED: &str = "with checkpointing (";
const FITS_NOTHING: &str = ", the optimizer named first, fits nothing: the next one is recommended";

/// Takes back what an earlier ranking said of a variant.
pub(super) fn forget(notes: &mut Vec<String>) {
    notes.retain(|note| !note.starts_with(GAINED) && !note.ends_with(FITS_NOTHING));
}

/// Samples that all ranks of a variant take in a micro-step.
fn at_once(entry: &Entry) -> u64 {
    let ranks = entry.variant.parallel.world_size();
    entry.recommendation.micro_batch.saturating_mul(ranks)
}

/// A variant's speed over all its GPUs, where it may be held against the others': what was measured, or what was calculated for all
/// that fit. A calculated speed next to a measured one, or none, says nothing.
fn comparable(entries: &[Entry], entry: &Entry) -> Option<f64> {
    let measured = Some(SpeedFrom::Measured);
    let mut fitting = entries
        .iter()
        .map(|entry| &entry.recommendation)
        .filter(|found| found.micro_batch > 0);
    let is_calculated =
        |found: &Recommendation| found.speed_from.is_some() && found.speed_from != measured;
    let found = &entry.recommendation;
    let counts = found.speed_from == measured || fitting.all(is_calculated);
    let ranks = entry.variant.parallel.world_size();
    let speed = found.samples_per_second.filter(|_| counts);
    speed.map(|speed| speed * ranks as f64)
}

/// Which variants no other of their group beats.
fn marks(keys: &[RankKey]) -> Vec<Option<bool>> {
    let mut marks = vec![None; keys.len()];
    let groups: BTreeSet<usize> = keys.iter().map(|key| key.group).collect();
    for group in groups {
        let of_group = |index: &usize| keys[*index].group == group;
        let members: Vec<usize> = (0..keys.len()).filter(of_group).collect();
        let points = members.iter().map(|index| {
            let key = &keys[*index];
            (key.at_once, key.samples_per_second)
        });
        let points: Vec<(u64, Option<f64>)> = points.collect();
        for (index, mark) in members.into_iter().zip(unbeaten(&points)) {
            marks[index] = mark;
        }
    }
    marks
}

/// The place of a variant's optimizer in the request; those with which nothing fits come after all others.
fn group(entries: &[Entry], entry: &Entry, compare: Compare) -> usize {
    let has_its_optimizer = |other: &Entry| other.variant.optimizer == entry.variant.optimizer;
    match compare {
        // Every variant before the first of its optimizer is of one that was listed earlier.
        Compare::WithinOptimizer => {
            let place = entries.iter().position(has_its_optimizer).unwrap_or(0);
            let mut all = entries.iter().filter(|other| has_its_optimizer(other));
            let fits = all.any(|one| one.recommendation.micro_batch > 0);
            place + if fits { 0 } else { entries.len() }
        }
        Compare::AcrossOptimizers => 0,
    }
}

/// What a variant costs besides memory.
pub(super) fn cost(variant: &Variant, recomputed: Recomputed) -> Option<String> {
    let many = if recomputed.calls == 1 { "" } else { "s" };
    let checkpointed = match (&variant.checkpointing, recomputed.calls) {
        (Checkpointing::None, _) | (_, 0) => None,
        (Checkpointing::PerBlock, calls) => Some(format!("recomputes {calls} block{many}")),
        (Checkpointing::Modules(_), calls) => Some(format!("recomputes {calls} module{many}")),
    };
    let precision = match (variant.precision, variant.mode) {
        (Precision::AmpFp16, Mode::Train) => Some("loss scaling"),
        (Precision::Bf16, _) => Some("weights in bf16"),
        (Precision::Fp16, _) => Some("weights in fp16"),
        (Precision::Fp32 | Precision::AmpBf16, _) | (Precision::AmpFp16, Mode::Inference) => None,
    };
    let all: Vec<String> = checkpointed
        .into_iter()
        .chain(precision.map(str::to_owned))
        .collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Whether two are the same but for what transformers' Trainer has of DDP with checkpointing and without.
fn are_alike(one: &Parallel, other: &Parallel) -> bool {
    match (one, other) {
        (Parallel::Ddp(one), Parallel::Ddp(other)) => {
            let find_unused_parameters = one.find_unused_parameters;
            let other = other.clone();
            *one == Ddp {
                find_unused_parameters,
                ..other
            }
        }
        _ => one == other,
    }
}

/// What recomputing more would gain over the best variant, which is the same otherwise: batches that do not fit without.
fn gain(best: &Entry, entries: &[Entry]) -> Option<String> {
    let found = &best.recommendation;
    let with_more = entries.iter().filter(|entry| {
        entry.variant.precision == best.variant.precision
            && entry.variant.optimizer == best.variant.optimizer
            && are_alike(&entry.variant.parallel, &best.variant.parallel)
            && entry.recomputed.share() > best.recomputed.share()
            && entry.recommendation.micro_batch > found.max_batch_steady
    });
    let most = with_more.max_by_key(|entry| entry.recommendation.micro_batch)?;
    let instead = &most.recommendation;
    // Where nothing fits, what recomputes is the best.
    let gained = if instead.accumulation_steps < found.accumulation_steps {
        format!(
            "{} steps of {} instead of {} of {}",
            instead.accumulation_steps,
            instead.micro_batch,
            found.accumulation_steps,
            found.micro_batch
        )
    } else {
        format!(
            "a micro-batch of {} instead of {}",
            instead.micro_batch, found.micro_batch
        )
    };
    Some(format!(
        "{GAINED}{}) it could be {gained}, but {:.0}% of the forward pass's operations would run twice",
        match &most.variant.checkpointing {
            Checkpointing::Modules(globs) => globs.join(", "),
            Checkpointing::None | Checkpointing::PerBlock => "per_block".to_owned(),
        },
        most.recomputed.share() * 100.0
    ))
}
