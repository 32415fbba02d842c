//! From the answers for all variants to their order, and what each costs.

use std::collections::BTreeSet;

use crate::compile::{Recomputed, recomputed};
use crate::model::{Checkpointing, Compare, Ddp, Mode, Parallel, Precision, Variant, Workload};
use crate::probe::SpeedFrom;
use crate::search::{RankKey, rank, unbeaten};
use crate::{Recommendation, VariantResult};

/// What was found out about one variant.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) variant: Variant,
    pub(crate) recomputed: Recomputed,
    pub(crate) recommendation: Recommendation,
}

/// What checkpointing has a model compute twice; of recordings it is not known.
pub(crate) fn recomputed_by(workload: &Workload, variant: &Variant) -> Recomputed {
    match workload {
        Workload::Graph(graph) => recomputed(graph, variant),
        Workload::Recorded(_) => Recomputed::default(),
    }
}

/// The variants, best first, and the place of each of `entries` among them.
pub(crate) fn ranked(entries: &[Entry], compare: Compare) -> (Vec<VariantResult>, Vec<usize>) {
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
pub(crate) fn forget(notes: &mut Vec<String>) {
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
fn cost(variant: &Variant, recomputed: Recomputed) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use crate::fitting::recommendation::ranked::*;

    #[test]
    fn costs_are_those_beside_memory() {
        let blocks = Recomputed {
            calls: 24,
            operations: 97,
            of_operations: 100,
        };
        let one = Recomputed { calls: 1, ..blocks };
        let none = Recomputed::default();
        let per_block = Checkpointing::PerBlock;
        let modules = Checkpointing::Modules(vec!["h.*".into()]);
        let of = |precision, checkpointing: &Checkpointing, recomputed| {
            let variant = Variant {
                precision,
                checkpointing: checkpointing.clone(),
                ..Variant::default()
            };
            cost(&variant, recomputed).unwrap_or_default()
        };
        let plain = &Checkpointing::None;

        assert_eq!(of(Precision::Fp32, plain, none), "");
        assert_eq!(of(Precision::AmpBf16, plain, none), "");
        assert_eq!(of(Precision::AmpFp16, plain, none), "loss scaling");
        assert_eq!(of(Precision::Bf16, plain, none), "weights in bf16");
        assert_eq!(
            of(Precision::AmpFp16, &per_block, blocks),
            "recomputes 24 blocks, loss scaling"
        );
        assert_eq!(of(Precision::Fp32, &modules, one), "recomputes 1 module");
    }
}
