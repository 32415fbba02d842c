//! What `nll_loss` and its gradient compute.

use super::Summary;
use crate::ops::prelude::*;

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
            .with("ignored", self.ignored)
            .with("classes", self.classes)
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
            .with("x_step", steps[0])
            .with("weight_step", steps[1]);
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
pub(super) fn label_weights(ignored: i64, classes: Extent) -> Generated {
    let body = "const i64 label = t.at(i); y.set_at(label == ignored ? (T)0 : (T)weight(wrapped(label, classes)), i);";
    Generated::each("cross_entropy", ["t", "weight"], ["y"], 0, body)
        .with("ignored", ignored)
        .with("classes", classes)
}

/// `x / n`.
pub(super) fn quotient(count: Extent) -> Generated {
    Generated::map("div", ["x"], "result = x / (T)n;").with("n", count)
}
