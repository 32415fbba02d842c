//! What is known about one goal, and which batch would narrow it down.

use std::collections::BTreeMap;

/// Whether batches meet a goal, as far as they were probed.
#[derive(Debug, Clone)]
pub(super) struct Bracket {
    /// Batches that were probed, and whether they meet the goal.
    seen: BTreeMap<u64, bool>,
    /// No batch above is ever probed.
    ceiling: u64,
    /// Where to begin, at most `ceiling`. Zero guesses that nothing meets the goal.
    guess: u64,
    /// The distance from the guess to the second probe; doubles from there.
    first_step: u64,
}

impl Bracket {
    pub(super) fn new(guess: u64, first_step: u64, ceiling: u64) -> Bracket {
        Bracket {
            seen: BTreeMap::new(),
            ceiling,
            guess: guess.min(ceiling),
            first_step: first_step.max(1),
        }
    }

    pub(super) fn ceiling(&self) -> u64 {
        self.ceiling
    }

    pub(super) fn guess(&self) -> u64 {
        self.guess
    }

    pub(super) fn record(&mut self, batch: u64, meets: bool) {
        self.seen.insert(batch, meets);
    }

    pub(super) fn seen(&self, batch: u64) -> Option<bool> {
        self.seen.get(&batch).copied()
    }

    /// The largest batch that was seen to meet the goal, or 0: not counting islands, which lie further
    /// above a refused batch than a scan looks. See Note [Islands].
    pub(super) fn largest(&self) -> u64 {
        let (mut largest, mut is_below_refused) = (0, false);
        for (batch, meets) in &self.seen {
            if !meets {
                is_below_refused = true;
            } else if !is_below_refused || *batch <= largest + window(largest) {
                (largest, is_below_refused) = (*batch, false);
            }
        }
        largest
    }

    /// The batch that narrows down the edge above `largest`, or `None` when the edge is found: the next
    /// batch was seen not to meet the goal, or is above the ceiling. See Note [Galloping].
    pub(super) fn narrow(&self) -> Option<u64> {
        let low = self.largest();
        let refused = self.seen.range(low + 1..).next().map(|(batch, _)| *batch);
        let high = refused.unwrap_or(self.ceiling + 1);
        if high - low <= 1 {
            return None;
        }
        if low < self.guess && self.guess < high {
            return Some(self.guess);
        }
        let middle = low + (high - low) / 2;
        if low >= self.guess {
            let up = low.saturating_add(self.step_from(low));
            return Some(if refused.is_none() {
                up.min(self.ceiling)
            } else {
                up.min(middle)
            });
        }
        let down = high.saturating_sub(self.step_from(high));
        Some(down.max(middle))
    }

    /// Twice the distance between `reached` and the probe before it on the way from the guess.
    fn step_from(&self, reached: u64) -> u64 {
        let before = if reached > self.guess {
            let way = self.seen.range(self.guess..reached);
            way.map(|(batch, _)| reached - batch).next_back()
        } else {
            let way = self.seen.range(reached + 1..=self.guess.max(reached + 1));
            way.map(|(batch, _)| batch - reached).next()
        };
        before.map_or(self.first_step, |distance| {
            self.first_step.max(distance.saturating_mul(2))
        })
    }

    /// Batches above `largest` to look at for the far side of a hole, none seen yet. At most `samples`,
    /// over at least 3% and four batches. See Note [Holes].
    pub(super) fn scan(&self, samples: u64) -> impl Iterator<Item = u64> + '_ {
        let edge = self.largest();
        let window = window(edge).min(self.ceiling.saturating_sub(edge));
        let count = samples.min(window);
        (1..=count)
            .map(move |sample| edge + (sample * window).div_ceil(count))
            .filter(|batch| !self.seen.contains_key(batch))
    }
}

/// How far above an edge a larger batch still counts: 3%, and at least four batches.
fn window(edge: u64) -> u64 {
    edge.saturating_mul(3).div_ceil(100).max(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probes(bracket: &mut Bracket, largest: u64) -> Vec<u64> {
        let mut probes = Vec::new();
        while let Some(batch) = bracket.narrow() {
            bracket.record(batch, batch <= largest);
            probes.push(batch);
        }
        probes
    }

    #[test]
    fn a_right_guess_with_a_step_of_one_takes_two_probes() {
        assert_eq!(probes(&mut Bracket::new(100, 1, 1000), 100), [100, 101]);
    }

    #[test]
    fn steps_double_away_from_the_guess() {
        let up = probes(&mut Bracket::new(100, 1, 1000), 110);
        let down = probes(&mut Bracket::new(100, 1, 1000), 90);

        assert_eq!(up, [100, 101, 103, 107, 115, 111, 109, 110]);
        assert_eq!(down, [100, 99, 97, 93, 85, 89, 91, 90]);
    }

    #[test]
    fn the_ceiling_is_tried_and_not_passed() {
        assert_eq!(probes(&mut Bracket::new(3, 1, 5), 9), [3, 4, 5]);
    }

    #[test]
    fn nothing_fits_ends_at_one() {
        assert_eq!(probes(&mut Bracket::new(8, 1, 100), 0), [8, 7, 5, 2, 1]);
        assert_eq!(probes(&mut Bracket::new(0, 1, 100), 0), [1]);
    }

    #[test]
    fn a_scan_of_few_batches_skips_none() {
        let mut bracket = Bracket::new(312, 1, 1000);
        bracket.record(312, true);
        bracket.record(313, false);

        let scan: Vec<u64> = bracket.scan(24).collect();

        assert_eq!(scan, (314..=322).collect::<Vec<_>>());
    }

    #[test]
    fn a_scan_of_many_batches_is_spread_over_three_percent() {
        let mut bracket = Bracket::new(48_766, 1, 1 << 24);
        bracket.record(48_766, true);

        let scan: Vec<u64> = bracket.scan(24).collect();

        assert_eq!(scan.len(), 24);
        assert_eq!(scan.last(), Some(&(48_766 + 1463)));
    }

    #[test]
    fn an_island_beyond_the_scan_does_not_count() {
        let mut bracket = Bracket::new(125, 1, 1000);
        bracket.record(125, true);
        bracket.record(100, true);
        assert_eq!(bracket.largest(), 125);

        bracket.record(101, false);

        assert_eq!(bracket.largest(), 100);
        assert_eq!(bracket.narrow(), None);
    }
}
