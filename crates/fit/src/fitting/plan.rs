//! Which micro-batch, and how many of them make the batch that is wanted.

use crate::Exactly;
use crate::fitting::Result;
use crate::model::{Mode, Objective, Request, Variant};
use crate::search::headroom::least_for_unconfirmed;
use crate::search::{
    Knee, Plan, SamplingDensity, closest_plans, exact_plans, knee, short_plans, smallest_enough,
};
use crate::units::{Bytes, Share};

use super::variant_search::{MOST_MICRO_STEPS, VariantSearch, micro_steps};

/// Most micro-batches above the largest safe one that are tried for an exact target, where none below will do.
const BEYOND: usize = 64;

/// What the user wants of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BatchTarget {
    /// Samples per optimizer step over all ranks.
    pub(super) target_batch: Option<u64>,
    /// Ranks.
    pub(super) world_size: u64,
    /// Which of the batches that are safe.
    pub(super) objective: Objective,
}

/// A plan, and why it is this one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Chosen {
    pub(super) plan: Plan,
    /// What was passed over for it.
    pub(super) instead_of: Option<Larger>,
    /// How the target is made, where the plan makes less.
    pub(super) exactly: Option<Exactly>,
}

impl From<Plan> for Chosen {
    fn from(plan: Plan) -> Chosen {
        Chosen {
            plan,
            instead_of: None,
            exactly: None,
        }
    }
}

/// How many times as long a sample may take for a target to be made exactly, rather than one with a few samples fewer; where times of
/// steps are unknown, how many times as many steps.
const MUCH_SLOWER: f64 = 1.25;
const MANY_MORE_STEPS: u64 = 8;

/// What of a target may be missing for that, at most: one sample in so many.
const HARDLY_FEWER: u64 = 16;

/// A plan with a larger micro-batch that is hardly faster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Larger {
    micro_batch: u64,
    /// The share of the best speed that the chosen plan has.
    share: f64,
}

impl Larger {
    /// What keeps the batch from being larger.
    pub(super) fn limits(&self) -> String {
        let faster = self.faster();
        format!("the objective: no larger batch is more than {faster} % faster")
    }

    /// The batch, and why it is not the answer.
    pub(super) fn explained(&self) -> (u64, String) {
        let (batch, faster) = (self.micro_batch, self.faster());
        let text = format!(
            "batches up to {batch} leave enough free, but none is more than {faster} % faster"
        );
        (batch, text)
    }

    /// By how much a larger batch is faster at most, in percent.
    fn faster(&self) -> f64 {
        ((1.0 / self.share - 1.0) * 100.0).ceil().max(0.0)
    }

    /// What to tell of it.
    pub(super) fn note(&self, plan: &Plan) -> String {
        format!(
            "micro-batches up to {} leave headroom too; {} has {:.0} % of the best speed among them",
            self.micro_batch,
            plan.micro_batch,
            (100.0 * self.share).floor()
        )
    }
}

impl BatchTarget {
    /// Of a request's variant: without a strategy it trains alone, unless it is unknown, as of recordings.
    pub(super) fn of(request: &Request, variant: &Variant) -> BatchTarget {
        let is_known = !variant.recorded && variant.mode == Mode::Train;
        BatchTarget {
            target_batch: request.target_batch,
            world_size: if is_known {
                variant.parallel.world_size()
            } else {
                request.world_size
            },
            objective: request.objective,
        }
    }
}

/// The plan to recommend, whose maxima are settled, or `None` where nothing leaves headroom.
///
/// `accumulation` is what a request without a target asks for.
pub(super) fn choose(
    goal: BatchTarget,
    accumulation: u32,
    search: &mut VariantSearch<'_, '_>,
) -> Result<Option<Chosen>> {
    // Each time around settles another number of micro-steps, of which there are few.
    loop {
        let plan = match goal.target_batch {
            Some(target) => towards(target, goal.world_size, search)?,
            None => largest(u64::from(accumulation), goal.world_size, search)?,
        };
        let needed = micro_steps(match plan {
            Some(plan) => plan.accumulation_steps,
            None => without_a_plan(goal, accumulation),
        });
        if !search.is_settled(needed) {
            search.settle(needed)?;
            continue;
        }
        let Some(plan) = plan else {
            return Ok(None);
        };
        let chosen = match goal.objective {
            Objective::LargestBatch => None,
            Objective::Throughput => smaller(&plan, goal, search)?,
        };
        let chosen = match chosen {
            Some(chosen) => chosen,
            None => faster(plan, goal, search)?,
        };
        let needed = micro_steps(chosen.plan.accumulation_steps);
        if search.is_settled(needed) {
            return Ok(Some(chosen));
        }
        search.settle(needed)?;
    }
}

