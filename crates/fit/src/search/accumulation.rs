//! How many micro-steps make up the batch that the user wants.

use std::collections::BTreeSet;

use super::state::MAX_BATCH;
use crate::model::Variant;

/// A way to make up a global batch: `micro_batch * accumulation_steps * world_size` samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Samples per micro-step on one GPU.
    pub micro_batch: u64,
    /// Micro-steps per optimizer step.
    pub accumulation_steps: u64,
    /// Samples per optimizer step over all ranks.
    pub global_batch: u64,
    /// What `global_batch` lacks of the target.
    pub shortfall: u64,
}

impl Plan {
    /// So many steps of this micro-batch on each rank, without a target.
    pub fn free(micro_batch: u64, steps: u64, world_size: u64) -> Plan {
        Plan {
            micro_batch,
            accumulation_steps: steps,
            global_batch: micro_batch * steps * world_size,
            shortfall: 0,
        }
    }

    /// As many steps of another micro-batch.
    #[must_use]
    pub fn of_size(self, micro_batch: u64) -> Plan {
        let of_one = self.global_batch / self.micro_batch.max(1);
        Plan {
            micro_batch,
            global_batch: of_one * micro_batch,
            ..self
        }
    }
}

/// Most plans that [`short_plans`] gives.
const SHORT_PLANS: usize = 16;

/// The plans that make `target` samples over `world_size` ranks, the fewest steps first.
///
/// Exact, but for what the target leaves over when the ranks share it evenly. One for each divisor of a rank's
/// share that takes no more steps than there may be, so the last of a small target has a micro-batch of one. Which of them fit is for the caller to find out: memory is not
/// monotone, and a plan of several steps also holds gradients through the later forwards. Empty when the target
/// leaves a rank without a sample.
pub fn exact_plans(target: u64, world_size: u64) -> Vec<Plan> {
    let world_size = world_size.max(1);
    let per_rank = target / world_size;
    let small = (1..=per_rank.isqrt()).filter(|small| per_rank.is_multiple_of(*small));
    let divisors: BTreeSet<u64> = small.flat_map(|small| [small, per_rank / small]).collect();
    let is_possible =
        |micro: &u64| *micro <= MAX_BATCH && per_rank / micro <= Variant::MOST_ACCUMULATION;
    let possible = divisors.into_iter().filter(is_possible);
    possible
        .rev()
        .map(|micro_batch| plan(target, world_size, micro_batch))
        .collect()
}

/// As much of `target` as one step of at most `safe_max` makes, or `None` where that is nothing.
pub fn one_step(target: u64, world_size: u64, safe_max: u64) -> Option<Plan> {
    let world_size = world_size.max(1);
    let micro_batch = safe_max.min(target / world_size);
    let global_batch = micro_batch * world_size;
    (micro_batch > 0).then_some(Plan {
        micro_batch,
        accumulation_steps: 1,
        global_batch,
        shortfall: target - global_batch,
    })
}

/// The plans that come closest to `target` from below with a micro-batch of at most `safe_max`, the closest
/// first and of those the one with the fewest steps: for a target that no divisor makes exactly.
///
/// A micro-batch is at least half of `safe_max`: more and smaller steps would trade too much speed for a few
/// samples. One step may be as small as the target asks. Empty when nothing fits or the target leaves a rank
/// without a sample.
pub fn short_plans(target: u64, world_size: u64, safe_max: u64) -> Vec<Plan> {
    let world_size = world_size.max(1);
    let per_rank = target / world_size;
    if per_rank == 0 || safe_max == 0 {
        return Vec::new();
    }
    let largest = safe_max.min(per_rank);
    let smallest = safe_max.div_ceil(2).min(largest);
    let mut short: Vec<Plan> = Vec::new();
    for micro_batch in (smallest..=largest).rev() {
        let plan = plan(target, world_size, micro_batch);
        // Behind those that are as close: they have larger micro-batches, so no more steps.
        let at = short.partition_point(|other| other.shortfall <= plan.shortfall);
        if at < SHORT_PLANS {
            short.truncate(SHORT_PLANS - 1);
            short.insert(at, plan);
        }
    }
    short
}

