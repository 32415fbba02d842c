//! Launches of softmax and losses (loss.cu), and of embedding tables (rows.cu).

use crate::device::LaunchError;

use crate::device::cuda::layout::{Array, Operand, Operands};
use crate::device::cuda::plan::{Arguments, Grid, Plan, clamp};

#[repr(C)]
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
pub(in crate::device::cuda) fn softmax(
    plan: &mut Plan,
    operands: &Operands<'_>,
    dim: usize,
    log: bool,
) -> Result<(), LaunchError> {
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
pub(in crate::device::cuda) fn softmax_grad(
    plan: &mut Plan,
    operands: &Operands<'_>,
    dim: usize,
    log: bool,
) -> Result<(), LaunchError> {
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
pub(in crate::device::cuda) fn nll_loss(
    plan: &mut Plan,
    operands: &Operands<'_>,
) -> Result<(), LaunchError> {
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
pub(in crate::device::cuda) fn nll_loss_grad(
    plan: &mut Plan,
    operands: &Operands<'_>,
) -> Result<(), LaunchError> {
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

#[repr(C)]
#[derive(Clone, Copy)]
struct EmbeddingArguments {
    weight: Array,
    indices: Array,
    rows: Array,
    count: i64,
    width: i64,
    entries: i64,
    padding: i64,
}

// SAFETY: repeats `EmbeddingArguments` in rows.cu, the parameter of `embedding` and `embedding_grad`.
unsafe impl Arguments for EmbeddingArguments {}

fn embedding_kernel(
    plan: &mut Plan,
    operands: &Operands<'_>,
    kernel: &'static str,
    table: &Operand,
    padding: Option<u64>,
    arrays: [Array; 3],
) -> Result<(), LaunchError> {
    let [entries, width] = table.shape[..] else {
        return Err(operands.failed(format!("{:?} is no table", table.shape)));
    };
    let indices = operands.input(1)?.count();
    if indices * width == 0 {
        return Ok(());
    }
    let [weight, indices_array, rows] = arrays;
    let arguments = EmbeddingArguments {
        weight,
        indices: indices_array,
        rows,
        count: indices.cast_signed(),
        width: width.cast_signed(),
        entries: entries.cast_signed(),
        padding: padding.map_or(-1, u64::cast_signed),
    };
    let grid = plan.spread(indices * width);
    plan.launch(kernel, grid, &arguments);
    Ok(())
}

/// Queues `weight, indices -> y`.
pub(in crate::device::cuda) fn embedding(
    plan: &mut Plan,
    operands: &Operands<'_>,
) -> Result<(), LaunchError> {
    let arrays = [
        operands.dense_input(0)?,
        operands.dense_input(1)?,
        operands.dense_output(0)?,
    ];
    let table = operands.input(0)?;
    embedding_kernel(plan, operands, "embedding", table, None, arrays)
}

/// Queues `grad, indices -> grad_weight`, which it clears first.
pub(in crate::device::cuda) fn embedding_grad(
    plan: &mut Plan,
    operands: &Operands<'_>,
    padding: Option<u64>,
) -> Result<(), LaunchError> {
    super::elementwise::map(plan, operands, super::elementwise::Map::Fill(0.0))?;
    let arrays = [
        operands.dense_output(0)?,
        operands.dense_input(1)?,
        operands.dense_input(0)?,
    ];
    embedding_kernel(
        plan,
        operands,
        "embedding_grad",
        operands.output(0)?,
        padding,
        arrays,
    )
}
