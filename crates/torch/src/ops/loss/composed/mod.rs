//! Losses that PyTorch composes of other operators (`Loss.cpp`), each in the order of its C++ statements.

mod run;

use super::{Summary, summary};
use crate::ops::prelude::*;

pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    ("aten.kl_div.default", |args| {
        let loss = Function {
            name: "kl_div",
            arguments: (args.flag("log_target", false)?, summary(args)?),
            infer: |(_, summary), x| of_elements(x, *summary),
            run: |&(log_target, summary), eager, x, _| {
                eager.composed_loss(x, |eager, x| eager.kl_div(x, log_target, summary))
            },
        };
        Ok(loss.on(args.all(&["self", "target"])?))
    }),
    ("aten.poisson_nll_loss.default", |args| {
        let flags = (args.flag("log_input", true)?, args.flag("full", false)?);
        let loss = Function {
            name: "poisson_nll_loss",
            arguments: (flags, args.number_or("eps", 1e-8)?, summary(args)?),
            infer: |(.., summary), x| of_elements(x, *summary),
            run: |&(flags, eps, summary), eager, x, _| {
                eager.composed_loss(x, |eager, x| eager.poisson_nll(x, flags, eps, summary))
            },
        };
        Ok(loss.on(args.all(&["input", "target"])?))
    }),
    ("aten.hinge_embedding_loss.default", |args| {
        let loss = Function {
            name: "hinge_embedding_loss",
            arguments: (args.number_or("margin", 1.0)?, summary(args)?),
            infer: |(_, summary), x| of_elements(x, *summary),
            run: |&(margin, summary), eager, x, _| {
                eager.composed_loss(x, |eager, x| eager.hinge_embedding(x, margin, summary))
            },
        };
        Ok(loss.on(args.all(&["self", "target"])?))
    }),
    ("aten.margin_ranking_loss.default", |args| {
        let loss = Function {
            name: "margin_ranking_loss",
            arguments: (args.number_or("margin", 0.0)?, summary(args)?),
            infer: |(_, summary), x| of_elements(x, *summary),
            run: |&(margin, summary), eager, x, _| {
                eager.composed_loss(x, |eager, x| eager.margin_ranking(x, margin, summary))
            },
        };
        Ok(loss.on(args.all(&["input1", "input2", "target"])?))
    }),
    ("aten.cosine_embedding_loss.default", |args| {
        let loss = Function {
            name: "cosine_embedding_loss",
            arguments: (args.number_or("margin", 0.0)?, summary(args)?),
            infer: |(_, summary), x| of_vectors(x, *summary),
            run: |&(margin, summary), eager, x, _| {
                eager.composed_loss(x, |eager, x| eager.cosine_embedding(x, margin, summary))
            },
        };
        Ok(loss.on(args.all(&["input1", "input2", "target"])?))
    }),
    ("aten.triplet_margin_loss.default", |args| {
        let margin = args.number_or("margin", 1.0)?;
        let norm = (args.number_or("p", 2.0)?, args.number_or("eps", 1e-6)?);
        let loss = Function {
            name: "triplet_margin_loss",
            arguments: (margin, norm, args.flag("swap", false)?, summary(args)?),
            infer: |(.., summary), x| of_vectors(x, *summary),
            run: |&(margin, norm, swap, summary), eager, x, _| {
                eager.composed_loss(x, |eager, x| {
                    eager.triplet_margin(x, margin, (norm, swap), summary)
                })
            },
        };
        Ok(loss.on(args.all(&["anchor", "positive", "negative"])?))
    }),
];

/// The loss of each element of the first two operands, which broadcast, or what becomes of all.
fn of_elements(operands: &[Type], summary: Summary) -> Result<Vec<Type>, Mismatch> {
    let each = broadcast(&operands[0].1, &operands[1].1)?;
    let floats = operands.iter().map(|(dtype, _)| *dtype);
    let dtype = floats
        .filter(|dtype| dtype.is_float())
        .reduce(DType::promote);
    let shape = match summary {
        Summary::None => each,
        Summary::Mean | Summary::Sum => Vec::new(),
    };
    Ok(vec![(dtype.unwrap_or(DType::Float32), shape)])
}

/// The same of vectors in their last dimension.
fn of_vectors(operands: &[Type], summary: Summary) -> Result<Vec<Type>, Mismatch> {
    let mut results = of_elements(operands, Summary::None)?;
    results[0].1.pop().ok_or("its operands are no vectors")?;
    if summary != Summary::None {
        results[0].1.clear();
    }
    Ok(results)
}
