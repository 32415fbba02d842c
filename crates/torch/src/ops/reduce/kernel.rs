//! What reductions and their gradients compute.

use super::ReduceDims;
use crate::ops::prelude::*;

/// A combination of the elements of one tensor.
fn reduction(name: &'static str, dims: &[usize], texts: [&'static str; 5]) -> Generated {
    Generated::reduce(name, ["x"], ["y"], dims, texts)
}

/// The mean, whatever the number of elements is. (`MeanOps` in `ReduceMomentKernel.cu`.)
pub(super) fn mean(dims: &[usize]) -> Generated {
    let texts = ["T", "s = 0;", "s += (T)x;", "s += o;", "y = s / (T)count;"];
    reduction("mean", dims, texts)
}

/// `grad / n`, of a gradient that is seen everywhere.
pub(super) fn mean_grad(count: Extent) -> Generated {
    Generated::map("mean", ["grad"], "result = grad / (T)n;").with("n", count)
}

/// The sum of what is a number.
pub(super) fn nansum(dims: &[usize]) -> Generated {
    let step = "if (!is_nan(x)) s += (T)x;";
    reduction("nansum", dims, ["T", "s = 0;", step, "s += o;", "y = s;"])
}

/// `grad * self.isnan().logical_not()`.
pub(super) fn nansum_grad() -> Generated {
    let body = "result = is_nan(x) ? (T)0 : (T)grad;";
    Generated::map("nansum", ["grad", "x"], body)
}

/// The product.
pub(super) fn prod(dims: &[usize]) -> Generated {
    let texts = ["T", "s = 1;", "s *= (T)x;", "s *= o;", "y = s;"];
    reduction("prod", dims, texts)
}

/// The product of all others, times the incoming gradient (`prod_backward`): as quotients where nothing is zero.
pub(super) fn prod_grad(dims: &[usize]) -> Generated {
    let body = include_str!("kernel/prod_grad.cu");
    Generated::rows("prod", ["x", "grad", "y"], ["grad_x"], dims, body)
}

/// How many elements are not zero, of truth values.
pub(super) fn count(dims: &[usize]) -> Generated {
    let texts = ["i64", "s = 0;", "s += x ? 1 : 0;", "s += o;", "y = (T)s;"];
    reduction("sum", dims, texts)
}

/// `self != 0`.
pub(super) fn nonzero() -> Generated {
    Generated::map("count_nonzero", ["x"], "result = x != 0;")
}

/// `self == 0`.
pub(super) fn is_zero() -> Generated {
    Generated::map("prod", ["x"], "result = x == 0;")
}

/// Whether any element is true.
pub(in crate::ops) fn any(dims: &[usize]) -> Generated {
    let (start, step, merge) = ("s = false;", "s = s || x != 0;", "s = s || o;");
    reduction("any", dims, ["bool", start, step, merge, "y = s;"])
}

/// The largest or the smallest element; what is no number is both.
pub(super) fn extreme(dims: &[usize], largest: bool) -> Generated {
    const STATE: &str = "struct { P value; bool any; }";
    const START: &str = "s.value = 0; s.any = false;";
    const FINISH: &str = "y = s.value;";
    let (name, step, merge) = if largest {
        (
            "amax",
            "s.value = s.any ? maximum(s.value, (P)x) : (P)x; s.any = true;",
            "if (o.any) { s.value = s.any ? maximum(s.value, o.value) : o.value; s.any = true; }",
        )
    } else {
        (
            "amin",
            "s.value = s.any ? minimum(s.value, (P)x) : (P)x; s.any = true;",
            "if (o.any) { s.value = s.any ? minimum(s.value, o.value) : o.value; s.any = true; }",
        )
    };
    reduction(name, dims, [STATE, START, step, merge, FINISH])
}

/// Whether elements are equal to the result; what is no number is equal to a result that is none where `missing` counts.
pub(super) fn equal_to_extreme(missing: bool) -> Generated {
    let body = "result = x == y || missing && is_nan(x) && is_nan(y);";
    Generated::map("amax", ["x", "y"], body).with("missing", missing)
}

