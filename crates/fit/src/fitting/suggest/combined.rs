//! Several changes at once, where no batch fits and no change of the training alone makes one fit.

use serde_json::json;

use super::candidates::{
    ADAPTING, CHUNKING, Candidate, HALF_WEIGHTS, LARGER_CARD, OFFLOADING, PAGING, SHARDING,
};
use super::checkpoints::EVERY_BLOCK;
use super::{Told, Trials, merge};
use crate::fitting::Result;
use crate::fitting::probing::runner::Observer;
use crate::{Suggestion, SuggestionKind};

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

/// Adds for each ladder the smallest combination that makes a batch of one fit, with the price of its dearest change.
pub(super) fn add(
    trials: &Trials<'_>,
    single: &[Candidate],
    found: &mut Vec<(u32, Suggestion)>,
    observer: &Observer<'_>,
) -> Result<()> {
    let climbed = trials.each(&LADDERS, observer, |ladder, told| {
        let rungs: Vec<&Candidate> = ladder
            .iter()
            .filter_map(|price| single.iter().find(|one| one.price == *price))
            .collect();
        // One sample may fit where no plan for a target does; what is known then is another.
        while let Some(candidate) = smallest(trials, &rungs, told)? {
            match trials.answered(&candidate, told)? {
                Some(one) if one.micro_batch > 0 => return Ok(Some((candidate.price, one))),
                Some(one) => trials.fails(&one.patch),
                None => break,
            }
        }
        Ok(None)
    })?;
    for (price, one) in climbed.into_iter().flatten() {
        if found.iter().all(|(_, known)| known.patch != one.patch) {
            found.push((price, one));
        }
    }
    Ok(())
}

/// The smallest combination of these changes, each taken after those before it, with which a batch fits.
fn smallest(trials: &Trials<'_>, rungs: &[&Candidate], told: &Told) -> Result<Option<Candidate>> {
    let mut taken: Vec<&Candidate> = Vec::new();
    let mut fits = false;
    for rung in rungs {
        // More GPUs take the place of fewer, and shards on the host that of pages there.
        let is_instead = [SuggestionKind::Gpus, SuggestionKind::Offload].contains(&rung.kind);
        taken.retain(|one| !is_instead || one.kind != rung.kind);
        taken.push(rung);
        fits = trials.fits(&together(&taken), told)?;
        if fits {
            break;
        }
    }
    // What the others make needless.
    for at in (0..taken.len()).rev().filter(|_| fits).collect::<Vec<_>>() {
        let mut fewer = taken.clone();
        fewer.remove(at);
        if !fewer.is_empty() && trials.fits(&together(&fewer), told)? {
            taken = fewer;
        }
    }
    Ok(fits.then(|| together(&taken)))
}

/// These changes as one.
fn together(taken: &[&Candidate]) -> Candidate {
    let mut patch = json!({});
    for one in taken {
        merge(&mut patch, &one.patch);
    }
    let joined = |of: fn(&Candidate) -> &str| {
        let all: Vec<&str> = taken.iter().map(|one| of(one)).collect();
        all.join("; ")
    };
    Candidate {
        kind: SuggestionKind::Combination,
        change: joined(|one| &one.change),
        patch,
        cost: joined(|one| &one.cost),
        price: taken.iter().map(|one| one.price).max().unwrap_or_default(),
    }
}
