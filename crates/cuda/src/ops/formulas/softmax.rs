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
    T top = -INFINITY;
    for_each(j) top = maximum(top, (T)x(j));
    top = row_max(top);
    T total = 0;
    for_each(j) total += exp((T)x(j) - top);
    total = row_sum(total);
    for_each(j) y.set(exp((T)x(j) - top) / total, j);";

const LOG_SOFTMAX: &str = "
    T top = -INFINITY;
    for_each(j) top = maximum(top, (T)x(j));
    top = row_max(top);
    T total = 0;
    for_each(j) total += exp((T)x(j) - top);
    total = log(row_sum(total));
    for_each(j) y.set((T)x(j) - top - total, j);";

const SOFTMAX_GRAD: &str = "
    T total = 0;
    for_each(j) total += (T)grad(j) * (T)y(j);
    total = row_sum(total);
    for_each(j) grad_x.set(((T)grad(j) - total) * (T)y(j), j);";

const LOG_SOFTMAX_GRAD: &str = "
    T total = 0;
    for_each(j) total += (T)grad(j);
    total = row_sum(total);
    for_each(j) grad_x.set((T)grad(j) - exp((T)y(j)) * total, j);";
