//! Losses of pairs of elements: a row each.

use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Summary;
use crate::ops::prelude::*;

/// A loss of pairs of predictions `x` and targets `t`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pairs {
    /// The name a PyTorch user knows it by.
    pub(super) name: &'static str,
    /// Where it is from, for who reads the table.
    #[serde(default, rename = "note", skip_serializing)]
    _note: IgnoredAny,
    /// Whether it is the one with weights of positive examples.
    #[serde(default, skip_serializing)]
    positive: bool,
    /// The argument that is `threshold` in formulas; its default is 1.
    #[serde(skip_serializing)]
    pub(super) threshold: Option<&'static str>,
    /// What makes `y`.
    #[serde(skip_serializing)]
    loss: &'static str,
    /// What makes the gradient `g` of predictions, and of targets; `z` is the difference from what it is not of.
    #[serde(borrow, skip_serializing)]
    gradients: [&'static str; 2],
    /// What is there beside the result.
    #[serde(default, skip_serializing)]
    pub(super) memory: Memory,
}

static TABLE: LazyLock<Vec<Pairs>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("pairs.json")).expect("a test reads the table")
});

/// What a loss takes beside its result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Memory {
    /// All losses.
    #[default]
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

/// A loss of pairs with its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Paired {
    /// Which one.
    pub(super) pairs: &'static Pairs,
    /// Where it turns from squares to magnitudes.
    pub(super) threshold: f64,
    /// Whether the third operand is a weight for each element.
    pub(super) weight: bool,
    /// Whether the last operand is the weight of positive examples.
    pub(super) positive: bool,
}

impl Pairs {
    /// The loss of this name, with weights of positive examples or without.
    pub(super) fn of(name: &str, positive: bool) -> Option<&'static Pairs> {
        let mut rows = TABLE.iter();
        rows.find(|row| (row.name, row.positive) == (name, positive))
    }
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
