//! A search whose batches the caller runs: it names the next one, and is told what happened.
//!
//! Everything follows from what was told, in its order: there is no other state, so a search that is read from a table
//! goes on where it was. See Note [Told from outside].

mod conservative;
mod extrapolation;
mod fields;
mod observation;
mod observations;
mod predicted;
mod recommended;
mod request;
#[cfg(test)]
mod tests;
mod untried;

pub use observation::{Observation, Outcome};
pub use predicted::{Alone, Peaks, Predicted, Prediction};
pub use recommended::Recommended;
pub use request::SearchRequest;

use super::{Goal, MAX_BATCH, Plan, Search, closest_plans, exact_plans, one_step};
use crate::probe::Verdict;
use extrapolation::Extrapolation;
use observations::Observations;

/// So many crashes in a row end a search: it is the program that is at fault, not a batch.
pub const MOST_CRASHES: usize = 3;

/// A search that is told from outside.
#[derive(Debug, Clone)]
pub struct AskTell {
    terms: SearchRequest,
    observations: Vec<Observation>,
}

/// Whether an observation was news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObservationStatus {
    /// It is kept.
    New,
    /// The same one was told before.
    Again,
}

/// What a search says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The batch to run next; `None` when the search has ended.
    pub next_batch: Option<u64>,
    /// What is known so far.
    pub recommendation: Recommended,
    /// Whether it ended because runs crashed, one after the other.
    pub has_crashed: bool,
}

/// Why there is nothing more to try.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ended {
    /// This batch, the next one above the largest, does not fit.
    Refused(u64),
    /// Larger ones are of no use, or not wanted.
    Ceiling { batch: u64, why: &'static str },
    /// The next one would not fit, by the bytes of smaller ones.
    Full { batch: u64, bytes: u64 },
    /// The next one would not fit, by a prediction whose largest batch fits.
    Predicted { batch: u64 },
    /// What is left is a single batch.
    Alone,
    /// Only batches that crashed are left.
    NowhereElse { batch: u64 },
    /// Several runs crashed one after the other.
    Crashes { batches: Vec<u64> },
}

/// The next step.
enum Next {
    Try(u64),
    End(Ended),
}

impl AskTell {
    /// A search that was told nothing yet.
    pub fn new(terms: SearchRequest) -> AskTell {
        AskTell::of(terms, Vec::new())
    }

    /// A search that was told all this, in this order.
    pub fn of(terms: SearchRequest, observations: Vec<Observation>) -> AskTell {
        AskTell {
            terms,
            observations,
        }
    }

    /// What it is for.
    pub fn terms(&self) -> &SearchRequest {
        &self.terms
    }

    /// What it was told.
    pub fn observations(&self) -> &[Observation] {
        &self.observations
    }

    /// Takes in an observation, be it of the batch that was proposed or of another.
    pub fn tell(&mut self, observation: Observation) -> ObservationStatus {
        if self.observations.contains(&observation) {
            return ObservationStatus::Again;
        }
        self.observations.push(observation);
        ObservationStatus::New
    }

    /// What is known, and which batch would tell more. `prediction` is what recordings of the program say.
    pub fn says(&self, prediction: Option<&Prediction>) -> Proposal {
        let terms = &self.terms;
        let predicted = prediction.and_then(Prediction::predicted);
        let seen = Observations::of(terms, &self.observations);
        let mut search = match predicted {
            Some(predicted) => Search::confirming(predicted.maxima, terms.ceiling(), u64::MAX),
            None => Search::doubling(terms.start(), terms.ceiling()),
        };
        search = search.only(Goal::FinishSteadily);
        let useful = seen.verdicts();
        for (batch, verdict) in useful.filter(|(batch, _)| *batch <= terms.ceiling()) {
            search.record(batch, verdict);
        }
        let low = search.largest(Goal::FinishSteadily).batch;
        let plans = self.plans(low, &seen);
        let next = match self.crashes_in_a_row() {
            Some(batches) => Next::End(Ended::Crashes { batches }),
            None => self.next(&seen, &search, low, prediction),
        };
        let (next_batch, ended) = match next {
            Next::Try(batch) => (Some(batch), None),
            Next::End(ended @ Ended::Crashes { .. }) => (None, Some(ended)),
            // A plan's own batch may be one that has not run yet.
            Next::End(ended) => (unconfirmed(&plans, &seen), Some(ended)),
        };
        let fits = |plan: &&Plan| seen.verdict(plan.micro_batch) == Some(Verdict::Fits);
        let plan = plans.iter().find(fits).copied();
        Proposal {
            recommendation: recommended::recommended(
                terms,
                (&seen, prediction),
                &search,
                plan,
                ended.as_ref(),
            ),
            has_crashed: match ended {
                Some(Ended::Crashes { .. }) => true,
                Some(Ended::NowhereElse { .. }) => low == 0,
                Some(_) | None => false,
            },
            next_batch,
        }
    }