/// The plans that come closest to `target` from below, the closest first and of those the one with the fewest steps: those of [`short_plans`] with
/// micro-batches of at most `accumulating`, and one step of at most `at_once`.
pub fn closest_plans(target: u64, world_size: u64, accumulating: u64, at_once: u64) -> Vec<Plan> {
    let mut closest = short_plans(target, world_size, accumulating);
    closest.extend(one_step(target, world_size, at_once));
    crate::order::by_key(&mut closest, |plan| {
        (plan.shortfall, plan.accumulation_steps)
    });
    closest
}

/// As many whole steps of `micro_batch` as the target has room for and there may be.
fn plan(target: u64, world_size: u64, micro_batch: u64) -> Plan {
    let accumulation_steps = (target / world_size / micro_batch).min(Variant::MOST_ACCUMULATION);
    let global_batch = micro_batch * accumulation_steps * world_size;
    Plan {
        micro_batch,
        accumulation_steps,
        global_batch,
        shortfall: target - global_batch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(target: u64, world_size: u64) -> Vec<(u64, u64, u64)> {
        let plans = exact_plans(target, world_size).into_iter();
        let numbers = plans.map(|plan| (plan.micro_batch, plan.accumulation_steps, plan.shortfall));
        numbers.collect()
    }

    fn closest(target: u64, world_size: u64, safe_max: u64) -> (u64, u64, u64) {
        let plan = short_plans(target, world_size, safe_max)[0];
        (plan.micro_batch, plan.accumulation_steps, plan.shortfall)
    }

    #[test]
    fn every_divisor_is_an_exact_plan_and_the_fewest_steps_come_first() {
        let divisors = [12, 6, 4, 3, 2, 1].map(|micro| (micro, 12 / micro, 0));
        assert_eq!(exact(12, 1), divisors);
        assert_eq!(exact(9, 1), [(9, 1, 0), (3, 3, 0), (1, 9, 0)]);
        // What the ranks cannot share is the shortfall.
        assert_eq!(exact(11, 2), [(5, 1, 1), (1, 5, 1)]);
    }

    #[test]
    fn the_closest_below_has_at_least_half_of_the_maximum() {
        assert_eq!(closest(1009, 1, 100), (84, 12, 1));
        assert_eq!(closest(1001, 2, 500), (500, 1, 1));
        assert_eq!(closest(24, 1, 1000), (24, 1, 0));
    }

    #[test]
    fn one_step_makes_what_it_can() {
        let made = |target, world_size, safe_max| {
            one_step(target, world_size, safe_max).map(|plan| (plan.micro_batch, plan.shortfall))
        };

        assert_eq!(made(1000, 4, 100), Some((100, 600)));
        assert_eq!(made(1000, 4, 300), Some((250, 0)));
        assert_eq!(made(3, 4, 300), None);
        assert_eq!(made(1000, 4, 0), None);
    }

    #[test]
    fn nothing_fits_or_no_sample_for_a_rank_is_no_plan() {
        assert!(short_plans(64, 1, 0).is_empty());
        assert!(short_plans(7, 8, 100).is_empty());
        assert!(exact_plans(7, 8).is_empty());
        // The largest target is divided at once.
        let plans = exact_plans(1 << 40, 1);
        assert_eq!((plans.len(), plans[0].micro_batch), (1, MAX_BATCH));
    }

    #[test]
    fn no_plan_takes_more_steps_than_there_may_be() {
        assert_eq!(exact(65_536, 1).last(), Some(&(1, 65_536, 0)));
        // A prime: only one sample at a time would make it.
        assert_eq!(exact(65_537, 1), [(65_537, 1, 0)]);
        assert_eq!(closest(65_537, 1, 100), (64, 1024, 1));
        // More than there is: as much as can be made.
        assert_eq!(closest(1 << 40, 2, 10), (10, 65_536, (1 << 40) - 1_310_720));
        assert_eq!(exact(1 << 40, 2).len(), 2);
    }
}
