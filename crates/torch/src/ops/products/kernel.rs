//! What products of vectors and distances between them compute.

use crate::ops::prelude::*;

/// `a, b -> y`: the sum of products along a dimension, which are read side by side.
pub(super) fn dot(dim: usize) -> Generated {
    let texts = ["T", "s = 0;", "s += (T)a * (T)b;", "s += o;", "y = s;"];
    Generated::reduce("dot", ["a", "b"], ["y"], [dim], texts)
}

/// `a, b -> y`: products of elements, which broadcast.
pub(super) fn product() -> Generated {
    Generated::map("outer", ["a", "b"], "result = (T)a * (T)b;")
}

/// `matrix, vector (, summand) -> y`, where vectors are columns: a row of threads for each row of the matrix.
pub(super) fn matrix_vector(beta: Option<f64>) -> Generated {
    // What is not there counts for nothing, not even where it is no number.
    let (inputs, sum): (&[&'static str], _) = match beta {
        Some(_) => (
            &["a", "b", "c"],
            "s + (beta == 0 ? (T)0 : (T)beta * (T)c(0))",
        ),
        None => (&["a", "b"], "s"),
    };
    let body = format!(
        "
    T s = 0;
    for_each(j) s += (T)a(j) * (T)b(j);
    s = row_sum(s);
    if (is_first) y.set({sum}, 0);"
    );
    Generated::rows("mv", inputs, ["y"], [1], body).with("beta", beta.unwrap_or(1.0))
}

/// `a, b -> y`: the cross product along a dimension of three.
pub(super) fn cross(dim: usize) -> Generated {
    let body = "
    for_each(j) {
        const I next = (j + 1) % 3, last = (j + 2) % 3;
        y.set((T)a(next) * (T)b(last) - (T)a(last) * (T)b(next), j);
    }";
    Generated::rows("linalg_cross", ["a", "b"], ["y"], [dim], body)
}

/// The coordinates of `y[.., row, column]`, and those of the operands' rows: `at_a[.., row, k]`, `at_b[.., column, k]`.
fn places(rank: usize) -> String {
    format!(
        "const int R = {rank}; I at_a[R], at_b[R];
    for (int d = 0; d < R; ++d) at_a[d] = at_b[d] = i[d];"
    )
}

/// `a, b -> y`: distances between every two rows (`cdist_kernel_cuda_impl` in DistanceKernel.cu).
#[expect(clippy::float_cmp, reason = "orders are written in the model's code")]
pub(super) fn distances(rank: usize, norm: f64) -> Generated {
    let (step, finish) = if norm == 0.0 {
        ("s += off != 0 ? 1 : 0;", "s")
    } else if norm == 1.0 {
        ("s += off;", "s")
    } else if norm == 2.0 {
        ("s += off * off;", "sqrt(s)")
    } else if norm.is_infinite() {
        ("s = maximum(s, off);", "s")
    } else {
        ("s += pow(off, (T)norm);", "pow(s, (T)1 / (T)norm)")
    };
    let body = format!(
        "{}
    T s = 0;
    at_b[R - 2] = i[R - 1];
    for (I k = 0; k < (I)a.size(R - 1); ++k) {{
        at_a[R - 1] = at_b[R - 1] = k;
        const T off = fabs((T)a.at(at_a) - (T)b.at(at_b));
        {step}
    }}
    y.set_at({finish}, i);",
        places(rank)
    );
    Generated::each("cdist", ["a", "b"], ["y"], 2, body).with("norm", norm)
}

/// `grad, y, a, b -> grad_a`, or that of `b` where `of_second` (`cdist_backward_kernel_cuda_impl` in
/// DistanceKernel.cu, `_euclidean_dist_backward`).
#[expect(clippy::float_cmp, reason = "orders are written in the model's code")]
pub(super) fn distances_grad(rank: usize, norm: f64, of_second: bool) -> Generated {
    let share = if norm == 0.0 {
        "(T)0"
    } else if norm == 1.0 {
        "sign_of(off) * g"
    } else if norm == 2.0 {
        "far == 0 ? (T)0 : g * off / far"
    } else if norm.is_infinite() {
        "fabs(off) == far ? sign_of(off) * g : (T)0"
    } else if norm < 2.0 {
        "far == 0 || off == 0 ? (T)0 : sign_of(off) * pow(fabs(off), (T)norm - 1) * g / pow(far, (T)norm - 1)"
    } else {
        "far == 0 ? (T)0 : off * pow(fabs(off), (T)norm - 2) * g / pow(far, (T)norm - 1)"
    };
    let (own, other, row, column) = if of_second {
        ("b", "a", "k", "i[R - 2]")
    } else {
        ("a", "b", "i[R - 2]", "k")
    };
    let body = filled!(
        "kernel/distances_grad.cu",
        rank,
        own,
        other,
        row,
        column,
        share
    );
    let inputs = ["grad", "y", "a", "b"];
    Generated::each("cdist", inputs, ["result"], 4, body).with("norm", norm)
}
