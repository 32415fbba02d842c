//! Which ranks of a job hold the same. See Note [Ranks].

use std::collections::{BTreeMap, BTreeSet};

use super::zero::partition;
use crate::graph::{Graph, ParameterKind};
use crate::shape::numel;
use batchfit_step::{Mode, Parallel, Variant};

/// Ranks that hold the same, and those that hold less.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankClass {
    /// One of those that hold the most: the first.
    pub rank: u64,
    /// All of them: first and last of ranks in a row, in order.
    pub stands_for: Vec<(u64, u64)>,
}

/// Most classes that are told apart; a rank beyond them counts as one that holds more. See Note [Ranks].
pub const MOST_CLASSES: usize = 4;

/// A trained parameter.
#[derive(Debug, Clone, Copy)]
struct Trained {
    /// The length of its first dimension; 1 for a scalar.
    rows: u64,
    elements: u64,
    bytes_each: u64,
}

/// What a rank updates, in the order in which its optimizer goes through it: bytes of each tensor.
type TensorBytes = Vec<u64>;

/// The ranks whose steps differ, those that hold more first.
pub fn rank_classes(graph: &Graph, variant: &Variant) -> Vec<RankClass> {
    let ranks = variant.parallel.world_size().max(1);
    let held = match (&variant.parallel, variant.mode) {
        (Parallel::Zero1(_), Mode::Train) => dealt(&trained(graph, variant), ranks),
        (Parallel::Fsdp2(_), Mode::Train) => cut(&trained(graph, variant), ranks),
        (Parallel::None | Parallel::Ddp(_), _) | (_, Mode::Inference) => Vec::new(),
    };
    if held.is_empty() {
        return vec![RankClass {
            rank: 0,
            stands_for: vec![(0, ranks - 1)],
        }];
    }
    classes(held)
}

fn trained(graph: &Graph, variant: &Variant) -> Vec<Trained> {
    let parameters = graph.parameters.iter();
    let trained = parameters.filter(|parameter| parameter.kind == ParameterKind::Trained);
    trained
        .map(|parameter| {
            let value = graph.value(parameter.value);
            Trained {
                rows: value.shape.first().map_or(1, |rows| rows.at(1)),
                elements: numel(&value.shape).at(1),
                bytes_each: crate::compile::stored(variant, value.dtype).size(),
            }
        })
        .collect()
}

/// What each rank updates where parameters are dealt out whole: `ZeroRedundancyOptimizer`.
fn dealt(parameters: &[Trained], ranks: u64) -> Vec<((u64, u64), TensorBytes)> {
    let elements: Vec<u64> = parameters.iter().map(|one| one.elements).collect();
    let parts = partition(&elements, ranks);
    let bytes = |index: &usize| {
        let one = parameters[*index];
        one.elements.saturating_mul(one.bytes_each)
    };
    let mut held: Vec<((u64, u64), TensorBytes)> = (0..)
        .zip(&parts)
        .map(|(rank, part)| ((rank, rank), part.iter().map(bytes).collect()))
        .collect();
    // Others have nothing to update.
    let with_some = parts.len() as u64;
    if with_some < ranks {
        held.push(((with_some, ranks - 1), TensorBytes::new()));
    }
    held
}

/// What each rank updates where every parameter's rows are spread: `fully_shard`. Chunks are alike but for the last that is not
/// empty (`torch.chunk`), so that few ranks differ.
fn cut(parameters: &[Trained], ranks: u64) -> Vec<((u64, u64), TensorBytes)> {
    let each = |one: &Trained| one.rows.div_ceil(ranks).max(1);
    let mut starts = BTreeSet::from([0]);
    for one in parameters {
        let whole = one.rows / each(one);
        starts.extend([whole, whole + 1].into_iter().filter(|rank| *rank < ranks));
    }
    let ends = starts.iter().skip(1).map(|start| start - 1);
    let ranges = starts.iter().copied().zip(ends.chain([ranks - 1]));
    ranges
        .map(|(first, last)| {
            let of_rank = |one: &Trained| {
                let left = one.rows.saturating_sub(first.saturating_mul(each(one)));
                let row = one.elements.checked_div(one.rows).unwrap_or(0);
                left.min(each(one))
                    .saturating_mul(row)
                    .saturating_mul(one.bytes_each)
            };
            let held = parameters.iter().map(of_rank);
            ((first, last), held.filter(|bytes| *bytes > 0).collect())
        })
        .collect()
}