/// The plan to recommend where one other key alone asks for more headroom: at most a twentieth smaller than `chosen`. What it leaves
/// for that is its headroom from now on. `None` where no key does, or a smaller plan is no help.
pub(super) fn for_unconfirmed(
    chosen: &Chosen,
    goal: BatchTarget,
    accumulation: u32,
    search: &mut VariantSearch<'_, '_>,
) -> Result<Option<Chosen>> {
    let (confirmed, plan) = (search.headroom(), chosen.plan);
    let Some(all) = confirmed.with_unconfirmed(Share::ALL, search.limit()) else {
        return Ok(None);
    };
    search.keep(all);
    let least = least_for_unconfirmed(plan.micro_batch);
    let is_near = |other: &Chosen| {
        other.plan.micro_batch >= least
            && other.plan.global_batch >= least_for_unconfirmed(plan.global_batch)
    };
    let fewer = choose(goal, accumulation, search)?.filter(is_near);
    if fewer.is_some_and(|fewer| fewer.plan != plan) {
        return Ok(fewer);
    }
    search.keep(confirmed.clone());
    if fewer.is_some() {
        return Ok(None);
    }
    let is_free = goal.target_batch.is_none() && goal.objective == Objective::LargestBatch;
    let steps = plan.accumulation_steps;
    for micro_batch in (least..plan.micro_batch).filter(|_| is_free).take(BEYOND) {
        // Memory is not monotone.
        if !search.leaves_headroom(steps, micro_batch)? {
            continue;
        }
        let limit = search.limit();
        let probed = search.deciding(micro_steps(steps)).probe(micro_batch)?;
        let reserved = Bytes(probed.report.peak_reserved_bytes);
        search.keep(confirmed.beside(reserved, limit));
        let plan = Plan::free(micro_batch, steps, goal.world_size);
        return Ok(Some(Chosen { plan, ..*chosen }));
    }
    Ok(None)
}

/// A plan with a smaller micro-batch that is nearly as fast as the fastest; `None` where there is none or speeds are not known.
fn smaller(
    plan: &Plan,
    goal: BatchTarget,
    search: &mut VariantSearch<'_, '_>,
) -> Result<Option<Chosen>> {
    let look = search.look();
    let instead = |smaller, Knee { share, .. }| Chosen {
        instead_of: Some(Larger {
            micro_batch: plan.micro_batch,
            share,
        }),
        ..Chosen::from(smaller)
    };
    let Some(target) = goal.target_batch else {
        let steps = plan.accumulation_steps;
        let found = knee(plan.micro_batch, look, |batch| search.speed(steps, batch))?;
        let Some(found) = found else {
            return Ok(None);
        };
        // Memory is not monotone.
        for micro_batch in (found.batch..plan.micro_batch).take(BEYOND) {
            if search.leaves_headroom(steps, micro_batch)? {
                let plan = Plan::free(micro_batch, steps, goal.world_size);
                return Ok(Some(instead(plan, found)));
            }
        }
        return Ok(None);
    };
    let mut plans = exact_plans(target, goal.world_size);
    plans
        .retain(|other| other.micro_batch <= plan.micro_batch && other.shortfall == plan.shortfall);
    plans.reverse();
    let batches: Vec<u64> = plans.iter().map(|plan| plan.micro_batch).collect();
    let steps = |batch: u64| target / goal.world_size / batch;
    let found = smallest_enough(&batches, look, |batch| search.speed(steps(batch), batch))?;
    let Some(found) = found else {
        return Ok(None);
    };
    for other in plans {
        let is_smaller = (found.batch..plan.micro_batch).contains(&other.micro_batch);
        if is_smaller && leaves_headroom(&other, search)? {
            return Ok(Some(instead(other, found)));
        }
    }
    Ok(None)
}

/// Fewer samples are not divided.
const FEW: u64 = 16;

/// A much smaller micro-batch that is nearly as fast as the largest, although it was not asked for. A real GPU is not asked: each speed is a run.
pub(super) fn nearly_as_fast(
    plan: &Plan,
    wish: BatchTarget,
    search: &mut VariantSearch<'_, '_>,
) -> Result<Option<String>> {
    let (look, steps) = (search.look(), plan.accumulation_steps);
    let is_open = wish.objective == Objective::LargestBatch && wish.target_batch.is_none();
    if plan.micro_batch < FEW || !is_open || !matches!(look, SamplingDensity::Closely) {
        return Ok(None);
    }
    let found = knee(plan.micro_batch, look, |batch| search.speed(steps, batch))?;
    let much_smaller = found.filter(|found| found.batch <= plan.micro_batch / 2);
    Ok(much_smaller.map(|Knee { batch, share }| {
        format!(
            "a micro-batch of {batch} is nearly as fast, {:.0} % of the best speed: `--objective throughput`",
            (100.0 * share).floor()
        )
    }))
}

