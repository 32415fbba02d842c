//! What normalizations and their gradients compute.
//!
//! All are of one kind: elements are normalized along some dimensions, by statistics that broadcast to the operand, and
//! get a factor and a summand that broadcast too. Sums are made in two passes, of differences from the mean.

use crate::ops::prelude::*;

/// What a normalization has, and along which dimensions of its operand it goes.
#[derive(Debug, Clone, Copy)]
pub struct Normalization<'a> {
    /// The name a PyTorch user knows it by.
    pub name: &'static str,
    /// Along which dimensions elements are normalized.
    pub dims: &'a [usize],
    /// Whether the mean is taken away; if not, elements are divided by the root of their mean square.
    pub centred: bool,
    /// Whether there is a factor.
    pub weight: bool,
    /// Whether there is a summand.
    pub bias: bool,
}

impl<'a> Normalization<'a> {
    /// One that takes the mean away, with a factor and a summand where these say so.
    pub fn of(name: &'static str, dims: &'a [usize], [weight, bias]: [bool; 2]) -> Self {
        Normalization {
            name,
            dims,
            centred: true,
            weight,
            bias,
        }
    }

    /// `x (, weight) (, bias) -> y (, mean), inverse_std`. With `running`, its share of new statistics, also
    /// `running_mean, running_var`, which are updated.
    pub fn forward(self, eps: f64, running: Option<f64>) -> Generated {
        let statistics = if self.centred {
            "
    T total = 0, squares = 0;
    for_each(j) total += (T)x(j);
    const T m = row_sum(total) / (T)n;
    for_each(j) squares += square((T)x(j) - m);
    squares = row_sum(squares);"
        } else {
            "
    T squares = 0;
    for_each(j) squares += square((T)x(j));
    const T m = 0;
    squares = row_sum(squares);"
        };
        let factor = if self.weight { " * (T)weight(j)" } else { "" };
        let summand = if self.bias { " + (T)bias(j)" } else { "" };
        let mean = if self.centred { "mean.set(m, 0); " } else { "" };
        // Running variances are unbiased.
        let update = if running.is_some() {
            "
        running_mean.set(((T)1 - (T)momentum) * (T)running_mean(0) + (T)momentum * m, 0);
        running_var.set(((T)1 - (T)momentum) * (T)running_var(0) + (T)momentum * (squares / (T)(n - 1)), 0);"
        } else {
            ""
        };
        let body = format!(
            "{statistics}
    const T r = rsqrt(squares / (T)n + (T)eps);
    for_each(j) y.set(((T)x(j) - m) * r{factor}{summand}, j);
    if (is_first) {{ {mean}inverse_std.set(r, 0);{update} }}"
        );
        let mut inputs = vec!["x"];
        inputs.extend(self.weight.then_some("weight"));
        inputs.extend(self.bias.then_some("bias"));
        let mut outputs = vec!["y"];
        outputs.extend(self.centred.then_some("mean"));
        outputs.push("inverse_std");
        if running.is_some() {
            outputs.extend(["running_mean", "running_var"]);
        }
        Generated::rows(self.name, inputs, outputs, self.dims, body)
            .with("eps", eps)
            .with("momentum", running.unwrap_or(0.0))
    }

    fn inputs_of_gradients(self) -> Vec<&'static str> {
        let mut inputs = vec!["grad", "x"];
        inputs.extend(self.centred.then_some("mean"));
        inputs.push("inverse_std");
        inputs
    }

    /// `grad, x (, mean), inverse_std (, weight) -> grad_x`.
    pub fn gradient(self) -> Generated {
        let factor = if self.weight { " * (T)weight(j)" } else { "" };
        let (mean, off) = if self.centred {
            ("(T)mean(0)", "a + ")
        } else {
            ("(T)0", "")
        };
        let body = format!(
            "
    const T m = {mean}, r = (T)inverse_std(0);
    T a = 0, b = 0;
    for_each(j) {{ const T g = (T)grad(j){factor}; a += g; b += g * ((T)x(j) - m) * r; }}
    a = row_sum(a);
    b = row_sum(b);
    for_each(j) grad_x.set(r * ((T)grad(j){factor} - ({off}((T)x(j) - m) * r * b) / (T)n), j);"
        );
        let mut inputs = self.inputs_of_gradients();
        inputs.extend(self.weight.then_some("weight"));
        Generated::rows(self.name, inputs, ["grad_x"], self.dims, body)
    }

    /// `grad, x (, mean), inverse_std -> grad_weight (, grad_bias)` over all other dimensions than the parameters have.
    pub fn weight_gradient(self, others: &[usize], with_bias: bool) -> Generated {
        let step = if self.centred {
            "s.of_weight += (T)grad * ((T)x - (T)mean) * (T)inverse_std; s.of_bias += (T)grad;"
        } else {
            "s.of_weight += (T)grad * (T)x * (T)inverse_std;"
        };
        let texts = [
            "struct { T of_weight, of_bias; }",
            "s.of_weight = 0; s.of_bias = 0;",
            step,
            "s.of_weight += o.of_weight; s.of_bias += o.of_bias;",
            if with_bias {
                "grad_weight = s.of_weight; grad_bias = s.of_bias;"
            } else {
                "grad_weight = s.of_weight;"
            },
        ];
        let mut outputs = vec!["grad_weight"];
        outputs.extend(with_bias.then_some("grad_bias"));
        Generated::reduce(
            self.name,
            self.inputs_of_gradients(),
            outputs,
            others,
            texts,
        )
    }
}

/// `x, running_mean, running_var, weight, bias -> y`, elements one by one.
pub fn by_running_statistics(eps: f64) -> Generated {
    let body = "result = ((T)x - (T)mean) * rsqrt((T)var + (T)eps) * (T)weight + (T)bias;";
    Generated::map("batch_norm", ["x", "mean", "var", "weight", "bias"], body).with("eps", eps)
}

/// `grad, running_var, weight -> grad_x`: the statistics are constants.
pub fn by_running_statistics_grad(eps: f64) -> Generated {
    let body = "result = (T)grad * (T)weight * rsqrt((T)var + (T)eps);";
    Generated::map("batch_norm", ["grad", "var", "weight"], body).with("eps", eps)
}

/// `grad, x, running_mean, running_var -> grad_weight, grad_bias` over all dimensions but the channels.
pub fn by_running_statistics_weight_grad(eps: f64, others: &[usize]) -> Generated {
    let texts = [
        "struct { T of_weight, of_bias; }",
        "s.of_weight = 0; s.of_bias = 0;",
        "s.of_weight += (T)grad * ((T)x - (T)mean) * rsqrt((T)var + (T)eps); s.of_bias += (T)grad;",
        "s.of_weight += o.of_weight; s.of_bias += o.of_bias;",
        "grad_weight = s.of_weight; grad_bias = s.of_bias;",
    ];
    let inputs = ["grad", "x", "mean", "var"];
    let outputs = ["grad_weight", "grad_bias"];
    Generated::reduce("batch_norm", inputs, outputs, others, texts).with("eps", eps)
}
