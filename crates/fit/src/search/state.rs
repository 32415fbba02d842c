//! The search for both maxima.

use std::collections::BTreeMap;

use crate::probe::StepOutcome;

/// No batch above this is proposed, whatever the caller's ceiling.
pub const MAX_BATCH: u64 = 1 << 24;

/// What is looked for by real probes, what decides first.
const REAL_GOALS: [Goal; 3] = [
    Goal::FinishSteadily,
    Goal::Finish,
    Goal::FinishWithoutRetries,
];
/// The first step of a search by real probes alone is the guess divided by this.
const FIRST_STEPS: u64 = 16;

/// What a batch can be good enough for. See Note [Two maxima].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The steps finish.
    Finish,
    /// The steps finish and after the second the allocator never has to give back its cache.
    FinishSteadily,
    /// The steps finish and the allocator never has to give back its cache.
    FinishWithoutRetries,
}

impl Goal {
    /// Whether steps that went so are good enough.
    #[must_use]
    pub fn is_met_by(self, course: StepOutcome) -> bool {
        course
            <= match self {
                Goal::Finish => StepOutcome::WithRetries,
                Goal::FinishSteadily => StepOutcome::Steady,
                Goal::FinishWithoutRetries => StepOutcome::WithoutRetries,
            }
    }
}

/// All maxima as something else found them: a simulation, or an earlier fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PredictedBatches {
    /// See [`Goal::Finish`].
    pub max_batch: u64,
    /// See [`Goal::FinishSteadily`].
    pub max_batch_steady: u64,
    /// See [`Goal::FinishWithoutRetries`].
    pub max_batch_without_retries: u64,
}

impl PredictedBatches {
    /// One number for all of them.
    pub const fn all(batch: u64) -> PredictedBatches {
        PredictedBatches {
            max_batch: batch,
            max_batch_steady: batch,
            max_batch_without_retries: batch,
        }
    }
}

/// What is known about the batch above a maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Above {
    /// The next batch was probed and does not meet the goal: the edge is confirmed on both sides.
    Refused,
    /// The next batch is above the ceiling.
    Ceiling,
    /// The next batch was not probed.
    Unknown,
}

/// One of the maxima.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Largest {
    /// The largest batch that was seen to meet the goal; 0 when none was.
    pub batch: u64,
    /// What is known about the next one.
    pub above: Above,
}

/// How real probes compare with what was predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreement {
    /// Too little was probed to tell.
    Open,
    /// The predicted batch meets the goal and the next one does not.
    Agrees,
    /// It is another batch, even where the budget did not reach to tell which.
    Differs,
}

/// Decides which batch to probe next. Runs nothing, waits for nothing.
#[derive(Debug, Clone)]
pub struct Search {
    pursuits: [Bisection; 3],
    /// The goals that batches are proposed for; the first that needs another probe decides.
    wanted: Vec<Goal>,
    /// How many more probes are proposed.
    probes_left: u64,
    probes: u64,
}

/// The search for the maximum of one goal.
#[derive(Debug, Clone)]
struct Bisection {
    goal: Goal,
    bracket: Bracket,
    /// `None` starts from the maximum of the goal before it.
    start: Option<Start>,
}

impl Search {
    /// A search by at most `budget` real probes that expects `prediction` to be right.
    ///
    /// The recommendation depends on the steady maximum, so that comes first: the predicted
    /// batch and the next one. Where they are as predicted nothing more is proposed for it; otherwise the
    /// real edge is searched from there. Then the same for the other maxima.
    pub fn confirming(prediction: PredictedBatches, ceiling: u64, budget: u64) -> Search {
        let near = |guess| {
            Some(Start {
                guess,
                step: 1,
                is_trusted: true,
            })
        };
        let pursuits = [
            (Goal::FinishSteadily, prediction.max_batch_steady),
            (Goal::Finish, prediction.max_batch),
            (
                Goal::FinishWithoutRetries,
                prediction.max_batch_without_retries,
            ),
        ];
        Search::of(
            pursuits.map(|(goal, guess)| Bisection::new(goal, near(guess), ceiling)),
            budget,
        )
    }

    /// A search by runs of which nothing is known: twice as much each time from `start`, then the middle.
    pub fn doubling(start: u64, ceiling: u64) -> Search {
        let start = start.max(1);
        let start = Start {
            guess: start,
            step: start,
            is_trusted: false,
        };
        let pursuit = |goal| Bisection::new(goal, Some(start), ceiling);
        Search::of(REAL_GOALS.map(pursuit), u64::MAX)
    }

    /// A search by at most `budget` real probes alone.
    pub fn probing(guess: u64, ceiling: u64, budget: u64) -> Search {
        let pursuit = |goal| Bisection::new(goal, Some(fair(guess)), ceiling);
        Search::of(REAL_GOALS.map(pursuit), budget)
    }

    fn of(pursuits: [Bisection; 3], budget: u64) -> Search {
        Search {
            wanted: pursuits.iter().map(|pursuit| pursuit.goal).collect(),
            pursuits,
            probes_left: budget,
            probes: 0,
        }
    }

    /// The same search for one maximum only; the others are reported as far as they happen to be seen.
    #[must_use]
    pub fn only(mut self, goal: Goal) -> Search {
        self.wanted = vec![goal];
        self
    }

