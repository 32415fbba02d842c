//! What products of matrices compute beside the product itself.

use crate::ops::prelude::*;

/// `c, y -> y`: `beta * c + alpha * y`.
pub(super) fn scaled_sum([beta, alpha]: [f64; 2]) -> Generated {
    // What counts for nothing may be no number.
    let body = "result = (beta == 0 ? (T)0 : (T)beta * (T)c) + (T)alpha * (T)y;";
    Generated::map("baddbmm", ["c", "y"], body)
        .with("beta", beta)
        .with("alpha", alpha)
}

/// The group of a row: the first that ends behind it, or one more than there are.
const GROUP_OF_ROW: &str = "
    I group = 0;
    for (I above = (I)ends.size(0); group < above;) { const I middle = (group + above) / 2; if (ends(middle) > i[0]) above = middle; else group = middle + 1; }
    const bool is_any = group < (I)ends.size(0);";

/// `x, weights, ends -> y`: each row times the matrix of its group.
pub(super) fn grouped() -> Generated {
    let body = format!(
        "{GROUP_OF_ROW}
    T s = 0;
    if (is_any) for (I k = 0; k < (I)x.size(1); ++k) s += (T)x(i[0], k) * (T)w(group, k, i[1]);
    y.set(s, i[0], i[1]);"
    );
    Generated::each("grouped_mm", ["x", "w", "ends"], ["y"], 3, body)
}

/// `grad, weights, ends -> grad_x`.
pub(super) fn grouped_grad() -> Generated {
    let body = format!(
        "{GROUP_OF_ROW}
    T s = 0;
    if (is_any) for (I k = 0; k < (I)grad.size(1); ++k) s += (T)grad(i[0], k) * (T)w(group, i[1], k);
    grad_x.set(s, i[0], i[1]);"
    );
    let inputs = ["grad", "w", "ends"];
    Generated::each("grouped_mm", inputs, ["grad_x"], 3, body)
}

/// `grad, x, ends -> grad_weights`.
pub(super) fn grouped_weight_grad() -> Generated {
    let body = "
    T s = 0;
    const i64 rows = x.size(0), end = ends(i[0]);
    for (i64 r = i[0] > 0 ? maximum(ends(i[0] - 1), (i64)0) : 0; r < end && r < rows; ++r) s += (T)x(r, i[1]) * (T)grad(r, i[2]);
    grad_w.set(s, i[0], i[1], i[2]);";
    let inputs = ["grad", "x", "ends"];
    Generated::each("grouped_mm", inputs, ["grad_w"], 3, body)
}
