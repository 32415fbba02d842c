//! Scratch memory of operations that are recognized by the sizes around it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::convolutions::{Convolutions, Site};
use super::form::Point;
use super::merge::Merged;
use super::reductions::RowSum;
use super::sequence::Sequence;
use crate::program::ConvolutionShape;

/// How much memory of each size is in use.
pub(super) type InUse = HashMap<u64, usize>;

/// What asked for scratch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// A convolution.
    Convolution(ConvolutionShape),
    /// A sum over rows, for its partial results.
    Buffer(RowSum),
    /// A sum over rows, for counters.
    Semaphores(RowSum),
}

/// The operations that are recognized in the recording of the largest batch, by the family of their scratch memory.
pub(super) fn recognize(sequences: &[Sequence], merged: &Merged) -> HashMap<usize, Operation> {
    let mut found = HashMap::new();
    let Some((last, sequence)) = sequences.iter().enumerate().next_back() else {
        return found;
    };
    let families = &merged.family_of[last];
    let sizes = |block: usize| &merged.families[families[block]][..];
    let mut convolutions = Convolutions::default();
    let mut in_use = InUse::new();
    for (index, event) in sequence.events.iter().enumerate() {
        let bytes = sequence.blocks[event.block].bytes;
        if event.is_free {
            if let Entry::Occupied(mut count) = in_use.entry(bytes) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
            continue;
        }
        let before = index.checked_sub(1).map(|before| sequence.events[before]);
        let result = before
            .filter(|before| !before.is_free)
            .map(|before| before.block);
        let family = families[event.block];
        match (result, sequence.life(event.block)) {
            // Asked for after a result, and freed at once.
            (Some(result), Some(0)) if sequence.life(result) != Some(0) => {
                let scratch = sizes(event.block).to_vec();
                let site = Site {
                    event: index,
                    family,
                    results: beside(sizes(result), &scratch),
                    scratch,
                };
                if site.results.len() == site.scratch.len() {
                    convolutions.visit(site, &in_use);
                }
            }
            // Asked for after a result, and freed after something else was asked for.
            (Some(result), Some(1..=2)) => {
                let next = sequence.events.get(index + 1).filter(|next| !next.is_free);
                let Some(next) = next.filter(|_| !found.contains_key(&family)) else {
                    *in_use.entry(bytes).or_insert(0) += 1;
                    continue;
                };
                let scratch = [sizes(event.block), sizes(next.block)];
                let result = sequence.blocks[result].bytes;
                if scratch[0].len() == scratch[1].len()
                    && let Some(sum) = RowSum::find(result, scratch, &in_use)
                {
                    found.insert(family, Operation::Buffer(sum));
                    found.insert(families[next.block], Operation::Semaphores(sum));
                }
            }
            _ => {}
        }
        *in_use.entry(bytes).or_insert(0) += 1;
    }
    let convolutions = convolutions.finish().into_iter();
    found.extend(convolutions.map(|(family, shape)| (family, Operation::Convolution(shape))));
    found
}

/// The sizes at the batches of others.
fn beside(sizes: &[Point], others: &[Point]) -> Vec<Point> {
    let is_with = |point: &&Point| others.iter().any(|other| other.batch == point.batch);
    sizes.iter().filter(is_with).copied().collect()
}
