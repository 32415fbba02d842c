//! Which events of two sequences are the same: a shortest edit script, after E. W. Myers, "An O(ND) difference
//! algorithm and its variations", Algorithmica 1, 1986.

use crate::limits::is_cancelled;

/// Most events without a partner, of both sequences together, before they are taken to be different programs. Time
/// grows with it times the events, memory with its square.
pub(super) const MOST_DIFFERENCES: usize = 4096;

/// Pairs of indices, rising in both, of elements that `same` says are the same; as many as there can be. Or how far
/// the sequences could be followed: the furthest pair of indices that was reached.
pub(super) fn align(
    lengths: [usize; 2],
    same: impl Fn(usize, usize) -> bool,
) -> Result<Vec<(usize, usize)>, (usize, usize)> {
    let [n, m] = lengths;
    let prefix = (0..n.min(m)).take_while(|i| same(*i, *i)).count();
    let rest = n.min(m) - prefix;
    let suffix = (0..rest).take_while(|i| same(n - 1 - i, m - 1 - i)).count();
    let (inner_n, inner_m) = (n - prefix - suffix, m - prefix - suffix);
    let inner = snakes(inner_n, inner_m, |i, j| same(prefix + i, prefix + j));
    let inner = inner.map_err(|(i, j)| (prefix + i, prefix + j))?;
    let mut pairs: Vec<_> = (0..prefix).map(|i| (i, i)).collect();
    pairs.extend(inner.into_iter().map(|(i, j)| (prefix + i, prefix + j)));
    pairs.extend((0..suffix).rev().map(|i| (n - 1 - i, m - 1 - i)));
    Ok(pairs)
}

/// The furthest place in the first sequence on each diagonal, for one number of differences.
struct Frontier {
    /// On diagonals `-differences`, `-differences + 2`, ...
    furthest: Vec<u32>,
    differences: usize,
}

impl Frontier {
    /// The furthest on a diagonal, if it can be reached with so many differences.
    fn on(&self, diagonal: isize) -> Option<usize> {
        let index = diagonal.checked_add_unsigned(self.differences)?;
        let index = usize::try_from(index).ok()?;
        self.furthest.get(index / 2).map(|i| *i as usize)
    }
}

fn snakes(
    n: usize,
    m: usize,
    same: impl Fn(usize, usize) -> bool,
) -> Result<Vec<(usize, usize)>, (usize, usize)> {
    let mut frontiers: Vec<Frontier> = Vec::new();
    let mut reached = (0, 0);
    for differences in 0..=MOST_DIFFERENCES.min(n + m) {
        if is_cancelled() {
            break;
        }
        let mut frontier = Frontier {
            furthest: Vec::with_capacity(differences + 1),
            differences,
        };
        for step in 0..=differences {
            let diagonal = (2 * step).cast_signed() - differences.cast_signed();
            let start = start(frontiers.last(), diagonal, [n, m]);
            let Some(mut i) = start else {
                // Outside of both sequences: never the way to their ends.
                frontier.furthest.push(0);
                continue;
            };
            let mut j = i.wrapping_add_signed(-diagonal);
            while i < n && j < m && same(i, j) {
                i += 1;
                j += 1;
            }
            frontier
                .furthest
                .push(u32::try_from(i).expect("fewer than 2^32 events"));
            if i + j > reached.0 + reached.1 {
                reached = (i, j);
            }
            if i >= n && j >= m {
                frontiers.push(frontier);
                return Ok(walk_back(&frontiers, [n, m]));
            }
        }
        frontiers.push(frontier);
    }
    Err(reached)
}

/// Where a path with one difference more begins on a diagonal.
fn start(before: Option<&Frontier>, diagonal: isize, [n, m]: [usize; 2]) -> Option<usize> {
    let Some(before) = before else {
        return Some(0);
    };
    let i = match from(before, diagonal) {
        Some(Way::Down(i)) => i,
        Some(Way::Right(i)) => i + 1,
        None => return None,
    };
    let j = i.checked_add_signed(-diagonal)?;
    (i <= n && j <= m).then_some(i)
}

/// How a path came to a diagonal, and from where in the first sequence.
enum Way {
    /// It left out an element of the second sequence.
    Down(usize),
    /// It left out one of the first.
    Right(usize),
}

fn from(before: &Frontier, diagonal: isize) -> Option<Way> {
    let above = before.on(diagonal + 1).map(Way::Down);
    let left = before.on(diagonal - 1).map(Way::Right);
    match (above, left) {
        (Some(Way::Down(above)), Some(Way::Right(left))) if left < above => Some(Way::Down(above)),
        (above, None) => above,
        (_, left) => left,
    }
}

fn walk_back(frontiers: &[Frontier], [n, m]: [usize; 2]) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let (mut i, mut j) = (n, m);
    for before in frontiers[..frontiers.len() - 1].iter().rev() {
        let diagonal = i.cast_signed() - j.cast_signed();
        let (to, next) = match from(before, diagonal) {
            Some(Way::Down(above)) => (above, (above, above.wrapping_add_signed(-diagonal - 1))),
            Some(Way::Right(left)) => (left + 1, (left, left.wrapping_add_signed(1 - diagonal))),
            None => break,
        };
        while i > to {
            i -= 1;
            j -= 1;
            pairs.push((i, j));
        }
        (i, j) = next;
    }
    while i > 0 && j > 0 {
        i -= 1;
        j -= 1;
        pairs.push((i, j));
    }
    pairs.reverse();
    pairs
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn common(a: &str, b: &str) -> String {
        let (x, y) = (a.as_bytes(), b.as_bytes());
        let pairs = align([x.len(), y.len()], |i, j| x[i] == y[j]).unwrap();
        assert!(pairs.iter().all(|(i, j)| x[*i] == y[*j]));
        assert!(pairs.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 < w[1].1));
        pairs.iter().map(|(i, _)| char::from(x[*i])).collect()
    }

    #[test]
    fn the_longest_common_subsequence_is_found() {
        for (a, b, expected) in [
            ("", "", ""),
            ("abc", "", ""),
            ("", "abc", ""),
            ("abc", "abc", "abc"),
            ("abcabba", "cbabac", "baba"),
            ("xaby", "ab", "ab"),
            ("ab", "xaby", "ab"),
            ("axbxc", "aybyc", "abc"),
            ("aaaa", "aa", "aa"),
        ] {
            let found = common(a, b);
            assert_eq!(found.len(), expected.len(), "{a} {b}: {found}");
        }
    }

    #[test]
    fn what_has_nothing_in_common_is_given_up_before_all_is_compared() {
        let compared = Cell::new(0_usize);
        let same = |_, _| {
            compared.set(compared.get() + 1);
            false
        };

        align([50_000; 2], same).unwrap_err();

        // Not each of them with each: 2,500 million.
        assert!(compared.get() <= MOST_DIFFERENCES * MOST_DIFFERENCES);
    }

    #[test]
    fn what_differs_too_often_says_how_far_it_agrees() {
        let x: Vec<usize> = (0..5000).collect();
        let y: Vec<usize> = (0..100).chain(9000..14000).collect();

        let reached = align([x.len(), y.len()], |i, j| x[i] == y[j]).unwrap_err();

        assert!(reached.0 >= 100 && reached.1 >= 100);
    }
}
