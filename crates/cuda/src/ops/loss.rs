//! Launches of softmax and losses (loss.cu).

use crate::ops::prelude::*;

shared_with_kernels! {
    #[derive(Clone, Copy, Default)]
    struct LossArguments {
        input: Array,
        saved: Array,
        out: Array,
        target: u64,
        loss: Array,
        total_weight: Array,
        partial: u64,
        outer: i64,
        classes: i64,
        inner: i64,
        blocks: i64,
        is_log: i64,
    }
}

/// For the kernels' compiler to check.
pub(crate) const LAYOUTS: &[Layout] = &[LossArguments::LAYOUT];

// SAFETY: repeats `LossArguments` in loss.cu, the parameter of its kernels.
unsafe impl Arguments for LossArguments {}

impl LossArguments {
    /// Whether a block rather than a warp works on each row.
    fn is_wide(&self) -> bool {
        self.inner == 1 && self.classes > 4096
    }

    fn block_per_row(&self, threads: u32) -> Grid {
        Grid {
            blocks: [clamp(self.outer.cast_unsigned().min(1 << 20)), 1],
            threads: [threads, 1],
        }
    }
}

/// The arguments that follow from a `[outer, classes, inner...]` shape.
fn arguments(operands: &Operands<'_>, of: &Operand) -> Result<LossArguments, LaunchError> {
    along(operands, of, 1)
}

/// The arguments that follow from a shape and one of its dimensions.
fn along(operands: &Operands<'_>, of: &Operand, dim: usize) -> Result<LossArguments, LaunchError> {
    let Some((classes, rest)) = of.shape.get(dim..).and_then(<[u64]>::split_first) else {
        return Err(operands.failed(format!("{:?} has no dimension {dim}", of.shape)));
    };
    Ok(LossArguments {
        outer: of.shape[..dim].iter().product::<u64>().cast_signed(),
        classes: classes.cast_signed(),
        inner: rest.iter().product::<u64>().cast_signed(),
        ..LossArguments::default()
    })
}

/// Queues `x -> y`: softmax, or its logarithm.
pub(crate) fn softmax(plan: &mut Plan, operands: &Operands<'_>, dim: usize, log: bool) -> Queued {
    let arguments = LossArguments {
        input: operands.dense_input(0)?,
        out: operands.dense_output(0)?,
        is_log: i64::from(log),
        ..along(operands, operands.input(0)?, dim)?
    };
    let kernels = ["softmax_rows", "softmax_wide", "softmax_columns"];
    softmax_kernel(plan, &arguments, kernels);
    Ok(())
}

/// Queues `grad, y -> grad_x`.
pub(crate) fn softmax_grad(
    plan: &mut Plan,
    operands: &Operands<'_>,
    dim: usize,
    log: bool,
) -> Queued {
    let arguments = LossArguments {
        input: operands.dense_input(0)?,
        saved: operands.dense_input(1)?,
        out: operands.dense_output(0)?,
        is_log: i64::from(log),
        ..along(operands, operands.input(1)?, dim)?
    };
    let kernels = [
        "softmax_rows_grad",
        "softmax_wide_grad",
        "softmax_columns_grad",
    ];
    softmax_kernel(plan, &arguments, kernels);
    Ok(())
}

fn softmax_kernel(
    plan: &mut Plan,
    arguments: &LossArguments,
    [rows, wide, columns]: [&'static str; 3],
) {
    let distributions = (arguments.outer * arguments.inner).cast_unsigned();
    if distributions == 0 {
        return;
    }
    if arguments.is_wide() {
        let grid = arguments.block_per_row(1024);
        plan.launch(wide, grid, arguments);
        return;
    }
    if arguments.inner == 1 {
        let grid = Grid {
            blocks: [clamp(distributions.div_ceil(8).min(1 << 20)), 1],
            threads: [32, 8],
        };
        plan.launch(rows, grid, arguments);
        return;
    }
    let grid = plan.spread(distributions);
    plan.launch(columns, grid, arguments);
}

/// Queues `log_probabilities, target -> loss, total_weight`.
pub(crate) fn nll_loss(plan: &mut Plan, operands: &Operands<'_>) -> Queued {
    let mut arguments = LossArguments {
        input: operands.dense_input(0)?,
        target: operands.dense_input(1)?.address,
        loss: operands.dense_output(0)?,
        total_weight: operands.dense_output(1)?,
        partial: plan.scratch().0,
        ..arguments(operands, operands.input(0)?)?
    };
    let targets = (arguments.outer * arguments.inner).cast_unsigned();
    let mut grid = plan.spread(targets.div_ceil(4));
    grid.blocks[0] = grid.blocks[0].min(1024);
    arguments.blocks = i64::from(grid.blocks[0]);
    plan.launch("nll_loss_partial", grid, &arguments);
    let one_block = Grid {
        blocks: [1, 1],
        threads: [256, 1],
    };
    plan.launch("nll_loss_finish", one_block, &arguments);
    Ok(())
}

/// Queues `grad, target, total_weight -> grad_x`.
pub(crate) fn nll_loss_grad(plan: &mut Plan, operands: &Operands<'_>) -> Queued {
    let out = operands.output(0)?;
    if out.count() == 0 {
        return Ok(());
    }
    let arguments = LossArguments {
        input: operands.dense_input(0)?,
        target: operands.dense_input(1)?.address,
        total_weight: operands.dense_input(2)?,
        out: operands.dense_output(0)?,
        ..arguments(operands, out)?
    };
    if arguments.is_wide() {
        let grid = arguments.block_per_row(256);
        plan.launch("nll_loss_grad_wide", grid, &arguments);
        return Ok(());
    }
    let grid = plan.spread(out.count());
    plan.launch("nll_loss_grad", grid, &arguments);
    Ok(())
}
