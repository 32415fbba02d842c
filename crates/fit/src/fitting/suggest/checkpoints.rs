//! Which blocks to compute again: the least that reaches what is wanted.
//!
//! What a block saves and what computing it again takes is found out with that block alone, once for all that are alike. A knapsack then
//! finds the cheapest set that saves enough, as if savings added up; a simulation says whether it does, and what is missing is added
//! to what is to be saved.

use serde_json::json;

use crate::SuggestionKind;
use crate::compile::{Block, blocks};
use crate::fitting::Result;
use crate::model::{Checkpointing, Variant, Workload};
use crate::probe::Detail;
use crate::units::Bytes;

use super::candidates::{Candidate, RECOMPUTING};
use super::{Aim, PLENTY};
use crate::fitting::engine::{lowered, simulation};
use crate::fitting::probing::runner::{Observer, Runner as _, StepTime};
use crate::fitting::probing::simulator::Simulator;
use crate::fitting::recommendation::headroom::VariantHeadroom;

/// What checkpointing of every block costs next to the others.
pub(super) const EVERY_BLOCK: u32 = RECOMPUTING + 1;

/// Most blocks that are looked at: as many as a request may name modules.
const MOST_BLOCKS: usize = 64;

/// How often a set that saves too little is replaced by another.
const TRIES: u32 = 8;

/// Into how many parts what is to be saved is divided.
const PARTS: usize = 256;

/// What a block is worth.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Worth {
    /// Bytes of the peak that go if it is computed again.
    saved: u64,
    /// What computing it again takes, in seconds or, where they are unknown, operations.
    takes: f64,
}

/// The least that is to be computed again, and all blocks.
pub(super) fn candidates(aim: &Aim<'_>, observer: &Observer<'_>) -> Result<Vec<Candidate>> {
    let workload = &lowered(aim.request, observer.cancel())?.workload;
    let Workload::Graph(graph) = workload else {
        return Ok(Vec::new());
    };
    let found = blocks(graph);
    if aim.variant.checkpointing != Checkpointing::None || found.is_empty() {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    if found.len() <= MOST_BLOCKS && !aim.is_hopeless(aim.request, aim.variant) {
        let (simulator, room) = simulation(aim.request, aim.card, observer.cancel())?;
        let limit = room.limit(&aim.variant.parallel);
        let batch = aim.micro_batch.min(simulator.ceiling());
        let mut solver = Solver {
            aim,
            observer,
            simulator,
            limit,
            batch,
            blocks: &found,
        };
        if let Some(chosen) = solver.least()? {
            let paths: Vec<&str> = chosen.iter().map(|index| &*found[*index].path).collect();
            let change = format!("checkpointing of {} of {} blocks", paths.len(), found.len());
            all.push(candidate(
                change,
                paths.len(),
                &json!({ "modules": paths }),
                RECOMPUTING,
            ));
        }
    }
    let change = format!("checkpointing of all {} blocks", found.len());
    all.push(candidate(
        change,
        found.len(),
        &json!("per_block"),
        EVERY_BLOCK,
    ));
    Ok(all)
}

fn candidate(
    change: String,
    blocks: usize,
    checkpointing: &serde_json::Value,
    price: u32,
) -> Candidate {
    Candidate {
        kind: SuggestionKind::Checkpointing,
        change,
        patch: json!({ "training": { "checkpointing": checkpointing } }),
        cost: format!("the forward passes of {blocks} blocks twice"),
        price,
    }
}

struct Solver<'a> {
    aim: &'a Aim<'a>,
    observer: &'a Observer<'a>,
    simulator: Simulator,
    limit: Bytes,
    /// The micro-batch that is wanted.
    batch: u64,
    blocks: &'a [Block],
}

