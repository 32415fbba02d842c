//! Which allocations of two recordings are the same.

use super::RecordedError;
use super::align::{MOST_DIFFERENCES, align};
use super::form::{Point, may_be_same};
use super::sequence::{Block, Sequence};

/// What two sequences have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Matching {
    /// Blocks of the smaller batch's sequence: their partners in the larger one's.
    pub(super) partners: Vec<Option<Partner>>,
    /// The first events that have no partner, where there is one.
    pub(super) first_divergence: Option<(usize, usize)>,
}

/// The same block in another recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Partner {
    pub(super) block: usize,
    /// Whether both are freed at the same place, or never.
    pub(super) is_freed_alike: bool,
}

/// Memory that lives through fewer allocations: a few more or less are an algorithm's.
const SHORT: usize = 8;

/// How many times as large memory may be as it is elsewhere at this batch: routed tokens are not as many in each batch.
const TOLERANCE: f64 = 1.25;

impl Matching {
    /// Matches the sequence of a smaller batch with that of a larger one. An error says where they part that are not of one program.
    pub(super) fn of(small: &Sequence, large: &Sequence) -> Result<Matching, RecordedError> {
        let apart = |(i, j)| RecordedError::Divergence {
            batches: [small.batch, large.batch],
            places: [small.place(i), large.place(j)],
        };
        let same = |i: usize, j: usize| {
            let (a, b) = (small.events[i], large.events[j]);
            let (x, y) = (small.blocks[a.block], large.blocks[b.block]);
            let point = |sequence: &Sequence, bytes| Point {
                batch: sequence.batch,
                bytes,
            };
            a.is_free == b.is_free
                && x.stream == y.stream
                && live_alike(x.life, y.life)
                && may_be_same(point(small, x.bytes), point(large, y.bytes))
        };
        let lengths = [small.events.len(), large.events.len()];
        let pairs = align(lengths, same).map_err(apart)?;
        let first_divergence = first_divergence(&pairs, lengths);
        let pairs = fill_gaps(pairs, small, large);
        let matching = Matching {
            partners: partners(&pairs, small, large),
            first_divergence,
        };
        if matching.is_of_one_program(small, large) {
            Ok(matching)
        } else {
            Err(apart(first_divergence.unwrap_or_default()))
        }
    }

    /// Whether nearly all memory of one is that of the other at another batch. See Note [One program].
    fn is_of_one_program(&self, small: &Sequence, large: &Sequence) -> bool {
        let paired: Vec<(Block, Block)> = small
            .blocks
            .iter()
            .zip(&self.partners)
            .filter_map(|(block, partner)| Some((*block, large.blocks[(*partner)?.block])))
            .collect();
        let fewest = small.blocks.len().min(large.blocks.len());
        if 2 * paired.len() < fewest {
            return false;
        }
        let is_kept = |block: &Block| block.life.is_none_or(|life| life >= SHORT);
        let kept = [small, large].map(|of| of.blocks.iter().filter(|it| is_kept(it)).count());
        let batches = [small.batch, large.batch].map(|batch| batch as f64);
        let (mut alike, mut stays, mut standing) = (0, 0, 0);
        let (mut grows, mut in_proportion) = (0.0, 0.0);
        for (block, other) in paired.iter().filter(|(block, _)| is_kept(block)) {
            let ratio = other.bytes as f64 / block.bytes.max(1) as f64;
            let most = batches[1] / batches[0];
            let is_about = |wanted: f64| (wanted / TOLERANCE..=wanted * TOLERANCE).contains(&ratio);
            let is_square = is_about(most * most);
            alike +=
                usize::from((1.0 / TOLERANCE..=most * TOLERANCE).contains(&ratio) || is_square);
            if block.life.is_none() {
                standing += 1;
                stays += usize::from(other.bytes == block.bytes);
            } else if other.bytes > block.bytes {
                let bytes = other.bytes as f64;
                grows += bytes;
                in_proportion += if is_about(most) || is_square {
                    bytes
                } else {
                    0.0
                };
            }
        }
        10 * alike >= 9 * kept[0].max(kept[1])
            && 2 * stays >= standing
            && 4.0 * in_proportion >= 3.0 * grows
    }

    /// How many blocks of the smaller batch have no partner.
    pub(super) fn unmatched(&self) -> usize {
        self.partners
            .iter()
            .filter(|partner| partner.is_none())
            .count()
    }
}

