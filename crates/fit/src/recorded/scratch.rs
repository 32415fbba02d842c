//! Scratch memory of operations that are recognized by the sizes around it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::convolutions::{Convolutions, Site};
use super::form::Point;
use super::merge::Merged;
use super::reductions::RowSum;
use super::sequence::Sequence;
use crate::device::sim::Card;
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

/// What is recognized in the recording of the largest batch.
#[derive(Debug, Default)]
pub(super) struct Recognized {
    /// What asked for scratch memory, by its family.
    pub(super) operations: HashMap<usize, Operation>,
    /// Sums that ask for scratch memory only at larger batches, by the event that asks for their result.
    pub(super) later: HashMap<usize, RowSum>,
}

/// Most sizes that operands are looked for among, of all sums together: a step of a large model takes a few millions.
const MOST_LOOKED_AT: usize = 1 << 26;

/// Recognizes operations.
pub(super) fn recognize(sequences: &[Sequence], merged: &Merged) -> Recognized {
    let mut recognized = Recognized::default();
    let found = &mut recognized.operations;
    let Some((last, sequence)) = sequences.iter().enumerate().next_back() else {
        return recognized;
    };
    let batches: Vec<u64> = sequences.iter().map(|sequence| sequence.batch).collect();
    let mut card = Card::recorded_on(sequence.gpu.as_deref(), sequence.total).capability;
    let mut sums = Vec::new();
    // The last result: what was asked for and not freed at once.
    let mut result_before = None;
    let families = &merged.family_of[last];
    let sizes = |block: usize| &merged.families[families[block]][..];
    let mut convolutions = Convolutions::default();
    let mut in_use = InUse::new();
    let mut sizes_looked_at = 0_usize;
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
                    results: at_batches_of(sizes(result), &scratch),
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
                sizes_looked_at += in_use.len();
                if scratch[0].len() == scratch[1].len()
                    && sizes_looked_at < MOST_LOOKED_AT
                    && let Some(sum) = RowSum::find(result, scratch, &in_use)
                {
                    card = sum.card();
                    found.insert(family, Operation::Buffer(sum));
                    found.insert(families[next.block], Operation::Semaphores(sum));
                }
            }
            _ => {}
        }
        let is_result = sequence.life(event.block) != Some(0);
        let is_fixed = sizes(event.block).iter().all(|point| point.bytes == bytes);
        if is_result && is_fixed {
            sizes_looked_at += in_use.len();
            if let Some(weight) = result_before.filter(|_| sizes_looked_at < MOST_LOOKED_AT) {
                let sum = RowSum::of_bias(card, [weight, bytes], &batches, &in_use);
                sums.extend(sum.map(|sum| (index, sum)));
            }
            result_before = Some(bytes);
        } else if is_result {
            result_before = None;
        }
        *in_use.entry(bytes).or_insert(0) += 1;
    }
    recognized.later = sums.into_iter().collect();
    let found = &mut recognized.operations;
    let convolutions = convolutions.finish().into_iter();
    found.extend(convolutions.map(|(family, shape)| (family, Operation::Convolution(shape))));
    recognized
}

/// The sizes at the batches of others.
fn at_batches_of(sizes: &[Point], others: &[Point]) -> Vec<Point> {
    let is_with = |point: &&Point| others.iter().any(|other| other.batch == point.batch);
    sizes.iter().filter(is_with).copied().collect()
}