/// The incoming gradient goes evenly to all elements that count (`scale_grad_by_count`, `evenly_distribute_backward`).
pub(super) fn shared_evenly() -> Generated {
    let body = "result = equal ? (T)grad / (T)count : (T)0;";
    Generated::map("amax", ["grad", "equal", "count"], body)
}

/// Variance or standard deviation, and the mean where it is a result of its own, as `WelfordOps` in
/// `SharedReduceOps.h`.
pub(super) fn spread(dims: &[usize], root: bool, with_mean: bool, correction: f64) -> Generated {
    const STATE: &str = "struct { T mean, squares; i64 n; }";
    const START: &str = "s.mean = 0; s.squares = 0; s.n = 0;";
    const STEP: &str = "
    s.n += 1;
    const T off = (T)x - s.mean;
    s.mean += off / (T)s.n;
    s.squares += off * ((T)x - s.mean);";
    const MERGE: &str = "
    if (o.n > 0) {
        const T off = o.mean - s.mean, n = (T)(s.n + o.n);
        s.mean += off * ((T)o.n / n);
        s.squares += o.squares + off * off * (T)s.n * ((T)o.n / n);
        s.n += o.n;
    }";
    let (name, finish) = match (root, with_mean) {
        (false, false) => (
            "var",
            "y = s.squares / maximum((T)s.n - (T)correction, (T)0);",
        ),
        (true, false) => (
            "std",
            "y = sqrt(s.squares / maximum((T)s.n - (T)correction, (T)0));",
        ),
        (false, true) => (
            "var_mean",
            "y = s.squares / maximum((T)s.n - (T)correction, (T)0); mean = s.mean;",
        ),
        (true, true) => (
            "std_mean",
            "y = sqrt(s.squares / maximum((T)s.n - (T)correction, (T)0)); mean = s.mean;",
        ),
    };
    let outputs: &[&'static str] = if with_mean { &["y", "mean"] } else { &["y"] };
    Generated::reduce(
        name,
        ["x"],
        outputs,
        dims,
        [STATE, START, STEP, MERGE, finish],
    )
    .with("correction", correction)
}

/// `std_backward`: `(grad / (result * 2)).masked_fill_(result == 0, 0)`.
pub(super) fn of_variance() -> Generated {
    let body = "result = y == 0 ? (T)0 : (T)grad / ((T)y * 2);";
    Generated::map("std", ["grad", "y"], body)
}

/// `var_backward`: `(2 / (n - correction)) * grad * (self - self.mean(dim))`.
pub(super) fn variance_grad(count: Extent, correction: f64) -> Generated {
    let body = "result = (T)2 / ((T)n - (T)correction) * (T)grad * ((T)x - (T)mean);";
    Generated::map("var", ["grad", "x", "mean"], body)
        .with("n", count)
        .with("correction", correction)
}

/// `logsumexp`, of the largest element so far and the sum of exponentials without it.
pub(super) fn logsumexp(dims: &[usize]) -> Generated {
    const STATE: &str = "struct { T top, total; }";
    const START: &str = "s.top = -INFINITY; s.total = 0;";
    const STEP: &str = "
    const T value = (T)x;
    if (value > s.top) { s.total = s.total * (s.top == -INFINITY ? (T)0 : exp(s.top - value)) + 1; s.top = value; }
    else s.total += value == s.top ? (T)1 : exp(value - s.top);";
    const MERGE: &str = "
    if (o.top > s.top) { s.total = s.total * (s.top == -INFINITY ? (T)0 : exp(s.top - o.top)) + o.total; s.top = o.top; }
    else s.total += o.top == s.top ? o.total : o.total * (o.top == -INFINITY ? (T)0 : exp(o.top - s.top));";
    // Nothing but minus infinity is the logarithm of zero, however often it was counted.
    const FINISH: &str = "y = s.top + log(s.total);";
    reduction("logsumexp", dims, [STATE, START, STEP, MERGE, FINISH])
}

/// `grad * (self - result).exp()`.
pub(super) fn logsumexp_grad() -> Generated {
    let body = "result = (T)grad * exp((T)x - (T)y);";
    Generated::map("logsumexp", ["grad", "x", "y"], body)
}

/// The norm of an order (`NormOps` and its special cases in `SharedReduceOps.h`).
#[expect(clippy::float_cmp, reason = "orders are written in the model's code")]
pub(super) fn norm(dims: &[usize], order: f64) -> Generated {
    let (start, step, merge, finish) = if order == 0.0 {
        ("s = 0;", "s += x != 0 ? 1 : 0;", "s += o;", "y = s;")
    } else if order == 1.0 {
        ("s = 0;", "s += fabs((T)x);", "s += o;", "y = s;")
    } else if order == 2.0 {
        ("s = 0;", "s += square((T)x);", "s += o;", "y = sqrt(s);")
    } else if order == f64::INFINITY {
        let step = "s = maximum(s, fabs((T)x));";
        ("s = 0;", step, "s = maximum(s, o);", "y = s;")
    } else if order == f64::NEG_INFINITY {
        let step = "s = minimum(s, fabs((T)x));";
        ("s = INFINITY;", step, "s = minimum(s, o);", "y = s;")
    } else {
        let (step, finish) = (
            "s += pow(fabs((T)x), (T)order);",
            "y = pow(s, (T)1 / (T)order);",
        );
        ("s = 0;", step, "s += o;", finish)
    };
    let texts = ["T", start, step, merge, finish];
    reduction("linalg_vector_norm", dims, texts).with("order", order)
}

/// Whether elements are as large as the norm of an infinite order, or no numbers.
pub(super) fn equal_to_norm() -> Generated {
    let body = "result = fabs((P)x) == norm || is_nan(x) && is_nan(norm);";
    Generated::map("linalg_vector_norm", ["x", "norm"], body)
}

/// `self.sgn() * ((grad / mask.sum(dim)) * mask)`.
pub(super) fn norm_grad_of_largest() -> Generated {
    Generated::map(
        "linalg_vector_norm",
        ["grad", "x", "largest", "count"],
        "result = largest ? sign_of((T)x) * ((T)grad / (T)count) : (T)0;",
    )
}

/// `linalg_vector_norm_backward` in `FunctionsManual.cpp`, of a finite order other than zero.
#[expect(clippy::float_cmp, reason = "orders are written in the model's code")]
pub(super) fn norm_grad(order: f64) -> Generated {
    let body = if order == 1.0 {
        "result = sign_of((T)x) * (T)grad;"
    } else if order == 2.0 {
        "result = norm == 0 ? (T)0 : (T)grad * ((T)x / (T)norm);"
    } else if order < 1.0 {
        "result = x == 0 ? (T)0 : sign_of((T)x) * pow(fabs((T)x), (T)order - 1) * (T)grad * pow((T)norm, (T)1 - (T)order);"
    } else if order < 2.0 {
        "result = norm == 0 ? (T)0 : sign_of((T)x) * pow(fabs((T)x), (T)order - 1) * ((T)grad / pow((T)norm, (T)order - 1));"
    } else {
        "result = norm == 0 ? (T)0 : (T)x * pow(fabs((T)x), (T)order - 2) * ((T)grad / pow((T)norm, (T)order - 1));"
    };
    Generated::map("linalg_vector_norm", ["grad", "x", "norm"], body).with("order", order)
}

impl ReduceDims<'_> {
    /// How many elements become one, of a tensor of this shape.
    pub(super) fn count(&self, shape: &[Extent]) -> Extent {
        let lengths: Vec<Extent> = self.dims.iter().map(|dim| shape[*dim]).collect();
        numel(&lengths)
    }
}
