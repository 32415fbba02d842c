//! Launches of random values and of dropout: random.cu.

use super::elementwise::{self, Map, single};
use crate::ops::prelude::*;
use crate::program::Initial;

/// What random values are drawn from. Must agree with `Distribution` in random.cu.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Random {
    Normal,
    Uniform { bound: f64 },
    Below(u64),
}

shared_with_kernels! {
    #[derive(Clone, Copy)]
    struct RandomArguments {
        out: Array,
        count: i64,
        seed: u64,
        bound: f32,
        distribution: i32,
        limit: u64,
    }
}

// SAFETY: repeats `RandomArguments` in random.cu, the parameter of `random`.
unsafe impl Arguments for RandomArguments {}

/// Queues the filling of a tensor with random values.
pub(crate) fn random(
    plan: &mut Plan,
    operands: &Operands<'_>,
    distribution: Random,
    seed: u64,
) -> Queued {
    let count = operands.output(0)?.count();
    if count == 0 {
        return Ok(());
    }
    let (number, bound, limit) = match distribution {
        Random::Normal => (0, 0.0, 0),
        Random::Uniform { bound } => (1, bound, 0),
        Random::Below(limit) => (2, 0.0, limit),
    };
    let arguments = RandomArguments {
        out: operands.dense_output(0)?,
        count: count.cast_signed(),
        seed,
        bound: single(bound),
        distribution: number,
        limit,
    };
    let grid = plan.spread(count.div_ceil(4));
    plan.launch("random", grid, &arguments);
    Ok(())
}

/// Queues a parameter's first values.
pub(crate) fn initialize(
    plan: &mut Plan,
    operands: &Operands<'_>,
    initial: Initial,
    seed: u64,
) -> Queued {
    match initial {
        Initial::Constant(value) => elementwise::map(plan, operands, Map::Fill(value)),
        Initial::Uniform { bound } => random(plan, operands, Random::Uniform { bound }, seed),
    }
}

shared_with_kernels! {
    #[derive(Clone, Copy)]
    struct DropoutArguments {
        x: Array,
        y: Array,
        mask: u64,
        count: i64,
        seed: u64,
        p: f32,
        scale: f32,
    }
}

/// For the kernels' compiler to check.
pub(crate) const LAYOUTS: &[Layout] = &[RandomArguments::LAYOUT, DropoutArguments::LAYOUT];

// SAFETY: repeats `DropoutArguments` in random.cu, the parameter of `dropout` and `dropout_grad`.
unsafe impl Arguments for DropoutArguments {}

/// Queues the dropping of elements.
pub(crate) fn dropout(plan: &mut Plan, operands: &Operands<'_>, p: f64, seed: u64) -> Queued {
    let mask = operands.dense_output(1)?;
    dropout_kernel(plan, operands, ["dropout4", "dropout8"], mask, p, seed)
}

/// Queues its backward pass.
pub(crate) fn dropout_grad(plan: &mut Plan, operands: &Operands<'_>, p: f64) -> Queued {
    let mask = operands.dense_input(1)?;
    dropout_kernel(
        plan,
        operands,
        ["dropout_grad4", "dropout_grad8"],
        mask,
        p,
        0,
    )
}

fn dropout_kernel(
    plan: &mut Plan,
    operands: &Operands<'_>,
    [by_four, by_eight]: [&'static str; 2],
    mask: Array,
    p: f64,
    seed: u64,
) -> Queued {
    let count = operands.output(0)?.count();
    if count == 0 {
        return Ok(());
    }
    let arguments = DropoutArguments {
        x: operands.dense_input(0)?,
        y: operands.dense_output(0)?,
        mask: mask.address,
        count: count.cast_signed(),
        seed,
        p: single(p),
        // PyTorch answers zeros, not NaNs, when everything is dropped.
        scale: if p < 1.0 {
            single(1.0 / (1.0 - p))
        } else {
            0.0
        },
    };
    // Eight halves are one load, as four float32 are.
    let (kernel, group) = if operands.output(0)?.dtype.is_half() {
        (by_eight, 8)
    } else {
        (by_four, 4)
    };
    let grid = Grid {
        blocks: [clamp(count.div_ceil(group * 256)), 1],
        threads: [256, 1],
    };
    plan.launch(kernel, grid, &arguments);
    Ok(())
}