/// Whether blocks that live through so many allocations may be the same: scratch memory never becomes a state or what is
/// kept for the backward pass, however the library around it chooses its algorithms.
fn live_alike(a: Option<usize>, b: Option<usize>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a == b || (a < SHORT && b < SHORT) || (a.min(b) >= SHORT / 2),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

fn first_divergence(pairs: &[(usize, usize)], [n, m]: [usize; 2]) -> Option<(usize, usize)> {
    let alike = pairs
        .iter()
        .zip(0..)
        .take_while(|(pair, i)| **pair == (*i, *i))
        .count();
    (alike < n.max(m)).then_some((
        alike.min(n.saturating_sub(1)),
        alike.min(m.saturating_sub(1)),
    ))
}

/// Pairs what lies between two pairs, where it is the same but for sizes: scratch memory around one kernel, for which a
/// library chose another algorithm. Where the number differs, only what is freed at once is paired, if there is as much
/// of it.
fn fill_gaps(
    pairs: Vec<(usize, usize)>,
    small: &Sequence,
    large: &Sequence,
) -> Vec<(usize, usize)> {
    let mut filled = Vec::with_capacity(pairs.len());
    let end = (small.events.len(), large.events.len());
    let (mut from_i, mut from_j) = (0, 0);
    for (i, j) in pairs.into_iter().chain([end]) {
        let gap = (from_i..i, from_j..j);
        let kinds = gap.0.clone().map(|i| small.events[i].is_free);
        let is_alike = gap.0.len() == gap.1.len()
            && kinds.eq(gap.1.clone().map(|j| large.events[j].is_free))
            && gap.0.len() <= MOST_DIFFERENCES;
        if is_alike {
            filled.extend(gap.0.zip(gap.1));
        } else {
            let at_once = |sequence: &Sequence, event: &usize| {
                let happening = sequence.events[*event];
                !happening.is_free && sequence.life(happening.block) == Some(0)
            };
            let ours: Vec<usize> = gap.0.filter(|i| at_once(small, i)).collect();
            let theirs: Vec<usize> = gap.1.filter(|j| at_once(large, j)).collect();
            if ours.len() == theirs.len() {
                filled.extend(ours.into_iter().zip(theirs));
            }
        }
        filled.push((i, j));
        (from_i, from_j) = (i + 1, j + 1);
    }
    filled.pop();
    filled
}

fn partners(pairs: &[(usize, usize)], small: &Sequence, large: &Sequence) -> Vec<Option<Partner>> {
    let mut partners: Vec<Option<Partner>> = vec![None; small.blocks.len()];
    let mut has_partner = vec![false; large.blocks.len()];
    let mut freed_together = vec![None; small.blocks.len()];
    for (i, j) in pairs {
        let (a, b) = (small.events[*i], large.events[*j]);
        if a.is_free {
            freed_together[a.block] = Some(b.block);
        } else {
            has_partner[b.block] = true;
            partners[a.block] = Some(Partner {
                block: b.block,
                is_freed_alike: false,
            });
        }
    }
    let is_paired: Vec<bool> = partners.iter().map(Option::is_some).collect();
    let (regions, other_regions) = (
        Regions::of(small, &is_paired),
        Regions::of(large, &has_partner),
    );
    for (block, partner) in partners.iter_mut().enumerate() {
        let Some(partner) = partner else { continue };
        let (ours, theirs) = (small.blocks[block].freed, large.blocks[partner.block].freed);
        partner.is_freed_alike = match (ours, theirs) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => {
                let (ours, theirs) = (regions.at(ours), other_regions.at(theirs));
                freed_together[block] == Some(partner.block) || (ours.is_some() && ours == theirs)
            }
            (Some(_), None) | (None, Some(_)) => false,
        };
    }
    partners
}

/// Events by how many allocations with a partner come before them: between two of those, frees may come in any order.
struct Regions {
    of_event: Vec<u32>,
    /// Whether allocations without a partner are in it.
    is_mixed: Vec<bool>,
}

impl Regions {
    fn of(sequence: &Sequence, is_paired: &[bool]) -> Regions {
        let mut regions = Regions {
            of_event: Vec::with_capacity(sequence.events.len()),
            is_mixed: vec![false],
        };
        for event in &sequence.events {
            if !event.is_free {
                if is_paired[event.block] {
                    regions.is_mixed.push(false);
                } else if let Some(mixed) = regions.is_mixed.last_mut() {
                    *mixed = true;
                }
            }
            let region = regions.is_mixed.len() - 1;
            regions
                .of_event
                .push(u32::try_from(region).expect("fewer than 2^32 events"));
        }
        regions
    }

    /// The region of an event, unless it has allocations without a partner.
    fn at(&self, event: usize) -> Option<u32> {
        let region = self.of_event[event];
        (!self.is_mixed[region as usize]).then_some(region)
    }
}
