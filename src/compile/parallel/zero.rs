//! `ZeroRedundancyOptimizer`: each rank has the optimizer's state of a part of the parameters.

use std::collections::BTreeSet;

/// The parameters of a rank, by their places, in the order in which its optimizer goes through them: largest first, each went to the
/// rank that had the fewest elements (`_partition_parameters`, `torch/distributed/optim/zero_redundancy_optimizer.py`).
pub(in crate::compile) fn partition(elements: &[u64], ranks: u64, rank: u64) -> Vec<usize> {
    let mut largest_first: Vec<usize> = (0..elements.len()).collect();
    largest_first.sort_by_key(|index| std::cmp::Reverse(elements[*index]));
    let mut totals: BTreeSet<(u64, u64)> = (0..ranks).map(|rank| (0, rank)).collect();
    let mut mine = Vec::new();
    for index in largest_first {
        let Some((total, least)) = totals.pop_first() else {
            break;
        };
        if least == rank {
            mine.push(index);
        }
        totals.insert((total.saturating_add(elements[index]), least));
    }
    mine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_parameters_are_dealt_first() {
        let elements = [10, 1, 10, 1, 8];
        assert_eq!(partition(&elements, 2, 0), [0, 4]);
        assert_eq!(partition(&elements, 2, 1), [2, 1, 3]);
        assert_eq!(partition(&elements, 1, 0), [0, 2, 4, 1, 3]);
        assert_eq!(partition(&elements, 8, 7), [0; 0]);
    }
}
