//! Launches of sums: reduce.cu.

use super::elementwise::single;
use crate::layout::{Loop, MAX_RANK, fixed};
use crate::ops::prelude::*;

shared_with_kernels! {
    #[derive(Clone, Copy)]
    struct Axes {
        shape: [i64; MAX_RANK],
        strides: [i64; MAX_RANK],
        out_strides: [i64; MAX_RANK],
        rank: i32,
        unused: i32,
    }
}

shared_with_kernels! {
    #[derive(Clone, Copy)]
    struct SumArguments {
        input: Array,
        out: Array,
        partial: u64,
        kept: Axes,
        reduced: Axes,
        kept_count: i64,
        reduced_count: i64,
        splits: i64,
        scale: f32,
        unused: i32,
    }
}

/// For the kernels' compiler to check.
pub(crate) const LAYOUTS: &[Layout] = &[Axes::LAYOUT, SumArguments::LAYOUT];

// SAFETY: repeats `SumArguments` in reduce.cu, the parameter of the `sum` kernels.
unsafe impl Arguments for SumArguments {}

/// Queues a sum over the dimensions that the result lacks or has with length one, times `scale`.
///
/// Trailing dimensions correspond, as in broadcasting.
pub(crate) fn sum(plan: &mut Plan, operands: &Operands<'_>, scale: f64) -> Queued {
    let (input, out) = (operands.input(0)?, operands.output(0)?);
    let is_kept = kept_dimensions(input, out).ok_or_else(|| {
        operands.failed(format!("{:?} is no sum of {:?}", out.shape, input.shape))
    })?;
    let too_many = || operands.unsupported("more than six separate dimensions");
    let (kept_count, kept) = axes(input, out, &is_kept, true).ok_or_else(too_many)?;
    let (reduced_count, reduced) = axes(input, out, &is_kept, false).ok_or_else(too_many)?;
    if kept_count == 0 {
        return Ok(());
    }
    let (partial, room) = plan.scratch();
    let mut arguments = SumArguments {
        input: input.array(),
        out: out.array(),
        partial,
        kept,
        reduced,
        kept_count: kept_count.cast_signed(),
        reduced_count: reduced_count.cast_signed(),
        splits: 1,
        scale: single(scale),
        unused: 0,
    };
    let most_splits = (room.0 / 4 / kept_count).min(1024);
    if most_splits == 0 {
        let grid = plan.spread(kept_count);
        plan.launch("sum_direct", grid, &arguments);
        return Ok(());
    }
    let enough_blocks = plan.multiprocessors() * 8;
    let innermost = |axes: &Axes| axes.strides[usize::try_from(axes.rank - 1).unwrap_or(0)];
    let is_along = kept_count == 1
        || (reduced_count > 1 && innermost(&arguments.reduced) < innermost(&arguments.kept));
    if is_along {
        let length = arguments.reduced.shape[usize::try_from(reduced.rank - 1).unwrap_or(0)];
        let (kernel, width) = match length % 8 {
            0 => ("sum_along8", 8),
            4 => ("sum_along4", 4),
            _ => ("sum_along1", 1),
        };
        // A thread of a whole block should add this many elements at least, or splitting costs more.
        let splits = enough_blocks
            .div_ceil(kept_count)
            .min(reduced_count / (256 * 16))
            .clamp(1, most_splits);
        let threads = (reduced_count / splits)
            .div_ceil(width)
            .next_multiple_of(32);
        arguments.splits = splits.cast_signed();
        let grid = Grid {
            blocks: [clamp(kept_count), clamp(splits)],
            threads: [clamp(threads.clamp(32, 256)), 1],
        };
        plan.launch(kernel, grid, &arguments);
    } else {
        let length = arguments.kept.shape[usize::try_from(kept.rank - 1).unwrap_or(0)];
        let (kernel, width) = match length % 4 {
            0 => ("sum_across4", 4),
            _ => ("sum_across1", 1),
        };
        let columns = kept_count.div_ceil(32 * width);
        let splits = enough_blocks
            .div_ceil(columns)
            .min(reduced_count / 64)
            .clamp(1, most_splits);
        arguments.splits = splits.cast_signed();
        let grid = Grid {
            blocks: [clamp(columns), clamp(splits)],
            threads: [32, 8],
        };
        plan.launch(kernel, grid, &arguments);
    }
    let grid = plan.spread(kept_count);
    plan.launch("sum_finish", grid, &arguments);
    Ok(())
}

/// Which dimensions of the operand the result has, each with the result's stride.
pub(super) fn kept_dimensions(input: &Operand, out: &Operand) -> Option<Vec<Option<u64>>> {
    let mut kept = vec![None; input.shape.len()];
    let missing = input.shape.len().checked_sub(out.shape.len())?;
    for (i, (length, stride)) in out.shape.iter().zip(&out.strides).enumerate() {
        if *length == input.shape[missing + i] {
            kept[missing + i] = Some(*stride);
        } else if *length != 1 {
            return None;
        }
    }
    Some(kept)
}

/// How many elements the kept (or the reduced) dimensions have, and how to visit them.
fn axes(
    input: &Operand,
    out: &Operand,
    out_strides: &[Option<u64>],
    keep: bool,
) -> Option<(u64, Axes)> {
    let chosen: Vec<usize> = (0..input.shape.len())
        .filter(|d| out_strides[*d].is_some() == keep)
        .collect();
    let pick = |list: &[u64]| chosen.iter().map(|d| list[*d]).collect::<Vec<_>>();
    let shape = pick(&input.shape);
    let strides = pick(&input.strides);
    let to: Vec<u64> = chosen
        .iter()
        .map(|d| out_strides[*d].unwrap_or(0))
        .collect();
    let count = if out.count() == 0 {
        0
    } else {
        shape.iter().product()
    };
    let steps = Loop::over(&shape, [&strides, &to]);
    let axes = Axes {
        shape: fixed(&steps.shape)?,
        strides: fixed(&steps.strides[0])?,
        out_strides: fixed(&steps.strides[1])?,
        rank: i32::try_from(steps.shape.len()).ok()?,
        unused: 0,
    };
    Some((count, axes))
}