    /// The last observations, where they are crashes and enough of them.
    fn crashes_in_a_row(&self) -> Option<Vec<u64>> {
        let observations = self.observations.iter().rev();
        let crashed =
            observations.take_while(|observation| observation.outcome == Outcome::Crashed);
        let mut batches: Vec<u64> = crashed.map(|observation| observation.batch).collect();
        batches.truncate(MOST_CRASHES);
        batches.reverse();
        (batches.len() == MOST_CRASHES).then_some(batches)
    }

    /// The batch that narrows down the largest one, or why there is none.
    fn next(
        &self,
        seen: &Observations,
        search: &Search,
        low: u64,
        prediction: Option<&Prediction>,
    ) -> Next {
        let careful = self.terms.avoid_out_of_memory;
        if let Some(next) = careful
            .then(|| conservative::next(self, seen, low, prediction))
            .flatten()
        {
            return next;
        }
        let predicted = prediction.and_then(Prediction::predicted);
        let ceiling = self.terms.ceiling();
        let high = seen.refused_above(low).filter(|high| *high <= ceiling);
        if let Some(predicted) = predicted {
            let to_record = predicted.record_next.map(|batch| batch.clamp(1, ceiling));
            if let Some(batch) = to_record.filter(|batch| !seen.was_tried(*batch)) {
                return Next::Try(batch);
            }
            let largest = predicted.maxima.max_batch_without_retries;
            if low == largest && low > 0 && low < ceiling {
                return Next::End(Ended::Predicted { batch: low + 1 });
            }
        }
        let Some(proposed) = search.next_batch() else {
            return Next::End(match high {
                Some(high) => Ended::Refused(high),
                None => self.at_ceiling(ceiling),
            });
        };
        let wanted = match (predicted, self.terms.memory_limit) {
            (None, Some(limit)) => match extrapolation::next(seen, low, limit) {
                Some(Extrapolation::Full { bytes }) => {
                    let batch = low + 1;
                    return Next::End(Ended::Full { batch, bytes });
                }
                Some(Extrapolation::Try(batch)) if high.is_none_or(|high| batch < high) => {
                    batch.min(ceiling)
                }
                // The line leads to what is known not to fit, so it is not one.
                Some(Extrapolation::Try(_)) => proposed,
                None => certain(seen, low, limit, proposed, high.is_some()),
            },
            (Some(_), _) | (None, None) => proposed,
        };
        if !seen.was_tried(wanted) {
            return Next::Try(wanted);
        }
        let end = high.unwrap_or_else(|| ceiling.min(wanted.saturating_mul(2)) + 1);
        match untried::untried_near(seen, wanted, low, end) {
            Some(batch) => Next::Try(batch),
            None => Next::End(Ended::NowhereElse { batch: wanted }),
        }
    }

    /// Why batches above the ceiling are not tried.
    fn at_ceiling(&self, batch: u64) -> Ended {
        let why = if self.terms.max_batch == Some(batch) {
            "max_batch"
        } else if batch == MAX_BATCH {
            "nothing"
        } else {
            "target_batch, of which this is each rank's share"
        };
        Ended::Ceiling { batch, why }
    }

    /// The ways to make up the target with micro-batches of at most `largest`, the best first: exact ones, or where none
    /// may do those that stop short of it.
    fn plans(&self, largest: u64, seen: &Observations) -> Vec<Plan> {
        let world_size = self.terms.world_size;
        let Some(target) = self.terms.target_batch else {
            let all = largest.saturating_mul(world_size);
            return one_step(all, world_size, largest).into_iter().collect();
        };
        let mut plans = exact_plans(target, world_size);
        plans.retain(|plan| plan.micro_batch <= largest);
        if plans.iter().any(|plan| may_do(plan, seen)) {
            return plans;
        }
        closest_plans(target, world_size, largest, largest)
    }
}

/// Whether a plan's micro-batch fits, or has not run yet.
fn may_do(plan: &Plan, seen: &Observations) -> bool {
    let batch = plan.micro_batch;
    !seen.was_tried(batch) || seen.verdict(batch) == Some(Verdict::Fits)
}

/// The micro-batch of the best plan that may do, where it has not run yet.
fn unconfirmed(plans: &[Plan], seen: &Observations) -> Option<u64> {
    let best = plans.iter().find(|plan| may_do(plan, seen))?;
    (!seen.was_tried(best.micro_batch)).then_some(best.micro_batch)
}

/// Not farther than a single told peak lets be certain, while no batch was seen not to fit.
fn certain(seen: &Observations, low: u64, limit: u64, proposed: u64, is_bracketed: bool) -> u64 {
    match seen.bytes(low) {
        Some(bytes) if !is_bracketed => {
            let most = extrapolation::in_proportion(low, bytes, limit).max(low + 1);
            proposed.min(most)
        }
        Some(_) | None => proposed,
    }
}
