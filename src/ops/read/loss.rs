//! Losses.

use super::{Lowered, all};
use crate::aten::Arguments;
use crate::graph::ValueId;
use crate::ops::{Loss, LossFunction, Op, Summary};
use crate::shape::Extent;

/// The operators of this file.
pub(super) const NAMES: &[&str] = &[
    "aten.binary_cross_entropy.default",
    "aten.binary_cross_entropy_with_logits.default",
    "aten.cross_entropy_loss.default",
    "aten.huber_loss.default",
    "aten.l1_loss.default",
    "aten.mse_loss.default",
    "aten.nll_loss.default",
    "aten.nll_loss_nd.default",
    "aten.smooth_l1_loss.default",
];

/// What a node does, or `None` for an operator of another family.
pub(super) fn lower(
    target: &str,
    args: &Arguments<'_>,
    shape: impl Fn(ValueId) -> Vec<Extent>,
) -> Result<Option<Lowered>, String> {
    let lowered = match target {
        "aten.cross_entropy_loss.default" => (
            cross_entropy(args, &shape)?,
            all(args, &["self", "target"])?,
        ),
        "aten.mse_loss.default"
        | "aten.l1_loss.default"
        | "aten.smooth_l1_loss.default"
        | "aten.huber_loss.default"
        | "aten.nll_loss_nd.default"
        | "aten.nll_loss.default"
        | "aten.binary_cross_entropy.default"
        | "aten.binary_cross_entropy_with_logits.default" => {
            args.absent("weight")?;
            args.absent("pos_weight")?;
            let function = match target {
                "aten.mse_loss.default" => LossFunction::Squared,
                "aten.l1_loss.default" => LossFunction::Absolute,
                "aten.smooth_l1_loss.default" => LossFunction::SmoothAbsolute,
                "aten.huber_loss.default" => LossFunction::Huber,
                "aten.binary_cross_entropy.default" => LossFunction::BinaryCrossEntropy,
                "aten.binary_cross_entropy_with_logits.default" => {
                    LossFunction::BinaryCrossEntropyOfLogits
                }
                _ => LossFunction::NegativeLogLikelihood,
            };
            let summary = summary(args)?;
            let loss = Loss { function, summary };
            (Op::Loss(loss), all(args, &["self", "target"])?)
        }
        _ => return Ok(None),
    };
    Ok(Some(lowered))
}

/// How losses become one number; `torch.nn._reduction` numbers the ways.
fn summary(args: &Arguments<'_>) -> Result<Summary, String> {
    match args.int("reduction", Some(1))? {
        0 => Ok(Summary::None),
        1 => Ok(Summary::Mean),
        2 => Ok(Summary::Sum),
        other => Err(format!("its argument \"reduction\" is {other}")),
    }
}

fn cross_entropy(
    args: &Arguments<'_>,
    shape: impl Fn(ValueId) -> Vec<Extent>,
) -> Result<Op, String> {
    let smoothed = args.number_or("label_smoothing", 0.0)? > 0.0;
    if smoothed {
        args.absent("weight")?;
    }
    let summary = summary(args)?;
    let soft = shape(args.tensor("self")?) == shape(args.tensor("target")?);
    let function = match (soft, smoothed, summary) {
        (false, false, Summary::Mean) => return Ok(Op::CrossEntropy),
        (false, ..) => LossFunction::CrossEntropy { smoothed },
        (true, ..) => LossFunction::SoftCrossEntropy { smoothed },
    };
    Ok(Op::Loss(Loss { function, summary }))
}
