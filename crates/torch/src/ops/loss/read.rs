//! Reading losses.

use super::pairs::{Paired, Pairs};
use super::{Loss, LossFunction, Summary};
use crate::ops::prelude::*;

/// Operators by their names.
pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    (
        "aten.binary_cross_entropy.default aten.binary_cross_entropy_with_logits.default aten.huber_loss.default \
         aten.mse_loss.default aten.smooth_l1_loss.default aten.soft_margin_loss.default",
        paired,
    ),
    ("aten.cross_entropy_loss.default", cross_entropy),
    ("aten.l1_loss.default", |args| {
        read(args, LossFunction::Absolute, &[])
    }),
    (
        "aten.nll_loss.default aten.nll_loss_nd.default aten.nll_loss2d.default",
        likelihood,
    ),
    ("aten.multi_margin_loss.default", |args| {
        let function = LossFunction::MultiMargin {
            power: args.number_or("p", 1.0)?,
            margin: args.number_or("margin", 1.0)?,
        };
        read(args, function, &["weight"])
    }),
    ("aten.multilabel_margin_loss.default", |args| {
        read(args, LossFunction::MultilabelMargin, &[])
    }),
    ("aten.ctc_loss.IntList aten.ctc_loss.Tensor", ctc),
];

fn read(args: &Arguments<'_>, function: LossFunction, weights: &[&str]) -> Result<Read, String> {
    let loss = Loss {
        function,
        summary: summary(args)?,
    };
    Ok((loss.into(), args.all_and(&["self", "target"], weights)?))
}

fn paired(args: &Arguments<'_>) -> Result<Read, String> {
    let name = args.target.split('.').nth(1).unwrap_or_default();
    let positive = args.has("pos_weight");
    let pairs = Pairs::of(name, positive).ok_or("it is in no table of losses")?;
    let threshold = pairs.threshold.map(|name| args.number_or(name, 1.0));
    let paired = Paired {
        pairs,
        threshold: threshold.unwrap_or(Ok(0.0))?,
        weight: args.has("weight"),
        positive,
    };
    let weights = ["weight", "pos_weight"];
    read(args, LossFunction::Paired(paired), &weights)
}

/// How losses become one number; `torch.nn._reduction` numbers the ways.
pub(in crate::ops) fn summary(args: &Arguments<'_>) -> Result<Summary, String> {
    match args.int("reduction", Some(1))? {
        0 => Ok(Summary::None),
        1 => Ok(Summary::Mean),
        2 => Ok(Summary::Sum),
        other => Err(format!("its argument \"reduction\" is {other}")),
    }
}

fn ignored(args: &Arguments<'_>) -> Result<i64, String> {
    args.int("ignore_index", Some(-100))
}

fn likelihood(args: &Arguments<'_>) -> Result<Read, String> {
    let ignored = ignored(args)?;
    read(
        args,
        LossFunction::NegativeLogLikelihood { ignored },
        &["weight"],
    )
}

fn cross_entropy(args: &Arguments<'_>) -> Result<Read, String> {
    let smoothing = args.number_or("label_smoothing", 0.0)?;
    let shape = |name: &str| args.tensor(name).map(|id: ValueId| args.shape(id));
    let function = if shape("self")? == shape("target")? {
        LossFunction::SoftCrossEntropy { smoothing }
    } else {
        let ignored = ignored(args)?;
        LossFunction::CrossEntropy { smoothing, ignored }
    };
    read(args, function, &["weight"])
}

fn ctc(args: &Arguments<'_>) -> Result<Read, String> {
    let mut operands = args.all(&["log_probs", "targets"])?;
    let names = ["input_lengths", "target_lengths"];
    // Lists whose lengths differ hold for one batch alone, and are taken for the longest there can be.
    let alike = |name: &str| {
        let list = args.lengths(name).ok()?;
        let first = list.first().copied()??.as_fixed()?;
        let is_first = |length: &Option<Extent>| *length == Some(Extent::fixed(first));
        list.iter().all(is_first).then_some(first)
    };
    let lengths = if args.target.ends_with(".Tensor") {
        operands.extend(args.all(&names)?);
        None
    } else {
        alike(names[0]).zip(alike(names[1])).map(|(a, b)| [a, b])
    };
    let loss = Loss {
        function: LossFunction::Ctc {
            lengths,
            blank: args.count("blank", Some(0))?,
            zero_infinity: args.flag("zero_infinity", false)?,
        },
        summary: summary(args)?,
    };
    Ok((loss.into(), operands))
}
