//! Launches of `gather` and its gradient: rows.cu.

use crate::device::LaunchError;

use super::elementwise::{self, Map};
use crate::device::cuda::layout::{Array, MAX_RANK, Operand, Operands, fixed};
use crate::device::cuda::plan::{Arguments, Plan};

#[repr(C)]
#[derive(Clone, Copy)]
struct GatherArguments {
    source: Array,
    indices: Array,
    chosen: Array,
    shape: [i64; MAX_RANK],
    source_strides: [i64; MAX_RANK],
    index_strides: [i64; MAX_RANK],
    chosen_strides: [i64; MAX_RANK],
    step: i64,
    length: i64,
    count: i64,
    rank: i32,
}

// SAFETY: repeats `GatherArguments` in rows.cu, the parameter of `gather` and `gather_grad`.
unsafe impl Arguments for GatherArguments {}

/// Queues `x, indices -> y` along a dimension.
pub(in crate::device::cuda) fn gather(
    plan: &mut Plan,
    operands: &Operands<'_>,
    dim: usize,
) -> Result<(), LaunchError> {
    let parts = [operands.input(0)?, operands.input(1)?, operands.output(0)?];
    launch(plan, operands, "gather", parts, dim)
}

/// Queues `grad, indices -> grad_x`, which it clears first.
pub(in crate::device::cuda) fn gather_grad(
    plan: &mut Plan,
    operands: &Operands<'_>,
    dim: usize,
) -> Result<(), LaunchError> {
    elementwise::map(plan, operands, Map::Fill(0.0))?;
    let parts = [operands.output(0)?, operands.input(1)?, operands.input(0)?];
    launch(plan, operands, "gather_grad", parts, dim)
}

fn launch(
    plan: &mut Plan,
    operands: &Operands<'_>,
    kernel: &'static str,
    [source, indices, chosen]: [&Operand; 3],
    dim: usize,
) -> Result<(), LaunchError> {
    let count = indices.count();
    if count == 0 {
        return Ok(());
    }
    let rank = indices.shape.len();
    if source.shape.len() != rank || chosen.shape != indices.shape || dim >= rank {
        let (from, by) = (&source.shape, &indices.shape);
        return Err(operands.failed(format!("{by:?} indices into dimension {dim} of {from:?}")));
    }
    let mut others = source.strides.clone();
    others[dim] = 0;
    let fixed =
        |list: &[u64]| fixed(list).ok_or_else(|| operands.unsupported("more than six dimensions"));
    let arguments = GatherArguments {
        source: source.array(),
        indices: indices.array(),
        chosen: chosen.array(),
        shape: fixed(&indices.shape)?,
        source_strides: fixed(&others)?,
        index_strides: fixed(&indices.strides)?,
        chosen_strides: fixed(&chosen.strides)?,
        step: source.strides[dim].cast_signed(),
        length: source.shape[dim].cast_signed(),
        count: count.cast_signed(),
        rank: i32::try_from(rank).unwrap_or(i32::MAX),
    };
    let grid = plan.spread(count);
    plan.launch(kernel, grid, &arguments);
    Ok(())
}
