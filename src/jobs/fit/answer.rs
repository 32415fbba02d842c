//! All variants of a request, ranked.

use crate::jobs::{
    EngineError, Environment, FitResult, ProbeSummary, Recommendation, VariantResult,
};
use crate::model::Variant;
use crate::search::{Standing, rank};
use crate::units::Bytes;

use super::advice::{Benches, Wish, recommend};
use super::maxima;
use super::prober::{Bench, Probed, Prober};
use super::watch::Watch;

/// What a fit has to find out.
#[derive(Debug, Clone)]
pub(super) struct Question {
    /// In request order; never empty.
    pub(super) variants: Vec<Variant>,
    pub(super) wish: Wish,
    /// What the allocator may reserve.
    pub(super) limit: Bytes,
    pub(super) method: Method,
    /// What the reader should know whatever the answer is.
    pub(super) notes: Vec<String>,
}

/// Who decides where the maxima are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// Simulation brackets the answer; real probes, where there is a GPU, confirm it.
    SimulateFirst,
    /// Real probes alone, where there is a GPU.
    ProbesAlone,
}

/// The devices of a fit.
pub(super) struct Devices<'p> {
    pub(super) simulated: &'p mut dyn Prober,
    pub(super) real: Option<&'p mut dyn Prober>,
}

/// Answers for every variant and ranks them.
pub(super) fn answer(
    question: &Question,
    mut devices: Devices<'_>,
    environment: Environment,
    watch: &Watch<'_>,
) -> Result<FitResult, EngineError> {
    let mut recommendations = Vec::new();
    let mut probes = Vec::new();
    for (index, variant) in (0..).zip(&question.variants) {
        let (recommendation, run) = answer_variant(question, variant, &mut devices, watch)?;
        recommendations.push(recommendation);
        probes.extend(run.into_iter().map(|probed| summary(index, probed)));
    }
    let standings: Vec<_> = recommendations
        .iter()
        .map(|recommendation| Standing {
            micro_batch: recommendation.micro_batch,
            samples_per_second: recommendation.samples_per_second,
        })
        .collect();
    let variants: Vec<_> = (1..)
        .zip(rank(&standings))
        .map(|(rank, index)| VariantResult {
            rank,
            training: question.variants[index].clone(),
            recommendation: recommendations[index].clone(),
        })
        .collect();
    Ok(FitResult {
        recommendation: variants[0].recommendation.clone(),
        variants,
        probes,
        gpu_work: None,
        environment,
    })
}

/// The recommendation for one variant, and the probes to show with it.
fn answer_variant(
    question: &Question,
    variant: &Variant,
    devices: &mut Devices<'_>,
    watch: &Watch<'_>,
) -> Result<(Recommendation, Vec<Probed>), EngineError> {
    let new_bench = |prober| Bench::new(prober, watch, variant.clone(), question.limit);
    let mut simulated = new_bench(&mut *devices.simulated);
    let mut real = devices.real.as_mut().map(|prober| new_bench(&mut **prober));
    let found = recommended(question, &mut simulated, real.as_mut());
    let recommendation = match (found, real.as_ref().and_then(Bench::failure)) {
        (Err(_), Some(cause)) if question.method == Method::SimulateFirst => {
            let note = format!("simulated, because probes on the GPU failed: {cause}");
            let mut recommendation = recommended(question, &mut simulated, None)?;
            recommendation.notes.push(note);
            recommendation
        }
        (found, _) => found?,
    };
    let probes = match &real {
        Some(real) => beside_simulation(real, &simulated),
        None => around_answer(&recommendation, &simulated),
    };
    Ok((recommendation, probes))
}

/// All real probes, each with what was simulated for the same batch.
fn beside_simulation(real: &Bench<'_>, simulated: &Bench<'_>) -> Vec<Probed> {
    let beside = |(accumulation, probed): (u32, &Probed)| {
        let mut probed = probed.clone();
        let simulated = simulated.seen(accumulation, probed.report.batch);
        probed.report.simulated_peak_reserved_bytes =
            simulated.map(|report| report.peak_reserved_bytes);
        probed
    };
    real.probes().map(beside).collect()
}

/// The simulated probes at the answer, at both maxima and just above them.
fn around_answer(recommendation: &Recommendation, simulated: &Bench<'_>) -> Vec<Probed> {
    let calm = recommendation.max_batch_without_retries;
    let largest = recommendation.max_batch;
    let shown = [
        recommendation.micro_batch,
        calm,
        calm + 1,
        largest,
        largest + 1,
    ];
    let probes = simulated.probes().map(|(_, probed)| probed);
    let shown = probes.filter(|probed| shown.contains(&probed.report.batch));
    shown.cloned().collect()
}

/// The recommendation for one variant.
fn recommended<'b>(
    question: &Question,
    simulated: &mut Bench<'b>,
    mut real: Option<&mut Bench<'b>>,
) -> Result<Recommendation, EngineError> {
    let maxima = match (&mut real, question.method) {
        (None, _) => maxima::simulate(simulated)?,
        (Some(real), Method::SimulateFirst) => maxima::confirm(maxima::simulate(simulated)?, real)?,
        (Some(real), Method::ProbesAlone) => maxima::probe(real)?,
    };
    let benches = Benches { simulated, real };
    recommend(maxima, question.wish, benches, question.notes.clone())
}

fn summary(variant: u32, probed: Probed) -> ProbeSummary {
    let mut report = probed.report;
    report.timeline.clear();
    ProbeSummary {
        variant,
        report,
        wall_ms: probed.wall_ms,
    }
}
