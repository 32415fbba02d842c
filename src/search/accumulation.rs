//! How many micro-steps make up the batch that the user wants.

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

/// Most plans that fall short of the target; exact ones are all given.
const SHORT_PLANS: usize = 16;

/// The plans for `target` samples over `world_size` ranks, the one to prefer first.
///
/// The first of them is the answer unless its micro-batch turns out to be a hole: memory use is not
/// monotone, and a plan of several steps also holds gradients through the later forwards, so the caller
/// probes the plan before recommending it and takes the next one if it must.
///
/// Exact plans come first, the fewest steps first; then those that fall short, the closest first. A
/// micro-batch is at most `safe_max` and, where there are several steps, at least half of it: more and
/// smaller steps would trade too much speed for exactness. One step may be as small as the target asks.
/// Empty when nothing fits or the target leaves a rank without a sample.
pub fn plans(target: u64, world_size: u64, safe_max: u64) -> Vec<Plan> {
    let world_size = world_size.max(1);
    let per_rank = target / world_size;
    if per_rank == 0 || safe_max == 0 {
        return Vec::new();
    }
    let plan = |micro_batch: u64| {
        let accumulation_steps = per_rank / micro_batch;
        let global_batch = micro_batch * accumulation_steps * world_size;
        Plan {
            micro_batch,
            accumulation_steps,
            global_batch,
            shortfall: target - global_batch,
        }
    };
    let largest = safe_max.min(per_rank);
    let smallest = safe_max.div_ceil(2).min(largest);
    let (mut exact, mut short) = (Vec::new(), Vec::new());
    for plan in (smallest..=largest).rev().map(plan) {
        if plan.shortfall == 0 {
            exact.push(plan);
        } else {
            keep_closest(&mut short, plan);
        }
    }
    exact.append(&mut short);
    exact
}

/// Inserts behind those that are as close: they have larger micro-batches, so no more steps.
fn keep_closest(short: &mut Vec<Plan>, plan: Plan) {
    let at = short.partition_point(|other| other.shortfall <= plan.shortfall);
    if at < SHORT_PLANS {
        short.truncate(SHORT_PLANS - 1);
        short.insert(at, plan);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(target: u64, world_size: u64, safe_max: u64) -> (u64, u64, u64) {
        let plan = plans(target, world_size, safe_max)[0];
        (plan.micro_batch, plan.accumulation_steps, plan.shortfall)
    }

    #[test]
    fn the_fewest_steps_that_divide_the_target() {
        assert_eq!(first(1024, 1, 256), (256, 4, 0));
        assert_eq!(first(1024, 1, 255), (128, 8, 0));
        assert_eq!(first(1024, 2, 200), (128, 4, 0));
    }

    #[test]
    fn a_target_below_the_maximum_is_one_step() {
        assert_eq!(first(24, 1, 1000), (24, 1, 0));
    }

    #[test]
    fn without_an_exact_plan_the_closest_below_and_its_shortfall() {
        assert_eq!(first(1009, 1, 100), (84, 12, 1));
        assert_eq!(first(1001, 2, 500), (500, 1, 1));
    }

    #[test]
    fn nothing_fits_or_no_sample_for_a_rank_is_no_plan() {
        assert!(plans(64, 1, 0).is_empty());
        assert!(plans(7, 8, 100).is_empty());
    }
}
