//! Formulas of operations that have tuned kernels or a library too: for what those do not take.

mod attention;
mod convolution;
pub(crate) mod depthwise;
mod indexed;
mod loss;
mod matmul;
mod norm;
mod pointwise;
mod scaler;
mod softmax;

use crate::generate::{self, GeneratedLaunch, Resources};
use crate::ops::prelude::*;
use crate::program::Text;
use batchfit_torch::ops::{placing, pooling};

/// A formula and its operands, seen as it wants them.
struct Written {
    generated: Generated,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
}

/// The launches of generated kernels that compute a call.
pub(crate) fn launches(
    operands: &Operands<'_>,
    resources: Resources,
) -> Result<Vec<GeneratedLaunch>, LaunchError> {
    let misuse = |error: generate::NoKernel| operands.failed(error.to_string());
    if let Kernel::Generated(generated) = operands.kernel() {
        return generate::launches(generated, operands.inputs(), operands.outputs(), resources)
            .map_err(misuse);
    }
    let Some(written) = formulas_of(operands, resources)? else {
        return Err(operands.no_kernel());
    };
    let mut launches = Vec::new();
    for of in &written {
        let made = generate::launches(&of.generated, &of.inputs, &of.outputs, resources);
        launches.extend(made.map_err(misuse)?);
    }
    Ok(launches)
}

/// The formulas that compute a call, one after another.
fn formulas_of(
    operands: &Operands<'_>,
    resources: Resources,
) -> Result<Option<Vec<Written>>, LaunchError> {
    match operands.kernel() {
        Kernel::BatchNorm { .. }
        | Kernel::BatchNormGrad
        | Kernel::BatchNormInference { .. }
        | Kernel::BatchNormInferenceGrad { .. }
        | Kernel::LayerNorm { .. }
        | Kernel::LayerNormGrad => norm::formulas_of(operands),
        Kernel::NllLoss | Kernel::NllLossGrad => Ok(Some(vec![loss::likelihood(operands)?])),
        Kernel::HiddenRows => Ok(Some(vec![loss::hidden_rows(operands)?])),
        Kernel::Attention { .. } | Kernel::AttentionGrad { .. } => attention::formulas_of(operands),
        Kernel::GatherGrad { dim } => indexed::gather_grad(operands, *dim).map(Some),
        Kernel::EmbeddingGrad { padding } => indexed::embedding_grad(operands, *padding).map(Some),
        Kernel::Unscale => scaler::unscale(operands).map(Some),
        Kernel::ScalerUpdate => Ok(Some(vec![scaler::update(operands)?])),
        Kernel::Convolution(shape) => {
            match depthwise::formulas_of(&shape.at(resources.batch), operands, resources)? {
                Some(written) => Ok(Some(written)),
                None => Ok(by_one(operands, resources)?.map(|written| vec![written])),
            }
        }
        _ => Ok(by_one(operands, resources)?.map(|written| vec![written])),
    }
}

/// The formula that computes a call by itself.
fn by_one(operands: &Operands<'_>, resources: Resources) -> Result<Option<Written>, LaunchError> {
    let plain = |generated: Generated| Written {
        generated,
        inputs: operands.inputs().to_vec(),
        outputs: operands.outputs().to_vec(),
    };
    if let Some(generated) = pointwise::pointwise(operands.kernel()) {
        return Ok(Some(plain(generated)));
    }
    let out = || operands.output(0);
    Ok(Some(match operands.kernel() {
        Kernel::Sum { scale } => {
            let x = operands.input(0)?;
            let kept = super::reduce::kept_dimensions(x, out()?).ok_or_else(|| {
                operands.failed(format!(
                    "{:?} is no sum of {:?}",
                    operands.outputs()[0].shape,
                    x.shape
                ))
            })?;
            let dims = (0..kept.len()).filter(|d| kept[*d].is_none()).collect();
            let seen = Operand {
                shape: (0..kept.len())
                    .map(|d| kept[d].map_or(1, |_| x.shape[d]))
                    .collect(),
                strides: kept.iter().map(|stride| stride.unwrap_or(0)).collect(),
                ..out()?.clone()
            };
            Written {
                generated: sum(dims).with("scale", Number::Real(*scale)),
                inputs: vec![x.clone()],
                outputs: vec![seen],
            }
        }
        Kernel::MatMul => matmul::product(operands)?,
        Kernel::Convolution(shape) => Written {
            generated: convolution::convolution(
                &shape.at(resources.batch),
                operands.input(0)?.shape.len(),
            ),
            inputs: operands.inputs().to_vec(),
            outputs: operands.outputs().to_vec(),
        },
        Kernel::Gather { dim } => plain(placing::gather(operands.input(1)?.shape.len(), *dim)),
        Kernel::Embedding => plain(indexed::embedding(operands.input(1)?.shape.len())),
        Kernel::MaxPool(window) => plain(pooling::max(window, sides(out()?))),
        Kernel::MaxPoolGrad(window) => plain(pooling::max_backward(window, sides(out()?))),
        Kernel::AdaptiveAvgPool => plain(pooling::adaptive_avg(sides(out()?))),
        Kernel::AdaptiveAvgPoolGrad => plain(pooling::adaptive_avg_backward(sides(out()?))),
        Kernel::Tril => plain(indexed::tril(out()?.shape.len())),
        Kernel::Softmax { dim, log } => plain(softmax::forward(*dim, *log)),
        Kernel::SoftmaxGrad { dim, log } => plain(softmax::gradient(*dim, *log)),
        _ => return Ok(None),
    }))
}

/// How many dimensions of a tensor are pooled: all but batch and channels.
fn sides(tensor: &Operand) -> usize {
    tensor.shape.len().saturating_sub(2)
}

/// Rows along some dimensions.
fn rows(
    name: &'static str,
    inputs: &[&'static str],
    outputs: &[&'static str],
    dims: Vec<usize>,
    body: &'static str,
) -> Generated {
    let form = Form::Rows {
        dims,
        body: Text::Borrowed(body),
    };
    Generated::of(name, inputs, outputs, form)
}

/// A sum over dimensions, times `scale`.
fn sum(dims: Vec<usize>) -> Generated {
    let form = Form::Reduce {
        dims,
        state: "T".into(),
        start: "s = 0;".into(),
        step: "s += (T)x;".into(),
        merge: "s += o;".into(),
        finish: "y = s * (T)scale;".into(),
    };
    Generated::of("sum", ["x"], ["y"], form)
}
