//! Losses of pairs of elements: a row each.

use super::Summary;
use crate::ops::prelude::*;

/// A loss of pairs of predictions `x` and targets `t`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pairs {
    /// The name a PyTorch user knows it by.
    pub(super) name: &'static str,
    /// The argument that is `threshold` in formulas, and its default.
    #[serde(skip)]
    pub(super) threshold: Option<(&'static str, f64)>,
    /// What makes `y`.
    #[serde(skip)]
    loss: &'static str,
    /// What makes the gradient `g` of predictions, and of targets; `z` is the difference from what it is not of.
    #[serde(skip)]
    gradients: [&'static str; 2],
    /// What is there beside the result.
    #[serde(skip)]
    pub(super) memory: Memory,
}

/// What a loss takes beside its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// All losses.
    Plain,
    /// All losses, and a result that starts as large as they are and shows one number in the end; its memory stays as it was
    /// (`TensorIterator`s whose output is resized, `Loss.cpp`).
    ShownNumber,
    /// The losses are the result that shows one number in the end.
    OwnNumber,
    /// The same; its gradient is of several statements.
    Statements,
    /// Likelihoods, also in gradients.
    Likelihoods,
}

const fn row(name: &'static str, loss: &'static str, gradients: [&'static str; 2]) -> Pairs {
    Pairs {
        name,
        threshold: None,
        loss,
        gradients,
        memory: Memory::Plain,
    }
}

/// Losses of a difference, which have opposite gradients.
const fn of_difference(name: &'static str, loss: &'static str, gradient: &'static str) -> Pairs {
    row(name, loss, [gradient; 2])
}

impl Pairs {
    const fn memory(self, memory: Memory) -> Pairs {
        Pairs { memory, ..self }
    }

    const fn threshold(self, argument: &'static str) -> Pairs {
        let threshold = Some((argument, 1.0));
        Pairs { threshold, ..self }
    }
}

#[rustfmt::skip] // A formula a line.
pub(super) const SQUARED: Pairs = of_difference(
    "mse_loss",
    "y = square((T)x - (T)t);",
    "g = (T)2 * z;",
).memory(Memory::ShownNumber);

#[rustfmt::skip]
pub(super) const SMOOTH_ABSOLUTE: Pairs = of_difference(
    "smooth_l1_loss",
    "const T z = fabs((T)x - (T)t); y = z < (T)threshold ? (T)0.5 * z * z / (T)threshold : z - (T)0.5 * (T)threshold;",
    "g = z < -(T)threshold ? (T)-1 : z > (T)threshold ? (T)1 : z / (T)threshold;",
).threshold("beta").memory(Memory::ShownNumber);

#[rustfmt::skip]
pub(super) const HUBER: Pairs = of_difference(
    "huber_loss",
    "const T z = fabs((T)x - (T)t); y = z < (T)threshold ? (T)0.5 * z * z : (T)threshold * (z - (T)0.5 * (T)threshold);",
    "g = z < -(T)threshold ? -(T)threshold : z > (T)threshold ? (T)threshold : z;",
).threshold("delta");

/// `binary_cross_entropy_out_kernel` and `binary_cross_entropy_backward_out_kernel` in Loss.cu.
#[rustfmt::skip]
pub(super) const BINARY_CROSS_ENTROPY: Pairs = row(
    "binary_cross_entropy",
    "y = ((T)t - 1) * maximum(log1p(-(T)x), (T)-100) - (T)t * maximum(log((T)x), (T)-100);",
    ["g = ((T)x - (T)t) / maximum(((T)1 - (T)x) * (T)x, (T)1e-12);", "g = log1p(-(T)x) - log((T)x);"],
).memory(Memory::OwnNumber);

/// `(1 - target) * input - log_weight * log_sigmoid(input)`.
#[rustfmt::skip]
pub(super) const BINARY_CROSS_ENTROPY_OF_LOGITS: Pairs = row(
    "binary_cross_entropy_with_logits",
    "y = ((T)1 - (T)t) * (T)x + log1p(exp(-fabs((T)x))) - minimum((T)x, (T)0);",
    ["g = sigmoid((T)x) - (T)t;", "g = -(T)x;"],
).memory(Memory::Likelihoods);

/// The same with weights of positive examples: the gradient of targets is `log_sigmoid(-input) - pos_weight * log_sigmoid(input)`.
#[rustfmt::skip]
pub(super) const WEIGHTED_BINARY_CROSS_ENTROPY_OF_LOGITS: Pairs = row(
    "binary_cross_entropy_with_logits",
    "y = ((T)1 - (T)t) * (T)x + (((T)positive - 1) * (T)t + 1) * (log1p(exp(-fabs((T)x))) - minimum((T)x, (T)0));",
    [
        "const T p = (T)positive * (T)t; g = (p + 1 - (T)t) * sigmoid((T)x) - p;",
        "const T l = log1p(exp(-fabs((T)x))); g = (T)positive * (l - minimum((T)x, (T)0)) - (l + maximum((T)x, (T)0));",
    ],
).memory(Memory::Likelihoods);

#[rustfmt::skip]
pub(super) const SOFT_MARGIN: Pairs = row(
    "soft_margin_loss",
    "y = log1p(exp(-(T)t * (T)x));",
    ["const T e = exp(-(T)t * (T)x); g = -(T)t * e / (e + 1);", "const T e = exp(-(T)t * (T)x); g = -(T)x * e / (e + 1);"],
).memory(Memory::Statements);

/// A loss of pairs with its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Paired {
    /// Which one.
    pub(super) pairs: Pairs,
    /// Where it turns from squares to magnitudes.
    pub(super) threshold: f64,
    /// Whether the third operand is a weight for each element.
    pub(super) weight: bool,
    /// Whether the last operand is the weight of positive examples.
    pub(super) positive: bool,
}

impl Paired {
    /// The loss of each pair, of `x, t (, weight) (, positive)`.
    pub(super) fn loss(&self) -> Generated {
        let body = self.weighted(self.pairs.loss, "y");
        self.kernel(&["x", "t"], "y", body)
    }

    /// The gradient of predictions, or of targets, of `grad, x, t (, weight) (, positive)`.
    pub(super) fn gradient(
        &self,
        of_target: bool,
        (summary, count): (Summary, Extent),
    ) -> Generated {
        let difference = if of_target {
            "(T)t - (T)x"
        } else {
            "(T)x - (T)t"
        };
        let body = self.weighted(self.pairs.gradients[usize::from(of_target)], "g");
        let share = if summary == Summary::Mean {
            " / (T)n"
        } else {
            ""
        };
        let body =
            format!("T g; const T z = {difference}; (void)z; {body} result = g * (T)grad{share};");
        let kernel = self.kernel(&["grad", "x", "t"], "result", body);
        kernel.with("n", count)
    }

    fn weighted(&self, body: &str, result: &str) -> String {
        if self.weight {
            format!("{body} {result} *= (T)weight;")
        } else {
            body.to_owned()
        }
    }

    fn kernel(&self, first: &[&'static str], output: &'static str, body: String) -> Generated {
        let mut inputs = first.to_vec();
        inputs.extend(self.weight.then_some("weight"));
        inputs.extend(self.positive.then_some("positive"));
        let kernel = Generated::of(self.pairs.name, inputs, [output], Form::Map(body.into()));
        match self.pairs.threshold {
            Some(_) => kernel.with("threshold", self.threshold),
            None => kernel,
        }
    }
}
