//! Which batches are safe at which lengths. Memory is not monotone in the batch, so that one below the largest safe batch of a length
//! has to be probed there. See Note [Holes] in `search`.

use std::collections::HashMap;

use super::at;
use crate::EngineError;
use crate::fitting::Result;
use crate::fitting::composite::simulated_probe;
use crate::fitting::plan::BatchTarget;
use crate::fitting::variant_search::micro_steps;
use crate::limits::Cancel;
use crate::model::{Length, Lengths, Request, Variant};
use crate::probe::Detail;
use crate::search::{Plan, closest_plans, exact_plans};

/// So many batches below one that is not safe are tried one by one; below them, so many more down to a batch of one.
const NEAR: u64 = 32;
const FAR: u64 = 32;

/// Most plans with a smaller micro-batch that are tried for a target.
const MOST_PLANS: usize = 12;

/// What came of asking whether something is safe at several lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome<T> {
    /// This is.
    Holds(T),
    /// Nothing that was tried is.
    Nothing,
    /// Not known: the card is a real one.
    Unasked,
}

/// Asks simulation about batches of one variant at the lengths of a request.
pub(super) struct Safety<'a> {
    request: &'a Request,
    lengths: &'a Lengths,
    training: Variant,
    cancel: &'a Cancel,
    /// By length, micro-steps and batch.
    known: HashMap<(Length, u32, u64), bool>,
    /// The question about the length that was asked about last: its graph is not read again.
    last: Option<(Length, Request)>,
    /// The length that refused a batch last: most likely the one that refuses the next.
    refused: Option<Length>,
    /// The length that refused the plan that was asked about.
    refused_plan: Option<Length>,
}

