//! Softmax and its logarithm.

use super::rows;
use crate::program::Generated;

pub(super) fn forward(dim: usize, log: bool) -> Generated {
    let body = if log { LOG_SOFTMAX } else { SOFTMAX };
    rows("softmax", &["x"], &["y"], vec![dim], body)
}

pub(super) fn gradient(dim: usize, log: bool) -> Generated {
    let body = if log { LOG_SOFTMAX_GRAD } else { SOFTMAX_GRAD };
    rows("softmax", &["grad", "y"], &["grad_x"], vec![dim], body)
}

const SOFTMAX: &str = "
    float top = -INFINITY;
    for_each(j) top = maximum(top, (float)x(j));
    top = row_max(top);
    float total = 0;
    for_each(j) total += exp((float)x(j) - top);
    total = row_sum(total);
    for_each(j) y.set(exp((float)x(j) - top) / total, j);";

const LOG_SOFTMAX: &str = "
    float top = -INFINITY;
    for_each(j) top = maximum(top, (float)x(j));
    top = row_max(top);
    float total = 0;
    for_each(j) total += exp((float)x(j) - top);
    total = log(row_sum(total));
    for_each(j) y.set((float)x(j) - top - total, j);";

const SOFTMAX_GRAD: &str = "
    float total = 0;
    for_each(j) total += (float)grad(j) * (float)y(j);
    total = row_sum(total);
    for_each(j) grad_x.set(((float)grad(j) - total) * (float)y(j), j);";

const LOG_SOFTMAX_GRAD: &str = "
    float total = 0;
    for_each(j) total += (float)grad(j);
    total = row_sum(total);
    for_each(j) grad_x.set((float)grad(j) - exp((float)y(j)) * total, j);";
