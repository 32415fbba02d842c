//! Reading losses.

use super::{Loss, LossFunction, Summary};
use crate::aten::Arguments;
use crate::ops::{Read, Reader};


/// Operators by their names.
pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    ("aten.binary_cross_entropy.default", read),
    ("aten.binary_cross_entropy_with_logits.default", read),
    ("aten.cross_entropy_loss.default", read),
    ("aten.huber_loss.default", read),
    ("aten.l1_loss.default", read),
    ("aten.mse_loss.default", read),
    ("aten.nll_loss.default", read),
    ("aten.nll_loss_nd.default", read),
    ("aten.smooth_l1_loss.default", read),
];

fn read(args: &Arguments<'_>) -> Result<Read, String> {
    let target = args.target;
    if target == "aten.cross_entropy_loss.default" {
        return Ok((cross_entropy(args)?.into(), args.all(&["self", "target"])?));
    }
    match target {
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
            Ok((loss.into(), args.all(&["self", "target"])?))
        }
        other => Err(format!("{other} is no loss")),
    }
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

fn cross_entropy(args: &Arguments<'_>) -> Result<Loss, String> {
    let smoothed = args.number_or("label_smoothing", 0.0)? > 0.0;
    if smoothed {
        args.absent("weight")?;
    }
    let summary = summary(args)?;
    let soft = args.shape(args.tensor("self")?) == args.shape(args.tensor("target")?);
    let function = if soft {
        LossFunction::SoftCrossEntropy { smoothed }
    } else {
        LossFunction::CrossEntropy { smoothed }
    };
    Ok(Loss { function, summary })
}