impl Solver<'_> {
    /// The cheapest blocks with which the batch runs and leaves headroom; `None` where it does without any, or with none.
    fn least(&mut self) -> Result<Option<Vec<usize>>> {
        let every: Vec<usize> = (0..self.blocks.len()).collect();
        let mut lacking = self.lacking(&[])?;
        if lacking == 0 || self.lacking(&every)? > 0 {
            return Ok(None);
        }
        let worths = self.worths()?;
        let mut needed = 0;
        for _ in 0..TRIES {
            needed += lacking;
            let Some(chosen) = cheapest(&worths, needed) else {
                break;
            };
            lacking = self.lacking(&chosen)?;
            if lacking == 0 {
                return self.without_surplus(chosen, &worths).map(Some);
            }
        }
        self.without_surplus(every, &worths).map(Some)
    }

    /// What of a set can be left out after all, the costliest first: found by bisection, since those that are alike do alike.
    fn without_surplus(&mut self, mut chosen: Vec<usize>, worths: &[Worth]) -> Result<Vec<usize>> {
        crate::order::by(&mut chosen, |a, b| {
            worths[*a].takes.total_cmp(&worths[*b].takes).then(a.cmp(b))
        });
        let (mut least, mut most) = (1, chosen.len());
        while least < most {
            let middle = usize::midpoint(least, most);
            if self.lacking(&chosen[..middle])? == 0 {
                most = middle;
            } else {
                least = middle + 1;
            }
        }
        chosen.truncate(most);
        chosen.sort_unstable();
        Ok(chosen)
    }

    /// What each block is worth, alone.
    fn worths(&mut self) -> Result<Vec<Worth>> {
        let peak = self.peak(&[])?;
        let takes = self.seconds(&[])?;
        let mut known: Vec<((usize, u64), Worth)> = Vec::new();
        let mut worths = Vec::new();
        let blocks = self.blocks;
        for (index, block) in blocks.iter().enumerate() {
            let alike = known
                .iter()
                .find(|(likeness, _)| *likeness == block.likeness);
            let worth = if let Some((_, worth)) = alike {
                *worth
            } else {
                let (less, more) = (self.peak(&[index])?, self.seconds(&[index])?);
                let worth = Worth {
                    saved: peak.saturating_sub(less),
                    takes: match (takes, more) {
                        (Some(takes), Some(more)) => (more - takes).max(0.0),
                        _ => block.likeness.0 as f64,
                    },
                };
                known.push((block.likeness, worth));
                worth
            };
            worths.push(worth);
        }
        Ok(worths)
    }

    fn variant(&self, chosen: &[usize]) -> Variant {
        let paths = chosen.iter().map(|index| self.blocks[*index].path.clone());
        let checkpointing = if chosen.is_empty() {
            Checkpointing::None
        } else {
            Checkpointing::Modules(paths.collect())
        };
        Variant {
            checkpointing,
            accumulation: 1,
            ..self.aim.variant.clone()
        }
    }

    /// How long a step of one micro-step takes.
    fn seconds(&mut self, chosen: &[usize]) -> Result<Option<f64>> {
        let variant = self.variant(chosen);
        Ok(match self.simulator.step_time(&variant, self.batch, 1)? {
            StepTime::Seconds(seconds, _) => Some(seconds),
            StepTime::Unknown(_) => None,
        })
    }

    /// The most bytes allocated in steps of the batch, on a card that has plenty.
    fn peak(&mut self, chosen: &[usize]) -> Result<u64> {
        let (variant, batch) = (self.variant(chosen), self.batch);
        self.observer
            .before(batch, "looking for blocks to compute again")?;
        let probed = self
            .simulator
            .probe(&variant, batch, PLENTY, Detail::Verdict)?;
        Ok(probed.report.peak_allocated_bytes)
    }

    /// By how much the limit is too low for the batch with these blocks; 0 where it runs and leaves headroom.
    fn lacking(&mut self, chosen: &[usize]) -> Result<u64> {
        let (variant, batch, limit) = (self.variant(chosen), self.batch, self.limit);
        self.observer
            .before(batch, "looking for blocks to compute again")?;
        let (request, simulator) = (self.aim.request, &mut self.simulator);
        let (_, is_safe) = simulator.safety(request, &variant, batch, limit)?;
        if is_safe {
            return Ok(0);
        }
        let mut probed = simulator.probe(&variant, batch, PLENTY, Detail::Verdict)?;
        probed.headroom = VariantHeadroom::of(request, &variant);
        let needed = Bytes(probed.report.peak_reserved_bytes) + probed.headroom(limit);
        Ok(needed.saturating_sub(limit).0.max(1 << 20))
    }
}

