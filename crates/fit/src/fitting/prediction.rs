//! What recordings predict for a search whose batches the caller runs.

use std::collections::BTreeMap;

use crate::device::sim::{Card, CardMemory};
use crate::fitting::Result;
use crate::limits::Cancel;
use crate::model::{Objective, Request, RequestError, SearchMode, Variant, Workload};
use crate::probe::{Detail, ProbeReport};
use crate::recorded::Steps;
use crate::search::ask_tell::{Alone, Peaks, Predicted, Prediction};
use crate::search::{MAX_BATCH, PredictedBatches};
use crate::units::Bytes;
use crate::validate::settings_in_force;
use crate::{Runs, Work};

use super::engine::{lowered, requested_limit};
use super::plan::{BatchTarget, choose, without_a_plan};
use super::probing::runner::{Observer, ProbeCache, Runner as _};
use super::probing::simulator::Simulator;
use super::variant_search::{VariantSearch, micro_steps};
use crate::fitting::recommendation::headroom::VariantHeadroom;
use crate::fitting::recommendation::notes::settings_as_recorded;
use crate::fitting::recommendation::recommend::next_to_record;

/// A batch to record is so much larger than the largest recorded one at least, as a part of that.
const WORTH_A_RUN: u64 = 4;

/// How finely the largest batch that leaves headroom is looked for, as a part of the largest, and among how many at most.
const GRAIN: u64 = 1000;
const MOST_CANDIDATES: u64 = 32;

/// One that is larger than what bisection finds by more than this part of it runs by luck.
const NO_HOLE: u64 = 50;

/// Learns from a request's recordings, and says what they predict on the very card on which they were made; `request` names them, and
/// what is looked for.
pub fn predict(request: &Request, runs: &Runs, cancel: &Cancel) -> Result<Prediction> {
    let workload = &lowered(request, cancel)?.workload;
    let (Workload::Recorded(steps), [variant]) = (workload, request.variants.as_slice()) else {
        let problem = "expected recordings, which decide all of how is trained";
        return Err(RequestError::at("/model", problem).into());
    };
    let settings = settings_in_force(request, workload)?;
    let card = Card::recorded_on(steps.gpu.as_deref(), steps.total);
    let memory = CardMemory {
        total: steps.total.unwrap_or(card.total_memory),
        available: card.available(),
    };
    let limit = requested_limit(request, &settings, memory).unwrap_or(memory.available);
    let mut simulator = Simulator::new(
        "the card that was recorded on".to_owned(),
        workload.clone(),
        card.capability,
        settings,
        memory,
        cancel,
    );
    let variant = Variant {
        accumulation: variant.accumulation.max(steps.accumulation),
        ..variant.clone()
    };
    if let [batch] = *steps.batches.as_slice() {
        let report = simulator
            .probe(&variant, batch, limit, Detail::Verdict)?
            .report;
        return Ok(Prediction::Alone(Alone {
            batch,
            peaks: peaks(&report),
            standing: steps.standing().0,
        }));
    }
    if let Some((batch, reserved)) = runs.largest {
        simulator.ran(&variant, (batch, Bytes(reserved)), limit)?;
    }
    let observer = Observer::new(&Work::quiet(cancel));
    let mut predicted = predicted(request, steps, runs, (simulator, variant, limit), &observer)?;
    predicted
        .notes
        .extend(settings_as_recorded(request, workload));
    Ok(Prediction::Several(Box::new(predicted)))
}

fn predicted(
    request: &Request,
    steps: &Steps,
    runs: &Runs,
    (mut simulator, variant, limit): (Simulator, Variant, Bytes),
    observer: &Observer<'_>,
) -> Result<Predicted> {
    let target = BatchTarget {
        target_batch: request.target_batch,
        world_size: request.world_size,
        // Recordings do not say how fast a step is.
        objective: Objective::LargestBatch,
    };
    let accumulation = variant.accumulation;
    let ceiling = runs.ceiling.min(simulator.ceiling()).min(MAX_BATCH);
    let mut cache = ProbeCache::new(
        &mut simulator,
        observer,
        variant,
        (limit, ceiling),
        VariantHeadroom::default(),
    );
    let mut search = VariantSearch::new(&mut cache, None, SearchMode::Auto);
    // Without a target, recordings of several micro-steps are those of one step.
    let mut plan = choose(target, accumulation, &mut search)?.map(|chosen| chosen.plan);
    if let (Some(plan), None) = (&mut plan, target.target_batch) {
        plan.accumulation_steps = 1;
        plan.global_batch = plan.micro_batch.saturating_mul(target.world_size);
    }
    let micro_steps = micro_steps(match (plan, target.target_batch) {
        (Some(plan), Some(_)) => plan.accumulation_steps,
        (Some(_) | None, _) => without_a_plan(target, accumulation),
    });
    let maxima: PredictedBatches = search.maxima(micro_steps)?.prediction;
    let cache = search.simulation(micro_steps);
    if let (Some(plan), None) = (&mut plan, target.target_batch) {
        let largest = largest_of_all(maxima.max_batch_steady, plan.micro_batch, cache)?;
        plan.micro_batch = largest;
        plan.global_batch = largest.saturating_mul(target.world_size);
    }
    let mut notes = Vec::new();
    let mut all = BTreeMap::new();
    for batch in &steps.batches {
        all.insert(*batch, peaks(&cache.probe(*batch)?.report));
    }
    let mut record_next = None;
    if let Some(plan) = plan {
        let probed = cache.probe(plan.micro_batch)?;
        let found = peaks(&probed.report);
        let headroom = probed.headroom(limit);
        if headroom > Bytes::ZERO && !steps.is_recorded(plan.micro_batch) {
            notes.push(probed.headroom.why(&probed.uncertainties, limit));
        }
        all.insert(plan.micro_batch, found);
        // With half of the limit left, it may take twice what is predicted.
        if Bytes(found.reserved) > Bytes(limit.0 / 2) {
            let largest = steps.batches.last().copied().unwrap_or(0);
            let next = next_to_record(plan.micro_batch, cache)?;
            record_next =
                next.filter(|next| *next >= largest.saturating_add(largest / WORTH_A_RUN));
        }
    }
    Ok(Predicted {
        maxima,
        plan,
        record_next,
        limit: limit.0,
        peaks: all,
        recorded: steps.batches.clone(),
        notes,
    })
}

/// The largest batch of up to `largest` that leaves headroom, finely enough: where there are holes, a search by bisection ends
/// below some of them. `known` where there is none near.
fn largest_of_all(largest: u64, known: u64, cache: &mut ProbeCache<'_>) -> Result<u64> {
    let limit = cache.limit;
    let largest = largest.min(known.saturating_add(known / NO_HOLE));
    let step = (largest / GRAIN).max(1);
    let candidates = (0..MOST_CANDIDATES).map(|number| largest.saturating_sub(number * step));
    for batch in candidates.take_while(|batch| *batch > known) {
        let probed = cache.probe(batch)?;
        if probed.leaves(probed.headroom(limit), limit) {
            return Ok(batch);
        }
    }
    Ok(known)
}

fn peaks(report: &ProbeReport) -> Peaks {
    Peaks {
        allocated: report.peak_allocated_bytes,
        reserved: report.peak_reserved_bytes,
    }
}