    /// The batch to probe, or `None` when there is nothing left to learn or to spend.
    pub fn next_batch(&self) -> Option<u64> {
        if self.probes_left == 0 {
            return None;
        }
        let mut wanted = self.wanted.iter();
        wanted.find_map(|goal| self.pursuit(*goal).bracket.narrow(self.start(*goal)))
    }

    /// Takes in how a probe of `batch` went; it need not be the batch that was proposed.
    ///
    /// A batch that was already known replaces what was known.
    pub fn record(&mut self, batch: u64, course: impl Into<StepOutcome>) {
        let course = course.into();
        self.probes += 1;
        self.probes_left = self.probes_left.saturating_sub(1);
        for pursuit in &mut self.pursuits {
            pursuit
                .bracket
                .record(batch, pursuit.goal.is_met_by(course));
        }
    }

    /// How many probes were taken in.
    pub fn probes(&self) -> u64 {
        self.probes
    }

    /// Whether a batch was seen to meet a goal, or `None` when it was not probed.
    pub fn seen(&self, goal: Goal, batch: u64) -> Option<bool> {
        self.pursuit(goal).bracket.seen(batch)
    }

    /// The maximum of a goal, as far as it is known.
    pub fn largest(&self, goal: Goal) -> Largest {
        let bracket = &self.pursuit(goal).bracket;
        let batch = bracket.largest();
        let above = match bracket.seen(batch + 1) {
            Some(_) => Above::Refused,
            None if batch >= bracket.ceiling() => Above::Ceiling,
            None => Above::Unknown,
        };
        Largest { batch, above }
    }

    /// Whether the batch that the search started from is the edge for a goal.
    pub fn agreement(&self, goal: Goal) -> Agreement {
        let bracket = &self.pursuit(goal).bracket;
        let start = self.start(goal);
        let guess = start.guess.min(bracket.ceiling());
        let Largest { batch, above } = self.largest(goal);
        let is_settled_below = batch < guess && bracket.narrow(start).is_none();
        if batch > guess || bracket.seen(guess) == Some(false) || is_settled_below {
            Agreement::Differs
        } else if batch == guess && above != Above::Unknown {
            Agreement::Agrees
        } else {
            Agreement::Open
        }
    }

    fn pursuit(&self, goal: Goal) -> &Bisection {
        let found = self.pursuits.iter().find(|pursuit| pursuit.goal == goal);
        found.expect("every search pursues all goals")
    }

    fn start(&self, goal: Goal) -> Start {
        let start = self.pursuit(goal).start;
        start.unwrap_or_else(|| fair(self.pursuits[0].bracket.largest()))
    }
}

impl Bisection {
    fn new(goal: Goal, start: Option<Start>, ceiling: u64) -> Bisection {
        Bisection {
            goal,
            bracket: Bracket::new(ceiling.min(MAX_BATCH)),
            start,
        }
    }
}

/// A start that is probably within a few sixteenths of the edge.
fn fair(guess: u64) -> Start {
    Start {
        guess: guess.max(1),
        step: guess / FIRST_STEPS,
        is_trusted: false,
    }
}

/// Where a search begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Start {
    /// The first batch to probe. Zero guesses that nothing meets the goal.
    guess: u64,
    /// The distance to the second; doubles from there.
    step: u64,
    /// Whether the edge is looked for near the guess: even where a bracket is known already, and with the first
    /// step twice.
    is_trusted: bool,
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
struct Bracket {
    /// Batches that were probed, and whether they meet the goal.
    seen: BTreeMap<u64, bool>,
    /// No batch above is ever probed.
    ceiling: u64,
}

impl Bracket {
    fn new(ceiling: u64) -> Bracket {
        Bracket {
            seen: BTreeMap::new(),
            ceiling,
        }
    }

    fn ceiling(&self) -> u64 {
        self.ceiling
    }

    fn record(&mut self, batch: u64, meets: bool) {
        self.seen.insert(batch, meets);
    }

    fn seen(&self, batch: u64) -> Option<bool> {
        self.seen.get(&batch).copied()
    }

    /// The largest batch that was seen to meet the goal, or 0.
    fn largest(&self) -> u64 {
        let meeting = self.seen.iter().filter(|(_, meets)| **meets);
        meeting.map(|(batch, _)| *batch).next_back().unwrap_or(0)
    }

    /// The batch that narrows down the edge, or `None` when it is found: nothing lies between a batch that
    /// meets the goal and one that does not, or that is above the ceiling. See Note [Galloping].
    fn narrow(&self, start: Start) -> Option<u64> {
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
    fn steps_double_away_from_the_guess_until_the_edge_is_between() {
        let rows: [(u64, u64, u64, &[u64]); 9] = [
            // A right guess takes two probes, and one that is one off three.
            (100, 1000, 100, &[100, 101]),
            (8, 1000, 9, &[8, 9, 10]),
            (8, 1000, 6, &[8, 7, 6]),
            (
                100,
                1000,
                110,
                &[100, 101, 102, 104, 108, 116, 112, 110, 111],
            ),
            (100, 1000, 90, &[100, 99, 98, 96, 92, 84, 88, 90, 91]),
            // The ceiling is tried and not passed.
            (3, 5, 9, &[3, 4, 5]),
            // Where nothing fits it ends at one.
            (8, 100, 0, &[8, 7, 6, 4, 2, 1]),
            (7, 100, 0, &[7, 6, 5, 3, 1]),
            (0, 100, 0, &[1]),
        ];
        for (guess, ceiling, largest, expected) in rows {
            assert_eq!(probes(guess, ceiling, largest), expected);
        }
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
