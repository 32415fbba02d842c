//! Likelihoods of class indices, and rows that a mask hides.

use super::Written;
use crate::ops::prelude::*;
use crate::shape::Extent;
use batchfit_torch::ops::{Likelihood, Loss, Summary};

fn without_classes(operand: &Operand) -> Operand {
    let without = |list: &[u64]| [&list[..1], &list[2..]].concat();
    Operand {
        shape: without(&operand.shape),
        strides: without(&operand.strides),
        ..operand.clone()
    }
}

/// `log_probabilities, target -> loss, total_weight`, or `grad, target, total_weight -> grad_x`.
pub(super) fn likelihood(operands: &Operands<'_>) -> Result<Written, LaunchError> {
    let is_forward = matches!(operands.kernel(), Kernel::NllLoss);
    let x = if is_forward {
        operands.input(0)?
    } else {
        operands.output(0)?
    };
    let (&[_, classes, ..], &[_, step, ..]) = (&x.shape[..], &x.strides[..]) else {
        return Err(operands.failed(format!("{:?} has no classes", x.shape)));
    };
    let of = Likelihood {
        weighted: false,
        ignored: Loss::IGNORED_BY_DEFAULT,
        classes: Extent::fixed(classes),
        summary: Summary::Mean,
    };
    let rank = x.shape.len();
    let outputs = operands.outputs().to_vec();
    Ok(if is_forward {
        Written {
            generated: of.reduced(rank, [Extent::fixed(step), Extent::ONE]),
            inputs: vec![operands.input(1)?.clone(), without_classes(x)],
            outputs,
        }
    } else {
        Written {
            generated: of.gradient(rank),
            inputs: operands.inputs().to_vec(),
            outputs,
        }
    })
}

/// `x, y -> hidden, rows, y`: which elements of `x` are minus infinity, and in which rows all are.
pub(super) fn hidden_rows(operands: &Operands<'_>) -> Result<Written, LaunchError> {
    let body = "
    bool any = false;
    for_each(j) { const bool is_hidden = x(j) == -INFINITY; hidden.set(is_hidden, j); any = any || !is_hidden; }
    any = row_max(any);
    if (!any) for_each(j) y.set((P)0, j);
    if (is_first) rows.set(!any, 0);";
    let x = operands.input(0)?;
    let Some(last) = x.shape.len().checked_sub(1) else {
        return Err(operands.failed("a scalar has no rows".to_owned()));
    };
    let mut outputs = operands.outputs().to_vec();
    if let Some(rows) = outputs.get_mut(1) {
        rows.shape.push(1);
        rows.strides.push(0);
    }
    let names = ["hidden", "rows", "y"];
    Ok(Written {
        generated: Generated::rows("safe_softmax", ["x"], names, [last], body),
        inputs: vec![x.clone()],
        outputs,
    })
}