/// Joins ranks that hold the same, and has those that hold less in every respect stand behind those that hold more.
fn classes(held: Vec<((u64, u64), TensorBytes)>) -> Vec<RankClass> {
    let mut alike: BTreeMap<TensorBytes, Vec<(u64, u64)>> = BTreeMap::new();
    for (ranks, held) in held {
        alike.entry(held).or_default().push(ranks);
    }
    let mut all: Vec<(TensorBytes, Vec<(u64, u64)>)> = alike.into_iter().collect();
    let first = |ranks: &[(u64, u64)]| ranks.first().map_or(0, |(first, _)| *first);
    crate::order::by_key(&mut all, |(held, ranks)| {
        (std::cmp::Reverse(held.iter().sum::<u64>()), first(ranks))
    });
    let mut kept: Vec<(TensorBytes, RankClass)> = Vec::new();
    for (held, ranks) in all {
        let more = kept.iter().position(|(more, _)| is_within(&held, more));
        let place = more.or_else(|| (kept.len() == MOST_CLASSES).then_some(MOST_CLASSES - 1));
        match place {
            Some(place) => kept[place].1.stands_for.extend(ranks),
            None => kept.push((
                held,
                RankClass {
                    rank: first(&ranks),
                    stands_for: ranks,
                },
            )),
        }
    }
    kept.into_iter()
        .map(|(_, class)| RankClass {
            stands_for: joined(class.stands_for),
            ..class
        })
        .collect()
}

/// Whether for each tensor of the one there is another of the other that is as large.
fn is_within(less: &TensorBytes, more: &TensorBytes) -> bool {
    let descending = |held: &TensorBytes| {
        let mut sorted = held.clone();
        sorted.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
        sorted
    };
    less.len() <= more.len()
        && descending(less)
            .iter()
            .zip(descending(more))
            .all(|(less, more)| *less <= more)
}

/// Ranges in order, those that touch as one.
fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (first, last) in ranges {
        match joined.last_mut() {
            Some((_, end)) if *end + 1 == first => *end = last,
            _ => joined.push((first, last)),
        }
    }
    joined
}

impl RankClass {
    /// The ranks as people write them: `0-3, 6`. Long lists end with how many more there are.
    pub fn ranks(&self) -> String {
        const SHOWN: usize = 8;
        let range = |(first, last): &(u64, u64)| {
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        };
        let shown: Vec<String> = self.stands_for.iter().take(SHOWN).map(range).collect();
        let more = self.stands_for.iter().skip(SHOWN);
        let more: u64 = more.map(|(first, last)| last - first + 1).sum();
        match more {
            0 => shown.join(", "),
            more => format!("{} and {more} more", shown.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(of: &[(u64, u64)]) -> Vec<Trained> {
        let one = |(rows, columns): &(u64, u64)| Trained {
            rows: *rows,
            elements: rows * columns,
            bytes_each: 4,
        };
        of.iter().map(one).collect()
    }

    fn described(held: Vec<((u64, u64), TensorBytes)>) -> Vec<(u64, String)> {
        let classes = classes(held).into_iter();
        classes.map(|class| (class.rank, class.ranks())).collect()
    }

    #[test]
    fn ranks_that_are_dealt_the_same_are_one_class() {
        let alike = parameters(&[(8, 1); 4]);

        assert_eq!(described(dealt(&alike, 2)), [(0, "0-1".to_owned())]);
        // Fewer parameters than ranks: those without any hold less.
        assert_eq!(
            described(dealt(&alike, 1 << 20)),
            [(0, "0-1048575".to_owned())]
        );
    }

    #[test]
    fn more_smaller_tensors_are_a_class_of_their_own() {
        let uneven = parameters(&[(10, 1), (6, 1), (3, 1), (1, 1)]);

        // One tensor of 40 bytes, and three of 40 together.
        let held = dealt(&uneven, 2);
        assert_eq!(described(held), [(0, "0".to_owned()), (1, "1".to_owned())]);
    }

    #[test]
    fn the_first_rank_of_a_cut_holds_the_most_of_everything() {
        let cut_up = parameters(&[(5, 3), (1, 100), (1024, 7), (0, 3)]);
        for ranks in [1, 2, 3, 7, 1024, 1 << 20] {
            let all = format!("0-{}", ranks - 1);
            let all = if ranks == 1 { "0".to_owned() } else { all };
            assert_eq!(described(cut(&cut_up, ranks)), [(0, all)], "{ranks}");
        }
        let held = cut(&cut_up, 2);
        let bytes = held.iter().map(|(ranks, held)| (*ranks, held.iter().sum()));
        let bytes: Vec<((u64, u64), u64)> = bytes.collect();
        assert_eq!(
            bytes,
            [
                ((0, 0), (9 + 100 + 512 * 7) * 4),
                ((1, 1), (6 + 512 * 7) * 4)
            ]
        );
    }

    #[test]
    fn no_more_are_told_apart_than_are_worth_it() {
        // Rank r holds r + 1 tensors, of which the more the smaller.
        let held = |rank: u64| {
            let count = usize::try_from(rank).unwrap() + 1;
            ((rank, rank), vec![1000 / (rank + 1); count])
        };
        let found = classes((0..40).map(held).collect());

        assert_eq!(found.len(), MOST_CLASSES);
        let counted = found.iter().flat_map(|class| &class.stands_for);
        let counted: u64 = counted.map(|(first, last)| last - first + 1).sum();
        assert_eq!(counted, 40);
        assert!(found.iter().all(|class| class.ranks().len() < 80));
    }
}
