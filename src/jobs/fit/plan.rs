//! Which micro-batch, and how many of them make the batch that is wanted.

use crate::jobs::EngineError;
use crate::model::{Mode, Variant};
use crate::search::{Plan, exact_plans, one_step, short_plans};

use super::inquiry::{Inquiry, MOST_MICRO_STEPS, micro_steps};

/// Most micro-batches above the largest safe one that are tried for an exact target, where none below will do.
const BEYOND: usize = 64;

/// What the user wants of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    /// Samples per optimizer step over all ranks.
    pub(super) target_batch: Option<u64>,
    /// Ranks.
    pub(super) world_size: u64,
}

impl Wish {
    /// The same for a variant: without a strategy it trains alone, unless nobody knows, as of recordings.
    pub(super) fn of(self, variant: &Variant) -> Wish {
        let is_known = !variant.recorded && variant.mode == Mode::Train;
        Wish {
            world_size: if is_known {
                variant.parallel.world_size()
            } else {
                self.world_size
            },
            ..self
        }
    }
}

/// The plan to recommend, whose maxima are settled, or `None` where nothing leaves headroom.
///
/// `accumulation` is what a request without a target asks for.
pub(super) fn choose(
    wish: Wish,
    accumulation: u32,
    inquiry: &mut Inquiry<'_, '_>,
) -> Result<Option<Plan>, EngineError> {
    // Each time around settles another number of micro-steps, of which there are few.
    loop {
        let plan = match wish.target_batch {
            Some(target) => towards(target, wish.world_size, inquiry)?,
            None => largest(u64::from(accumulation), wish.world_size, inquiry)?,
        };
        let needed = micro_steps(match plan {
            Some(plan) => plan.accumulation_steps,
            None => without_a_plan(wish, accumulation),
        });
        if inquiry.is_settled(needed) {
            return Ok(plan);
        }
        inquiry.settle(needed)?;
    }
}

/// The steps that an answer without a plan is about: those that need the least.
pub(super) fn without_a_plan(wish: Wish, accumulation: u32) -> u64 {
    match wish.target_batch {
        Some(_) => 1,
        None => u64::from(accumulation),
    }
}

/// The largest micro-batch with so many steps.
fn largest(
    steps: u64,
    world_size: u64,
    inquiry: &mut Inquiry<'_, '_>,
) -> Result<Option<Plan>, EngineError> {
    let micro_batch = inquiry.largest_safe(micro_steps(steps))?;
    Ok((micro_batch > 0).then(|| Plan {
        micro_batch,
        accumulation_steps: steps,
        global_batch: micro_batch * steps * world_size,
        shortfall: 0,
    }))
}

/// The fewest steps that make `target` exactly; where none do, those that come closest from below.
fn towards(
    target: u64,
    world_size: u64,
    inquiry: &mut Inquiry<'_, '_>,
) -> Result<Option<Plan>, EngineError> {
    let at_once = inquiry.largest_safe(1)?;
    let mut beyond = Vec::new();
    for plan in exact_plans(target, world_size) {
        if plan.micro_batch > at_once || plan.micro_batch > safe_for(&plan, at_once, inquiry)? {
            beyond.push(plan);
        } else if leaves_headroom(&plan, inquiry)? {
            return Ok(Some(plan));
        }
    }
    // Memory is not monotone: what is above the largest safe batch may still leave headroom by itself.
    for plan in beyond.iter().rev().take(BEYOND) {
        if leaves_headroom(plan, inquiry)? {
            return Ok(Some(*plan));
        }
    }
    let accumulating = inquiry.largest_safe(MOST_MICRO_STEPS)?;
    let mut closest = short_plans(target, world_size, accumulating);
    closest.extend(one_step(target, world_size, at_once));
    closest.sort_by_key(|plan| (plan.shortfall, plan.accumulation_steps));
    for plan in closest {
        if leaves_headroom(&plan, inquiry)? {
            return Ok(Some(plan));
        }
    }
    Ok(None)
}

/// The largest micro-batch to be tried for a plan of so many steps.
fn safe_for(plan: &Plan, at_once: u64, inquiry: &mut Inquiry<'_, '_>) -> Result<u64, EngineError> {
    match micro_steps(plan.accumulation_steps) {
        MOST_MICRO_STEPS => inquiry.largest_safe(MOST_MICRO_STEPS),
        // There is one such plan for each of these numbers, so that a search would cost more than to try it.
        _ => Ok(at_once),
    }
}

fn leaves_headroom(plan: &Plan, inquiry: &mut Inquiry<'_, '_>) -> Result<bool, EngineError> {
    inquiry.leaves_headroom(plan.accumulation_steps, plan.micro_batch)
}

/// What to tell whoever gets fewer samples than wanted because more steps than there may be would make them.
pub(super) fn bounded(plan: &Plan, wish: Wish) -> Option<String> {
    let per_rank = wish.target_batch? / wish.world_size;
    let is_exact = plan.micro_batch * plan.accumulation_steps == per_rank;
    // One sample at a time would make any target.
    (!is_exact && per_rank > Variant::MOST_ACCUMULATION).then(|| {
        format!(
            "no micro-batch that fits makes the target exactly in at most {} accumulation steps, the most that batchfit \
             plans",
            Variant::MOST_ACCUMULATION
        )
    })
}

/// What to tell whoever gets many small micro-batches because no larger one divides the target: one nearby that
/// takes fewer steps.
pub(super) fn cheaper(
    plan: &Plan,
    wish: Wish,
    inquiry: &mut Inquiry<'_, '_>,
) -> Result<Option<String>, EngineError> {
    let is_long = micro_steps(plan.accumulation_steps) == MOST_MICRO_STEPS;
    let (Some(target), true) = (wish.target_batch, is_long) else {
        return Ok(None);
    };
    let safe = inquiry.largest_safe(MOST_MICRO_STEPS)?;
    if plan.micro_batch >= safe.div_ceil(2) {
        return Ok(None);
    }
    let others = short_plans(target, wish.world_size, safe).into_iter();
    let mut fewer = others.filter(|other| other.accumulation_steps < plan.accumulation_steps);
    Ok(fewer.next().map(|other| {
        format!(
            "no larger micro-batch that fits divides the target; with {} samples instead of {} it would be {} steps of \
             {} instead of {} of {}",
            other.global_batch,
            plan.global_batch,
            other.accumulation_steps,
            other.micro_batch,
            plan.accumulation_steps,
            plan.micro_batch,
        )
    }))
}