/// The cheapest set of blocks that saves so many bytes, as if savings added up: a knapsack turned around, with what is saved in
/// parts of what is needed, rounded down. The first of equals are taken.
fn cheapest(worths: &[Worth], needed: u64) -> Option<Vec<usize>> {
    let part = needed.div_ceil(PARTS as u64).max(1);
    let goal = usize::try_from(needed.div_ceil(part)).ok()?;
    // For each amount: what it takes at least, and of which blocks.
    let mut best: Vec<Option<(f64, u64)>> = vec![None; goal + 1];
    best[0] = Some((0.0, 0));
    for (index, worth) in worths.iter().enumerate().take(MOST_BLOCKS) {
        let saved = usize::try_from(worth.saved / part)
            .unwrap_or(goal)
            .min(goal);
        if saved == 0 {
            continue;
        }
        for amount in (0..=goal).rev() {
            let Some((takes, set)) = best[amount] else {
                continue;
            };
            let to = (amount + saved).min(goal);
            let with = takes + worth.takes;
            if best[to].is_none_or(|(known, _)| with < known) {
                best[to] = Some((with, set | 1 << index));
            }
        }
    }
    let (_, set) = best[goal]?;
    Some(
        (0..worths.len())
            .filter(|index| set >> index & 1 == 1)
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_set_that_saves_enough_is_chosen() {
        let worth = |saved, takes| Worth { saved, takes };
        let worths = [
            worth(100, 5.0),
            worth(60, 1.0),
            worth(60, 1.0),
            worth(60, 1.0),
            worth(0, 0.0),
        ];

        assert_eq!(cheapest(&worths, 50), Some(vec![1]));
        assert_eq!(cheapest(&worths, 120), Some(vec![1, 2]));
        assert_eq!(cheapest(&worths, 180), Some(vec![1, 2, 3]));
        assert_eq!(cheapest(&worths, 250), Some(vec![0, 1, 2, 3]));
        assert_eq!(cheapest(&worths, 300), None);
        let most = vec![worth(1, 1.0); MOST_BLOCKS];
        assert_eq!(cheapest(&most, 64).map(|set| set.len()), Some(64));
    }

    /// Against all sets.
    #[test]
    fn no_set_is_cheaper() {
        let worths: Vec<Worth> = (0..10_u64)
            .map(|number| Worth {
                saved: 20 * (40 + 20 * (number * 7 % 5)),
                takes: 1.0 + (number * 3 % 4) as f64,
            })
            .collect();
        let needed = 20 * 256;
        let of = |set: u32, what: fn(&Worth) -> f64| -> f64 {
            let chosen = worths.iter().enumerate();
            chosen
                .filter(|(index, _)| set >> index & 1 == 1)
                .map(|(_, worth)| what(worth))
                .sum()
        };
        let enough =
            (0..1_u32 << 10).filter(|set| of(*set, |one| one.saved as f64) >= needed as f64);
        let least = enough
            .map(|set| of(set, |one| one.takes))
            .fold(f64::INFINITY, f64::min);

        let chosen = cheapest(&worths, needed).unwrap();
        let takes: f64 = chosen.iter().map(|index| worths[*index].takes).sum();

        assert!((takes - least).abs() < 1e-9, "{takes} {least} {chosen:?}");
    }
}
