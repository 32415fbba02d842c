//! Look-ups, tables and triangles.

use super::Written;
use crate::ops::prelude::*;
use batchfit_torch::ops::placing::{self, Combine, Written as Values};

/// Fewer lines than this do not keep a card busy with a thread for each.
const FEW_LINES: u64 = 4096;

/// `grad, index -> grad_x` along a dimension.
pub(super) fn gather_grad(
    operands: &Operands<'_>,
    dim: usize,
) -> Result<Vec<Written>, LaunchError> {
    let (grad, index) = (operands.input(0)?, operands.input(1)?);
    scattered(operands, dim, [grad.clone(), index.clone()], -1)
}

/// `grad, indices -> grad_weight`, of which one row gets nothing. Both are dense: they are copied for this.
pub(super) fn embedding_grad(
    operands: &Operands<'_>,
    padding: Option<u64>,
) -> Result<Vec<Written>, LaunchError> {
    let (grad, index) = (operands.input(0)?, operands.input(1)?);
    let width = operands.output(0)?.shape.get(1).copied().unwrap_or(1);
    let shape = vec![index.count(), width];
    let seen = |operand: &Operand, strides: Vec<u64>| Operand {
        shape: shape.clone(),
        strides,
        ..operand.clone()
    };
    let both = [seen(grad, vec![width, 1]), seen(index, vec![1, 0])];
    let skipped = padding.map_or(-1, u64::cast_signed);
    scattered(operands, 0, both, skipped)
}

/// What is written to is cleared first.
fn scattered(
    operands: &Operands<'_>,
    dim: usize,
    [values, index]: [Operand; 2],
    skipped: i64,
) -> Result<Vec<Written>, LaunchError> {
    let dims = 0..index.shape.len();
    let shared: Vec<bool> = dims
        .clone()
        .map(|d| index.shape[d] == 1 || index.strides[d] == 0)
        .collect();
    let mut others = dims.filter(|d| *d != dim);
    let is_spread = others.clone().any(|d| shared[d] && index.shape[d] != 1);
    let lines = others.try_fold(1_u64, |lines, d| {
        let length = if shared[d] { 1 } else { index.shape[d] };
        lines.checked_mul(length)
    });
    let are_few = lines.is_some_and(|lines| lines < FEW_LINES);
    let how = (Combine::Add, Values::Values);
    let generated = placing::scatter("gather", dim, (&shared, is_spread || are_few), how, skipped);
    let into = operands.output(0)?;
    let none: [&'static str; 0] = [];
    let cleared = Written {
        generated: Generated::map("fill", none, "result = 0;"),
        inputs: Vec::new(),
        outputs: vec![into.clone()],
    };
    let added = Written {
        generated,
        inputs: vec![values, index],
        outputs: vec![into.clone()],
    };
    Ok(vec![cleared, added])
}

/// `weight, indices -> y` of indices with so many dimensions.
pub(super) fn embedding(rank: usize) -> Generated {
    let at: Vec<String> = (0..rank).map(|d| format!("i[{d}]")).collect();
    let row = format!("wrapped(indices({}), weight.size(0))", at.join(", "));
    Generated::each(
        "embedding",
        ["weight", "indices"],
        ["y"],
        2,
        format!("y.set_at(weight({row}, i[{rank}]), i);"),
    )
}

/// Zero above the diagonal of each matrix.
pub(super) fn tril(rank: usize) -> Generated {
    let (row, column) = (rank.saturating_sub(2), rank.saturating_sub(1));
    Generated::each(
        "tril",
        ["x"],
        ["y"],
        1,
        format!("if (i[{column}] <= i[{row}]) y.set_at(x.at(i), i); else y.set_at(0, i);"),
    )
}
