//! Kernels of running products and extremes.

use crate::ops::prelude::*;

/// A thread for each line along a dimension, which goes along it in order.
fn lines(
    name: &'static str,
    inputs: &[&'static str],
    outputs: &[&'static str],
    dim: usize,
    body: String,
) -> Generated {
    let form = Form::skipping(inputs.len(), [dim], body);
    Generated::of(name, inputs, outputs, form)
}

/// `cumprod`.
pub(super) fn running_product(dim: usize) -> Generated {
    let body = format!(
        "T product = 1; for (I j = 0; j < (I)x.size({dim}); ++j) {{ i[{dim}] = j; product *= (T)x.at(i); y.set_at(product, i); }}"
    );
    lines("cumprod", &["x"], &["y"], dim, body)
}

/// `cumprod_backward`: the sum of what follows from an element, by the element. A zero divides a line: what lies behind
/// the first has no gradient, and its own is of the products without it.
pub(super) fn running_product_backward(dim: usize) -> Generated {
    let body = format!(
        "const I n = (I)x.size({dim}); I zero = n; T before = 1;
    for (I j = 0; j < n && zero == n; ++j) {{ i[{dim}] = j; if (x.at(i) == 0) zero = j; else before *= (T)x.at(i); }}
    T own = 0, product = before;
    for (I j = zero; j < n; ++j) {{ i[{dim}] = j; if (j > zero) product *= (T)x.at(i); own += (T)grad.at(i) * product; grad_x.set_at(0, i); }}
    if (zero < n) {{ i[{dim}] = zero; grad_x.set_at(own, i); }}
    T sum = 0;
    for (I j = zero - 1; j >= 0; --j) {{ i[{dim}] = j; sum += (T)grad.at(i) * (T)y.at(i); grad_x.set_at(sum / (T)x.at(i), i); }}"
    );
    let inputs = ["grad", "x", "y"];
    lines("cumprod", &inputs, &["grad_x"], dim, body)
}

/// `cummax` or `cummin`: of equal elements the last, and what is no number stays.
pub(super) fn running_extreme(dim: usize, largest: bool) -> Generated {
    let body = format!(
        "T best = 0; i64 at = 0;
    for (I j = 0; j < (I)x.size({dim}); ++j) {{
        i[{dim}] = j; const T value = (T)x.at(i);
        if (j == 0 || is_nan(value) || !is_nan(best) && (largest ? value >= best : value <= best)) {{ best = value; at = j; }}
        y.set_at(best, i); places.set_at(at, i);
    }}"
    );
    lines("cummax", &["x"], &["y", "places"], dim, body).with("largest", largest)
}
