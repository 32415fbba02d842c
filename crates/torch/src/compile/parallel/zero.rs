//! `ZeroRedundancyOptimizer`: each rank has the optimizer's state of a part of the parameters.

use std::collections::BTreeSet;

/// The parameters of each rank, by their places, in the order in which its optimizer goes through them: largest first, each went to the
/// rank that had the fewest elements (`_partition_parameters`, `torch/distributed/optim/zero_redundancy_optimizer.py`). Ranks
/// behind the last that got one are left out.
pub(in crate::compile) fn partition(elements: &[u64], ranks: u64) -> Vec<Vec<usize>> {
    let mut largest_first: Vec<usize> = (0..elements.len()).collect();
    crate::order::by_key(&mut largest_first, |index| {
        std::cmp::Reverse(elements[*index])
    });
    let used = ranks.min(elements.len() as u64).max(1);
    let mut totals: BTreeSet<(u64, u64)> = (0..used).map(|rank| (0, rank)).collect();
    let mut parts: Vec<Vec<usize>> = (0..used).map(|_| Vec::new()).collect();
    for index in largest_first {
        let Some((total, least)) = totals.pop_first() else {
            break;
        };
        let rank = usize::try_from(least).expect("fewer ranks than parameters");
        parts[rank].push(index);
        totals.insert((total.saturating_add(elements[index]), least));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_parameters_are_dealt_first() {
        let elements = [10, 1, 10, 1, 8];
        assert_eq!(partition(&elements, 2), [vec![0, 4], vec![2, 1, 3]]);
        assert_eq!(partition(&elements, 1), [[0, 2, 4, 1, 3]]);
        assert_eq!(partition(&elements, 8), [[0], [2], [4], [1], [3]]);
        assert_eq!(partition(&[], 2), [[0; 0]]);
    }
}
