//! Normalizations.

use super::Written;
use crate::ops::prelude::*;
use batchfit_torch::ops::normalization::{self, Normalization};

/// A value for each channel, as it broadcasts to tensors of this rank.
fn by_channel(operand: &Operand, rank: usize) -> Operand {
    let behind = vec![1; rank.saturating_sub(2)];
    Operand {
        shape: [&operand.shape[..], &behind].concat(),
        strides: [&operand.strides[..], &vec![0; behind.len()]].concat(),
        ..operand.clone()
    }
}

/// A value for each row, as it broadcasts to rows of so many dimensions of `x`.
fn by_row(operand: &Operand, x: &Operand, dims: usize) -> Operand {
    let mut step = operand.strides.last().copied().unwrap_or(1);
    let outer = x.shape.len() - dims;
    let (mut shape, mut strides) = (x.shape.clone(), vec![0; x.shape.len()]);
    shape[outer..].fill(1);
    for d in (0..outer).rev() {
        strides[d] = step;
        step *= x.shape[d];
    }
    Operand {
        shape,
        strides,
        ..operand.clone()
    }
}

/// The formulas of a normalization.
#[expect(clippy::too_many_lines, reason = "six kernels and their operands")]
pub(super) fn formulas_of(operands: &Operands<'_>) -> Result<Option<Vec<Written>>, LaunchError> {
    let is_gradient = matches!(
        operands.kernel(),
        Kernel::BatchNormGrad | Kernel::BatchNormInferenceGrad { .. } | Kernel::LayerNormGrad
    );
    let is_layer = matches!(
        operands.kernel(),
        Kernel::LayerNorm { .. } | Kernel::LayerNormGrad
    );
    let x = operands.input(usize::from(is_gradient))?;
    let rank = x.shape.len();
    // A layer norm's weight has the dimensions that are normalized.
    let own = operands.input(1 + usize::from(is_gradient))?.shape.len();
    if rank < 2 || own > rank {
        return Err(operands.failed(format!("{:?} is not normalized", x.shape)));
    }
    let across: Vec<usize> = (0..rank)
        .filter(|d| if is_layer { *d < rank - own } else { *d != 1 })
        .collect();
    let within: Vec<usize> = (0..rank).filter(|d| *d >= rank - own).collect();
    // Along which dimensions elements are normalized, and over which the parameters' gradients are summed: for batch
    // norms the same.
    let dims = if is_layer { &within } else { &across };
    let norm = Normalization {
        name: if is_layer { "layer_norm" } else { "batch_norm" },
        dims,
        centred: true,
        weight: true,
        bias: true,
    };
    let parameter = |operand: &Operand| {
        if is_layer {
            operand.clone()
        } else {
            by_channel(operand, rank)
        }
    };
    let statistic = |operand: &Operand| {
        if is_layer {
            by_row(operand, x, own)
        } else {
            by_channel(operand, rank)
        }
    };
    let input = |at: usize| operands.input(at).cloned();
    let output = |at: usize| operands.output(at).cloned();
    Ok(Some(match operands.kernel() {
        Kernel::BatchNorm { eps, .. } | Kernel::LayerNorm { eps } => {
            let running = match operands.kernel() {
                Kernel::BatchNorm { momentum, .. } => Some(*momentum),
                _ => None,
            };
            let mut outputs = vec![output(0)?];
            outputs.extend(operands.outputs()[1..].iter().map(statistic));
            vec![Written {
                generated: norm.forward(*eps, running),
                inputs: vec![input(0)?, parameter(&input(1)?), parameter(&input(2)?)],
                outputs,
            }]
        }
        Kernel::BatchNormInference { eps } => {
            // `x, weight, bias, mean, var`, of which the statistics come first here.
            let inputs = [3, 4, 1, 2].map(|at| input(at).map(|operand| parameter(&operand)));
            let mut all = vec![input(0)?];
            for operand in inputs {
                all.push(operand?);
            }
            vec![Written {
                generated: normalization::by_running_statistics(*eps),
                inputs: all,
                outputs: vec![output(0)?],
            }]
        }
        Kernel::BatchNormInferenceGrad { eps } => {
            let of_x = Written {
                generated: normalization::by_running_statistics_grad(*eps),
                inputs: vec![input(0)?, parameter(&input(4)?), parameter(&input(2)?)],
                outputs: vec![output(0)?],
            };
            let of_parameters = Written {
                generated: normalization::by_running_statistics_weight_grad(*eps, &across),
                inputs: vec![
                    input(0)?,
                    input(1)?,
                    parameter(&input(3)?),
                    parameter(&input(4)?),
                ],
                outputs: vec![parameter(&output(1)?), parameter(&output(2)?)],
            };
            vec![of_x, of_parameters]
        }
        Kernel::BatchNormGrad | Kernel::LayerNormGrad => {
            let statistics = [statistic(&input(3)?), statistic(&input(4)?)];
            let inputs = [&[input(0)?, input(1)?][..], &statistics].concat();
            let of_x = Written {
                generated: norm.gradient(),
                inputs: [&inputs[..], &[parameter(&input(2)?)]].concat(),
                outputs: vec![output(0)?],
            };
            let of_parameters = Written {
                generated: norm.weight_gradient(&across, true),
                inputs,
                outputs: vec![parameter(&output(1)?), parameter(&output(2)?)],
            };
            vec![of_x, of_parameters]
        }
        _ => return Ok(None),
    }))
}
