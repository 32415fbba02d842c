//! Launches of what makes and applies masks: rows.cu.

use crate::device::LaunchError;

use crate::device::cuda::layout::{Array, Operands};
use crate::device::cuda::plan::{Arguments, Grid, Plan, clamp};

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MaskArguments {
    x: Array,
    hidden: u64,
    rows: u64,
    y: Array,
    count: i64,
    height: i64,
    width: i64,
}

// SAFETY: repeats `MaskArguments` in rows.cu, the parameter of `tril` and `hidden_rows`.
unsafe impl Arguments for MaskArguments {}

/// Queues `in -> out`: zero above the diagonal of each matrix.
pub(in crate::device::cuda) fn tril(
    plan: &mut Plan,
    operands: &Operands<'_>,
) -> Result<(), LaunchError> {
    let out = operands.output(0)?;
    let &[.., height, width] = &out.shape[..] else {
        return Err(operands.failed(format!("{:?} is no matrix", out.shape)));
    };
    if out.count() == 0 {
        return Ok(());
    }
    let arguments = MaskArguments {
        x: operands.dense_input(0)?,
        y: operands.dense_output(0)?,
        count: out.count().cast_signed(),
        height: height.cast_signed(),
        width: width.cast_signed(),
        ..MaskArguments::default()
    };
    let grid = plan.spread(out.count());
    plan.launch("tril", grid, &arguments);
    Ok(())
}

/// Queues `x, y -> hidden, rows, y`.
pub(in crate::device::cuda) fn hidden_rows(
    plan: &mut Plan,
    operands: &Operands<'_>,
) -> Result<(), LaunchError> {
    let x = operands.input(0)?;
    if x.count() == 0 {
        return Ok(());
    }
    let width = x.shape.last().copied().unwrap_or(1);
    let rows = x.count() / width;
    let arguments = MaskArguments {
        x: operands.dense_input(0)?,
        hidden: operands.dense_output(0)?.address,
        rows: operands.dense_output(1)?.address,
        y: operands.dense_output(2)?,
        count: rows.cast_signed(),
        width: width.cast_signed(),
        ..MaskArguments::default()
    };
    let grid = Grid {
        blocks: [clamp(rows.div_ceil(8).min(1 << 20)), 1],
        threads: [32, 8],
    };
    plan.launch("hidden_rows", grid, &arguments);
    Ok(())
}