impl<'a> Safety<'a> {
    pub(super) fn new(
        request: &'a Request,
        lengths: &'a Lengths,
        training: Variant,
        cancel: &'a Cancel,
    ) -> Safety<'a> {
        Safety {
            request,
            lengths,
            training,
            cancel,
            known: HashMap::new(),
            last: None,
            refused: None,
            refused_plan: None,
        }
    }

    /// The variant that it is about.
    pub(super) fn training(&self) -> &Variant {
        &self.training
    }

    /// The length that refused the plan that was asked about.
    pub(super) fn refused_plan(&self) -> Option<Length> {
        self.refused_plan
    }

    /// Takes in that so many steps of a batch are safe at a length.
    pub(super) fn holds(&mut self, length: Length, steps: u64, batch: u64) {
        self.known
            .insert((length, micro_steps(steps.max(1)), batch), true);
    }

    /// Whether so many steps of a batch leave headroom at a length; `None` where simulation cannot be asked.
    pub(super) fn leaves_headroom(
        &mut self,
        length: Length,
        steps: u64,
        batch: u64,
    ) -> Result<Option<bool>> {
        let run = micro_steps(steps.max(1));
        if let Some(known) = self.known.get(&(length, run, batch)) {
            return Ok(Some(*known));
        }
        if self.cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        let question = match self.last.take() {
            Some((last, question)) if last == length => question,
            Some(_) | None => at(self.request, self.lengths, length)?,
        };
        let variant = Variant {
            accumulation: run,
            ..self.training.clone()
        };
        let detail = Detail::Verdict;
        let simulated = simulated_probe(&question, &variant, batch, detail, self.cancel)?;
        let is_safe = simulated.map(|mut simulated| simulated.is_safe(&variant, batch));
        let leaves = is_safe.transpose()?;
        self.last = Some((length, question));
        if let Some(leaves) = leaves {
            self.known.insert((length, run, batch), leaves);
        }
        Ok(leaves)
    }

    /// Whether so many steps of a batch leave headroom at each of these lengths.
    fn everywhere(&mut self, lengths: &[Length], steps: u64, batch: u64) -> Result<Option<bool>> {
        let likely = self.refused.filter(|refused| lengths.contains(refused));
        for length in likely.iter().chain(lengths) {
            match self.leaves_headroom(*length, steps, batch)? {
                None => return Ok(None),
                Some(true) => {}
                Some(false) => {
                    self.refused = Some(*length);
                    return Ok(Some(false));
                }
            }
        }
        Ok(Some(true))
    }

    /// The first of these that leaves headroom at each of these lengths.
    fn first<T: Copy>(
        &mut self,
        lengths: &[Length],
        candidates: impl Iterator<Item = T>,
        plan: impl Fn(T) -> (u64, u64),
    ) -> Result<Outcome<T>> {
        for candidate in candidates {
            let (steps, batch) = plan(candidate);
            match self.everywhere(lengths, steps, batch)? {
                None => return Ok(Outcome::Unasked),
                Some(true) => return Ok(Outcome::Holds(candidate)),
                Some(false) => {}
            }
        }
        Ok(Outcome::Nothing)
    }

    /// The largest batch of at most `most` of those that are tried which leaves headroom at each of these lengths.
    pub(super) fn largest(
        &mut self,
        lengths: &[Length],
        steps: u64,
        most: u64,
    ) -> Result<Outcome<u64>> {
        self.refused = None;
        let candidates = std::iter::once(most).chain(below(most));
        self.first(lengths, candidates, |batch| (steps, batch))
    }

    /// A plan that leaves headroom at all lengths: this, or one with a smaller micro-batch. With a target it is the one with the fewest
    /// steps that makes it, or else comes closest.
    pub(super) fn plan(&mut self, asked: &Plan, goal: BatchTarget) -> Result<Outcome<Plan>> {
        self.refused = None;
        let lengths: Vec<Length> = self.lengths.each.iter().map(|one| one.length).collect();
        let of_plan = |plan: Plan| (plan.accumulation_steps, plan.micro_batch);
        let as_asked = self.first(&lengths, std::iter::once(*asked), of_plan)?;
        self.refused_plan = self.refused;
        if as_asked != Outcome::Nothing {
            return Ok(as_asked);
        }
        let smaller = |plan: &Plan| plan.micro_batch < asked.micro_batch;
        let Some(target) = goal.target_batch else {
            let plans = below(asked.micro_batch).map(|micro_batch| asked.of_size(micro_batch));
            return self.first(&lengths, plans, of_plan);
        };
        let exact = exact_plans(target, goal.world_size).into_iter();
        let exact = self.first(&lengths, exact.filter(smaller).take(MOST_PLANS), of_plan)?;
        if exact != Outcome::Nothing {
            return Ok(exact);
        }
        let mut most = asked.micro_batch;
        while most > 1 {
            // Halves, because plans have micro-batches of at least half of what is safe.
            let closest = closest_plans(target, goal.world_size, most - 1, most - 1);
            let closest = closest.into_iter().take(MOST_PLANS);
            let found = self.first(&lengths, closest, of_plan)?;
            if found != Outcome::Nothing {
                return Ok(found);
            }
            most /= 2;
        }
        Ok(Outcome::Nothing)
    }
}

/// Batches below one, down to a batch of one: the nearest one by one, then ever so many apart.
fn below(batch: u64) -> impl Iterator<Item = u64> {
    let near = (1..=NEAR).map(move |less| batch.saturating_sub(less));
    let apart = (batch / FAR).max(1);
    let far = (1..=2 * FAR).map(move |times| batch.saturating_sub(NEAR + times * apart));
    let above_one = near.chain(far).take_while(|batch| *batch > 1);
    above_one.chain((batch > 1).then_some(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_batches_are_few_fall_and_end_with_one() {
        for batch in [2, 3, 33, 34, 95, 150, 100_000] {
            let all: Vec<u64> = below(batch).collect();

            assert_eq!(all[0], batch - 1);
            assert_eq!(all.last(), Some(&1));
            assert!(all.windows(2).all(|pair| pair[0] > pair[1]), "{all:?}");
            assert!(all.len() <= 96, "{}", all.len());
        }
        assert_eq!(below(1).count(), 0);
    }
}
