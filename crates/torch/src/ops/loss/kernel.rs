//! What losses of pairs and their gradients compute.

use super::{LossFunction, Summary};
use crate::program::{Generated, Kernel, Number};
use crate::shape::Extent;

/// The operands of a loss beside predictions `x` and targets `t`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weights {
    /// A weight for each element.
    pub(super) weight: bool,
    /// Weights of positive examples.
    pub(super) positive: bool,
}

impl Weights {
    /// Names of the operands behind these, in the order in which they are given.
    fn after(self, first: &[&'static str]) -> Vec<&'static str> {
        let mut names = first.to_vec();
        names.extend(self.weight.then_some("weight"));
        names.extend(self.positive.then_some("positive"));
        names
    }
}

/// The loss of each pair, of `x, t (, weight) (, positive)`; `None` where a loss is none of pairs.
pub(super) fn of_pair(function: LossFunction, weights: Weights) -> Option<Kernel> {
    let body = match function {
        LossFunction::Squared => "y = square((T)x - (T)t);",
        LossFunction::SmoothAbsolute { .. } => {
            "const T z = fabs((T)x - (T)t); y = z < (T)threshold ? (T)0.5 * z * z / (T)threshold : z - (T)0.5 * (T)threshold;"
        }
        LossFunction::Huber { .. } => {
            "const T z = fabs((T)x - (T)t); y = z < (T)threshold ? (T)0.5 * z * z : (T)threshold * (z - (T)0.5 * (T)threshold);"
        }
        // `binary_cross_entropy_out_kernel` in Loss.cu.
        LossFunction::BinaryCrossEntropy => {
            "y = ((T)t - 1) * maximum(log1p(-(T)x), (T)-100) - (T)t * maximum(log((T)x), (T)-100);"
        }
        // `(1 - target) * input - log_weight * log_sigmoid(input)`.
        LossFunction::BinaryCrossEntropyOfLogits {
            positive: false, ..
        } => "y = ((T)1 - (T)t) * (T)x + log1p(exp(-fabs((T)x))) - minimum((T)x, (T)0);",
        LossFunction::BinaryCrossEntropyOfLogits { positive: true, .. } => {
            "y = ((T)1 - (T)t) * (T)x + (((T)positive - 1) * (T)t + 1) * (log1p(exp(-fabs((T)x))) - minimum((T)x, (T)0));"
        }
        LossFunction::SoftMargin => "y = log1p(exp(-(T)t * (T)x));",
        LossFunction::CrossEntropy { .. }
        | LossFunction::SoftCrossEntropy { .. }
        | LossFunction::NegativeLogLikelihood { .. }
        | LossFunction::Absolute
        | LossFunction::MultiMargin { .. }
        | LossFunction::MultilabelMargin
        | LossFunction::Ctc { .. } => return None,
    };
    let body = weighted(body, "y", weights);
    Some(named(function, weights.after(&["x", "t"]), "y", body))
}

/// The gradient of predictions, or of targets, of `grad, x, t (, weight) (, positive)`.
pub(super) fn of_pair_grad(
    function: LossFunction,
    weights: Weights,
    of_target: bool,
    (summary, count): (Summary, Extent),
) -> Option<Kernel> {
    // Losses of a difference have opposite gradients.
    let body = match (function, of_target) {
        (LossFunction::Squared, _) => "g = (T)2 * z;",
        (LossFunction::SmoothAbsolute { .. }, _) => {
            "g = z < -(T)threshold ? (T)-1 : z > (T)threshold ? (T)1 : z / (T)threshold;"
        }
        (LossFunction::Huber { .. }, _) => {
            "g = z < -(T)threshold ? -(T)threshold : z > (T)threshold ? (T)threshold : z;"
        }
        // `binary_cross_entropy_backward_out_kernel` in Loss.cu.
        (LossFunction::BinaryCrossEntropy, false) => {
            "g = ((T)x - (T)t) / maximum(((T)1 - (T)x) * (T)x, (T)1e-12);"
        }
        (LossFunction::BinaryCrossEntropy, true) => "g = log1p(-(T)x) - log((T)x);",
        (
            LossFunction::BinaryCrossEntropyOfLogits {
                positive: false, ..
            },
            false,
        ) => "g = sigmoid((T)x) - (T)t;",
        (LossFunction::BinaryCrossEntropyOfLogits { positive: true, .. }, false) => {
            "const T p = (T)positive * (T)t; g = (p + 1 - (T)t) * sigmoid((T)x) - p;"
        }
        (
            LossFunction::BinaryCrossEntropyOfLogits {
                positive: false, ..
            },
            true,
        ) => "g = -(T)x;",
        // `log_sigmoid(-input) - pos_weight * log_sigmoid(input)`.
        (LossFunction::BinaryCrossEntropyOfLogits { positive: true, .. }, true) => {
            "const T l = log1p(exp(-fabs((T)x))); g = (T)positive * (l - minimum((T)x, (T)0)) - (l + maximum((T)x, (T)0));"
        }
        (LossFunction::SoftMargin, false) => {
            "const T e = exp(-(T)t * (T)x); g = -(T)t * e / (e + 1);"
        }
        (LossFunction::SoftMargin, true) => {
            "const T e = exp(-(T)t * (T)x); g = -(T)x * e / (e + 1);"
        }
        (
            LossFunction::CrossEntropy { .. }
            | LossFunction::SoftCrossEntropy { .. }
            | LossFunction::NegativeLogLikelihood { .. }
            | LossFunction::Absolute
            | LossFunction::MultiMargin { .. }
            | LossFunction::MultilabelMargin
            | LossFunction::Ctc { .. },
            _,
        ) => return None,
    };
    let sign = if of_target {
        "(T)t - (T)x"
    } else {
        "(T)x - (T)t"
    };
    let body = weighted(body, "g", weights);
    let share = if summary == Summary::Mean {
        " / (T)n"
    } else {
        ""
    };
    let body = format!("T g; const T z = {sign}; (void)z; {body} result = g * (T)grad{share};");
    let inputs = weights.after(&["grad", "x", "t"]);
    let kernel = named(function, inputs, "result", body);
    Some(match kernel {
        Kernel::Generated(generated) => generated.with("n", Number::Length(count)).into(),
        other => other,
    })
}

fn weighted(body: &str, result: &str, weights: Weights) -> String {
    if weights.weight {
        format!("{body} {result} *= (T)weight;")
    } else {
        body.to_owned()
    }
}

fn named(
    function: LossFunction,
    inputs: Vec<&'static str>,
    output: &'static str,
    body: String,
) -> Kernel {
    let form = crate::program::Form::Map(body.into());
    let kernel = Generated::of(function.name(), inputs, [output], form);
    match function {
        LossFunction::SmoothAbsolute { beta: threshold }
        | LossFunction::Huber { delta: threshold } => {
            kernel.with("threshold", Number::Real(threshold))
        }
        _ => kernel,
    }
    .into()
}

/// `nll_loss` of targets `t`, log-probabilities `x` and weights of classes.
#[derive(Debug, Clone, Copy)]
pub struct Likelihood {
    /// Whether classes have weights.
    pub weighted: bool,
    /// The target that does not count.
    pub ignored: i64,
    /// How many classes there are.
    pub classes: Extent,
    /// How losses become one number.
    pub summary: Summary,
}

impl Likelihood {
    fn finished(self, kernel: Generated) -> Generated {
        kernel
            .with("ignored", Number::Whole(self.ignored))
            .with("classes", Number::Length(self.classes))
    }

    /// `t, x (, weight) -> loss, total_weight`, where `x` and the weights are seen at the first class, which is
    /// `x_step` and `weight_step` elements before the next. (`nll_loss_forward_reduce_cuda_kernel_2d` in NLLLoss.cu,
    /// `nll_loss2d_forward_kernel` in NLLLoss2d.cu.)
    pub fn reduced(self, rank: usize, steps: [Extent; 2]) -> Generated {
        const STATE: &str = "struct { T loss, weight; }";
        const START: &str = "s.loss = 0; s.weight = 0;";
        const MERGE: &str = "s.loss += o.loss; s.weight += o.weight;";
        let step = if self.weighted {
            "if (t != ignored) {
        const i64 c = wrapped(t, classes);
        const T w = (T)widened((weight_start + weight_at)[c * weight_step]);
        s.loss -= w * (T)widened((x_start + x_at)[c * x_step]); s.weight += w;
    }"
        } else {
            "if (t != ignored) { s.loss -= (T)widened((x_start + x_at)[wrapped(t, classes) * x_step]); s.weight += 1; }"
        };
        let finish = match self.summary {
            Summary::Mean => "loss = s.loss / s.weight; total_weight = s.weight;",
            Summary::None | Summary::Sum => "loss = s.loss; total_weight = s.weight;",
        };
        let mut inputs = vec!["t", "x"];
        inputs.extend(self.weighted.then_some("weight"));
        let dims: Vec<usize> = (0..rank - 1).collect();
        let texts = [STATE, START, step, MERGE, finish];
        let outputs = ["loss", "total_weight"];
        let kernel = Generated::reduce("nll_loss", inputs, outputs, dims, texts)
            .with("x_step", Number::Length(steps[0]))
            .with("weight_step", Number::Length(steps[1]));
        self.finished(kernel)
    }

    /// `t, x (, weight) -> loss`, a loss for each target.
    pub(super) fn each(self, rank: usize) -> Generated {
        let place: Vec<String> = (0..rank)
            .map(|d| match d {
                0 => "i[0]".to_owned(),
                1 => "c".to_owned(),
                _ => format!("i[{}]", d - 1),
            })
            .collect();
        let weight = if self.weighted {
            "(T)weight(c)"
        } else {
            "(T)1"
        };
        let body = format!(
            "const i64 label = t.at(i), c = wrapped(label, classes); loss.set_at(label == ignored ? (T)0 : -{weight} * (T)x({}), i);",
            place.join(", ")
        );
        let mut inputs = vec!["t", "x"];
        inputs.extend(self.weighted.then_some("weight"));
        self.finished(Generated::each("nll_loss", inputs, ["loss"], 0, body))
    }

    /// `grad, t (, total_weight) (, weight) -> grad_x`, zero elsewhere. The total is there for means.
    pub fn gradient(self, rank: usize) -> Generated {
        let place: Vec<String> = (0..rank)
            .filter(|d| *d != 1)
            .map(|d| format!("i[{d}]"))
            .collect();
        let place = place.join(", ");
        let gradient = match self.summary {
            Summary::None => format!("(T)grad({place})"),
            Summary::Sum => "(T)grad.flat(0)".to_owned(),
            Summary::Mean => "(T)grad.flat(0) / (T)total_weight.flat(0)".to_owned(),
        };
        let weight = if self.weighted {
            "(T)weight(i[1])"
        } else {
            "(T)1"
        };
        let body = format!(
            "const i64 label = t({place}); grad_x.set_at(label == ignored || wrapped(label, classes) != i[1] ? (T)0 : -{weight} * ({gradient}), i);"
        );
        let mut inputs = vec!["grad", "t"];
        inputs.extend((self.summary == Summary::Mean).then_some("total_weight"));
        inputs.extend(self.weighted.then_some("weight"));
        let over = inputs.len();
        self.finished(Generated::each("nll_loss", inputs, ["grad_x"], over, body))
    }
}

/// `target (, weight) -> weights`: that of each label that counts.
pub(super) fn label_weights(ignored: i64, classes: Extent) -> Kernel {
    let body = "const i64 label = t.at(i); y.set_at(label == ignored ? (T)0 : (T)weight(wrapped(label, classes)), i);";
    Generated::each("cross_entropy", ["t", "weight"], ["y"], 0, body)
        .with("ignored", Number::Whole(ignored))
        .with("classes", Number::Length(classes))
        .into()
}

/// `x / n`.
pub(super) fn quotient(count: Extent) -> Kernel {
    Generated::map("div", ["x"], "result = x / (T)n;")
        .with("n", Number::Length(count))
        .into()
}
