//! Several changes at once, where no batch fits and no change of the training alone makes one fit.

use serde_json::json;

use super::candidates::{
    ADAPTING, CHUNKING, Candidate, HALF_WEIGHTS, LARGER_CARD, OFFLOADING, PAGING, SHARDING,
};
use super::checkpoints::EVERY_BLOCK;
use super::{Aim, answered, merge};
use crate::fitting::engine::FitEngine;
use crate::fitting::probing::runner::Observer;
use crate::{EngineError, Suggestion, SuggestionKind};

/// Changes by their prices, in the order in which people take them: the same training on as many GPUs, an adapter's instead, and each
/// on more GPUs.
const LADDERS: [&[u32]; 4] = [
    &[HALF_WEIGHTS, EVERY_BLOCK, CHUNKING, PAGING, OFFLOADING],
    &[HALF_WEIGHTS, ADAPTING, EVERY_BLOCK, CHUNKING, LARGER_CARD],
    &[
        HALF_WEIGHTS,
        EVERY_BLOCK,
        CHUNKING,
        SHARDING,
        SHARDING + 2,
        SHARDING + 4,
        LARGER_CARD + 1,
    ],
    &[
        HALF_WEIGHTS,
        ADAPTING,
        EVERY_BLOCK,
        CHUNKING,
        SHARDING,
        SHARDING + 2,
        SHARDING + 4,
        LARGER_CARD + 1,
    ],
];

/// For each ladder the smallest combination that makes a batch of one fit, with the price of its dearest change.
pub(super) fn suggestions(
    engine: &FitEngine,
    aim: &Aim<'_>,
    single: &[Candidate],
    observer: &Observer<'_>,
) -> Result<Vec<(u32, Suggestion)>, EngineError> {
    let mut found: Vec<(u32, Suggestion)> = Vec::new();
    for ladder in LADDERS {
        let rungs = ladder
            .iter()
            .filter_map(|price| single.iter().find(|one| one.price == *price));
        let mut taken: Vec<&Candidate> = Vec::new();
        let mut best = None;
        for rung in rungs {
            // More GPUs take the place of fewer, and shards on the host that of pages there.
            let is_instead = [SuggestionKind::Gpus, SuggestionKind::Offload].contains(&rung.kind);
            taken.retain(|one| !is_instead || one.kind != rung.kind);
            taken.push(rung);
            best = fitting(engine, aim, &taken, observer)?;
            if best.is_some() {
                break;
            }
        }
        // What the others make needless.
        for at in (0..taken.len())
            .rev()
            .filter(|_| best.is_some())
            .collect::<Vec<_>>()
        {
            let mut fewer = taken.clone();
            fewer.remove(at);
            if let (1.., Some(fits)) = (fewer.len(), fitting(engine, aim, &fewer, observer)?) {
                (taken, best) = (fewer, Some(fits));
            }
        }
        found.extend(best.filter(|one| found.iter().all(|(_, known)| known.patch != one.1.patch)));
    }
    Ok(found)
}

/// These changes together with their answer, if a batch fits then.
fn fitting(
    engine: &FitEngine,
    aim: &Aim<'_>,
    taken: &[&Candidate],
    observer: &Observer<'_>,
) -> Result<Option<(u32, Suggestion)>, EngineError> {
    let mut patch = json!({});
    for one in taken {
        merge(&mut patch, &one.patch);
    }
    let joined = |of: fn(&Candidate) -> &str| {
        let all: Vec<&str> = taken.iter().map(|one| of(one)).collect();
        all.join("; ")
    };
    let together = Candidate {
        kind: SuggestionKind::Combination,
        change: joined(|one| &one.change),
        patch,
        cost: joined(|one| &one.cost),
        price: taken.iter().map(|one| one.price).max().unwrap_or_default(),
    };
    observer.tell(&format!("answering with {}", together.change));
    let suggestion = answered(engine, aim, &together, observer)?;
    Ok(suggestion
        .filter(|one| one.micro_batch > 0)
        .map(|one| (together.price, one)))
}