/// The steps that an answer without a plan is about: those that need the least.
pub(super) fn without_a_plan(goal: BatchTarget, accumulation: u32) -> u64 {
    match goal.target_batch {
        Some(_) => 1,
        None => u64::from(accumulation),
    }
}

/// The largest micro-batch with so many steps.
fn largest(
    steps: u64,
    world_size: u64,
    search: &mut VariantSearch<'_, '_>,
) -> Result<Option<Plan>> {
    let micro_batch = search.largest_safe(micro_steps(steps))?;
    Ok((micro_batch > 0).then(|| Plan::free(micro_batch, steps, world_size)))
}

/// The fewest steps that make `target` exactly; where none do, those that come closest from below.
fn towards(
    target: u64,
    world_size: u64,
    search: &mut VariantSearch<'_, '_>,
) -> Result<Option<Plan>> {
    let at_once = search.largest_safe(1)?;
    let mut beyond = Vec::new();
    for plan in exact_plans(target, world_size) {
        if plan.micro_batch > at_once || plan.micro_batch > safe_for(&plan, at_once, search)? {
            beyond.push(plan);
        } else if leaves_headroom(&plan, search)? {
            return Ok(Some(plan));
        }
    }
    // Memory is not monotone: what is above the largest safe batch may still leave headroom by itself.
    for plan in beyond.iter().rev().take(BEYOND) {
        if leaves_headroom(plan, search)? {
            return Ok(Some(*plan));
        }
    }
    let accumulating = search.largest_safe(MOST_MICRO_STEPS)?;
    for plan in closest_plans(target, world_size, accumulating, at_once) {
        if leaves_headroom(&plan, search)? {
            return Ok(Some(plan));
        }
    }
    Ok(None)
}

/// The largest micro-batch to be tried for a plan of so many steps.
fn safe_for(plan: &Plan, at_once: u64, search: &mut VariantSearch<'_, '_>) -> Result<u64> {
    match micro_steps(plan.accumulation_steps) {
        MOST_MICRO_STEPS => search.largest_safe(MOST_MICRO_STEPS),
        // There is one such plan for each of these numbers, so that a search would cost more than to try it.
        _ => Ok(at_once),
    }
}

fn leaves_headroom(plan: &Plan, search: &mut VariantSearch<'_, '_>) -> Result<bool> {
    search.leaves_headroom(plan.accumulation_steps, plan.micro_batch)
}

/// The note where there are fewer samples than wanted because more steps than there may be would make them.
pub(super) fn shortfall_note(plan: &Plan, goal: BatchTarget) -> Option<String> {
    let per_rank = goal.target_batch? / goal.world_size;
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

/// The plan, or the nearest one below the target where that is much faster: a prime number of samples is made of single ones alone.
fn faster(plan: Plan, goal: BatchTarget, search: &mut VariantSearch<'_, '_>) -> Result<Chosen> {
    let as_it_is = Chosen::from(plan);
    let is_long = micro_steps(plan.accumulation_steps) == MOST_MICRO_STEPS;
    let (Some(target), true) = (goal.target_batch, is_long) else {
        return Ok(as_it_is);
    };
    let safe = search.largest_safe(MOST_MICRO_STEPS)?;
    if plan.micro_batch >= safe.div_ceil(2) {
        return Ok(as_it_is);
    }
    for other in short_plans(target, goal.world_size, safe) {
        let missing = plan.global_batch.saturating_sub(other.global_batch);
        let is_near = missing <= target / HARDLY_FEWER;
        if !is_near || !leaves_headroom(&other, search)? {
            continue;
        }
        let slow = search.speed(plan.accumulation_steps, plan.micro_batch)?;
        let fast = search.speed(other.accumulation_steps, other.micro_batch)?;
        let times_slower = fast.zip(slow).map(|(fast, slow)| fast / slow);
        let is_worth_it = times_slower.map_or(
            plan.accumulation_steps >= MANY_MORE_STEPS * other.accumulation_steps,
            |times| times >= MUCH_SLOWER,
        );
        if !is_worth_it || missing == 0 {
            return Ok(as_it_is);
        }
        let per_rank = target / goal.world_size;
        let fewest = per_rank.div_ceil(safe);
        let totals = (fewest..=2 * fewest).map(|steps| (per_rank.div_ceil(steps), steps));
        let above = totals.min_by_key(|(micro, steps)| (micro * steps, *steps));
        let (above_micro_batch, above_steps) = above.unwrap_or_default();
        return Ok(Chosen {
            plan: other,
            instead_of: None,
            exactly: Some(Exactly {
                micro_batch: plan.micro_batch,
                accumulation_steps: plan.accumulation_steps,
                times_slower,
                last_micro_batch: per_rank - other.micro_batch * other.accumulation_steps,
                above_micro_batch,
                above_steps,
            }),
        });
    }
    Ok(as_it_is)
}
