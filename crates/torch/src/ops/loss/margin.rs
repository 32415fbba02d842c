//! What margin losses and their gradients compute: a thread goes along the classes of an example.

use super::{LossFunction, Summary};
use crate::ops::prelude::*;

/// The coordinates of class `j` of an example and of class `k`, and those of its loss. Examples are a batch, or one.
fn places(rank: usize) -> [&'static str; 3] {
    match rank {
        0 => ["j", "k", ""],
        _ => ["i[0], j", "i[0], k", ", i[0]"],
    }
}

/// The label of an example.
fn label(rank: usize) -> &'static str {
    match rank {
        0 => "t.flat(0)",
        _ => "t(i[0])",
    }
}

fn finish(kernel: Generated, function: LossFunction) -> Generated {
    match function {
        LossFunction::MultiMargin { power, margin } => {
            kernel.with("power", power).with("margin", margin)
        }
        _ => kernel,
    }
}

/// `x, t (, weight) -> loss (, is_target)`, where examples have so many dimensions.
pub(super) fn losses(function: LossFunction, rank: usize, weighted: bool) -> Generated {
    let [class, k, loss] = places(rank);
    let (mut inputs, mut outputs) = (vec!["x", "t"], vec!["loss"]);
    let body = if let LossFunction::MultilabelMargin = function {
        // `multilabel_margin_loss_forward_kernel`: targets end at the first negative one.
        outputs.push("is_target");
        let of_label = class.replace('j', &format!("wrapped(t({k}), n)"));
        filled!("margin/multilabel.cu", rank, class, k, of_label, loss)
    } else {
        inputs.extend(weighted.then_some("weight"));
        let weight = if weighted { " * (T)weight(label)" } else { "" };
        let (label, own) = (label(rank), class.replace('j', "label"));
        filled!("margin/multi.cu", rank, label, own, class, weight, loss)
    };
    let form = Form::skipping(0, [rank], body);
    finish(
        Generated::of(function.name(), inputs, outputs, form),
        function,
    )
}

/// The sum or the mean of all examples' losses.
pub(super) fn total(rank: usize, is_mean: bool) -> Generated {
    let finish = if is_mean {
        "y = s / (T)count;"
    } else {
        "y = s;"
    };
    let dims: Vec<usize> = (0..rank).collect();
    let texts = ["T", "s = 0;", "s += (T)x;", "s += o;", finish];
    Generated::reduce("multi_margin_loss", ["x"], ["y"], dims, texts)
}

/// `grad, x, t (, weight or is_target) -> grad_x`.
pub(super) fn gradient(
    (function, summary): (LossFunction, Summary),
    rank: usize,
    weighted: bool,
    examples: Extent,
) -> Generated {
    let [class, k, _] = places(rank);
    let incoming = match summary {
        Summary::None if rank > 0 => "(T)grad(i[0])",
        Summary::None | Summary::Sum => "(T)grad.flat(0)",
        Summary::Mean => "(T)grad.flat(0) / (T)examples",
    };
    let mut inputs = vec!["grad", "x", "t"];
    let body = if let LossFunction::MultilabelMargin = function {
        inputs.push("is_target");
        let of_label = class.replace('j', &format!("wrapped(t({k}), n)"));
        filled!(
            "margin/multilabel_gradient.cu",
            rank,
            incoming,
            class,
            k,
            of_label
        )
    } else {
        inputs.extend(weighted.then_some("weight"));
        let weight = if weighted { " * (T)weight(label)" } else { "" };
        let (label, own) = (label(rank), class.replace('j', "label"));
        filled!(
            "margin/multi_gradient.cu",
            rank,
            label,
            own,
            incoming,
            weight,
            class
        )
    };
    let form = Form::skipping(1, [rank], body);
    let kernel = Generated::of(function.name(), inputs, ["grad_x"], form);
    finish(kernel, function).with("examples", examples)
}
