//! What is known about one goal, and which batch would narrow it down.

use std::collections::BTreeMap;

/// Where a search begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    /// The first batch to probe. Zero guesses that nothing meets the goal.
    pub(super) guess: u64,
    /// The distance to the second; doubles from there.
    pub(super) step: u64,
    /// Whether the edge is looked for near the guess: even where a bracket is known already, and with the first
    /// step twice.
    pub(super) is_trusted: bool,
}

impl Start {
    /// The distances of a gallop. See Note [Galloping].
    fn steps(self) -> impl Iterator<Item = u64> {
        let first = self.step.max(1);
        let doubled = std::iter::successors(Some(first), |step| Some(step.saturating_mul(2)));
        self.is_trusted.then_some(first).into_iter().chain(doubled)
    }
}

/// Whether batches meet a goal, as far as they were probed.
#[derive(Debug, Clone)]
pub(super) struct Bracket {
    /// Batches that were probed, and whether they meet the goal.
    seen: BTreeMap<u64, bool>,
    /// No batch above is ever probed.
    ceiling: u64,
}

impl Bracket {
    pub(super) fn new(ceiling: u64) -> Bracket {
        Bracket {
            seen: BTreeMap::new(),
            ceiling,
        }
    }

    pub(super) fn ceiling(&self) -> u64 {
        self.ceiling
    }

    pub(super) fn record(&mut self, batch: u64, meets: bool) {
        self.seen.insert(batch, meets);
    }

    pub(super) fn seen(&self, batch: u64) -> Option<bool> {
        self.seen.get(&batch).copied()
    }

    /// The largest batch that was seen to meet the goal, or 0.
    pub(super) fn largest(&self) -> u64 {
        let meeting = self.seen.iter().filter(|(_, meets)| **meets);
        meeting.map(|(batch, _)| *batch).next_back().unwrap_or(0)
    }

    /// The batch that narrows down the edge, or `None` when it is found: nothing lies between a batch that
    /// meets the goal and one that does not, or that is above the ceiling. See Note [Galloping].
    pub(super) fn narrow(&self, start: Start) -> Option<u64> {
        let low = self.largest();
        let refused = self.seen.range(low + 1..).next().map(|(batch, _)| *batch);
        match refused {
            None if low == self.ceiling => None,
            None => self.upward(start).find(|batch| *batch > low),
            Some(high) if high - low == 1 => None,
            Some(high) => {
                let middle = low + (high - low) / 2;
                let inside =
                    |batch: &u64| (low + 1..high).contains(batch) && !self.seen.contains_key(batch);
                Some(if low == 0 {
                    self.downward(start).find(inside).unwrap_or(middle)
                } else if !start.is_trusted {
                    middle
                } else if start.guess <= low {
                    self.upward(start)
                        .find(inside)
                        .map_or(middle, |up| up.min(middle))
                } else {
                    self.downward(start)
                        .find(inside)
                        .map_or(middle, |down| down.max(middle))
                })
            }
        }
    }

    /// The batches of a gallop up to the ceiling, which comes last.
    fn upward(&self, start: Start) -> impl Iterator<Item = u64> + '_ {
        let mut steps = start.steps();
        let first = start.guess.clamp(1, self.ceiling);
        std::iter::successors(Some(first), move |batch| {
            let next = batch.saturating_add(steps.next()?).min(self.ceiling);
            (*batch < self.ceiling).then_some(next)
        })
    }

    /// The batches of a gallop down to one.
    fn downward(&self, start: Start) -> impl Iterator<Item = u64> + '_ {
        let mut steps = start.steps();
        let first = start.guess.clamp(1, self.ceiling);
        std::iter::successors(Some(first), move |batch| {
            batch.checked_sub(steps.next()?).filter(|next| *next > 0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probes(guess: u64, ceiling: u64, largest: u64) -> Vec<u64> {
        let mut bracket = Bracket::new(ceiling);
        let start = Start {
            guess,
            step: 1,
            is_trusted: true,
        };
        let mut probes = Vec::new();
        while let Some(batch) = bracket.narrow(start) {
            bracket.record(batch, batch <= largest);
            probes.push(batch);
        }
        probes
    }

    #[test]
    fn a_right_guess_with_a_step_of_one_takes_two_probes() {
        assert_eq!(probes(100, 1000, 100), [100, 101]);
    }

    #[test]
    fn a_guess_that_is_one_off_takes_three_probes() {
        assert_eq!(probes(8, 1000, 9), [8, 9, 10]);
        assert_eq!(probes(8, 1000, 6), [8, 7, 6]);
    }

    #[test]
    fn steps_double_away_from_the_guess() {
        let up = probes(100, 1000, 110);
        let down = probes(100, 1000, 90);

        assert_eq!(up, [100, 101, 102, 104, 108, 116, 112, 110, 111]);
        assert_eq!(down, [100, 99, 98, 96, 92, 84, 88, 90, 91]);
    }

    #[test]
    fn the_ceiling_is_tried_and_not_passed() {
        assert_eq!(probes(3, 5, 9), [3, 4, 5]);
    }

    #[test]
    fn nothing_fits_ends_at_one() {
        assert_eq!(probes(8, 100, 0), [8, 7, 6, 4, 2, 1]);
        assert_eq!(probes(7, 100, 0), [7, 6, 5, 3, 1]);
        assert_eq!(probes(0, 100, 0), [1]);
    }

    #[test]
    fn an_edge_is_between_the_largest_success_and_the_failure_above_it() {
        let mut bracket = Bracket::new(1000);
        for (batch, meets) in [(100, true), (101, false), (125, true), (126, false)] {
            bracket.record(batch, meets);
        }

        assert_eq!(bracket.largest(), 125);
        assert_eq!(
            bracket.narrow(Start {
                guess: 100,
                step: 1,
                is_trusted: false,
            }),
            None
        );
    }
}
