//! Kernels along a dimension: sorts, choices, running sums; and triangles of matrices.

use crate::ops::prelude::*;
use crate::program::Text;

fn groups(
    name: &'static str,
    dim: usize,
    outputs: impl Into<Vec<&'static str>>,
    body: impl Into<Text>,
) -> Generated {
    let form = Form::groups(0, [dim], body);
    Generated::of(name, ["x"], outputs, form)
}

/// A dimension as text and as an operand has it: a number has one element along it.
fn along(rank: usize, dim: usize) -> (String, String) {
    match rank {
        0 => ("1".into(), "0".into()),
        _ => (format!("x.size({dim})"), dim.to_string()),
    }
}

/// `sort`: values and places, equal elements in the order in which they were. Places are sorted in their own memory, by a
/// bitonic network that is as long as it must be: what lies behind the end is the largest.
pub(super) fn sorted(dim: usize, rank: usize, descending: bool) -> Generated {
    let (n, d) = along(rank, dim);
    let body = filled!("ordering/sorted.cu", n, d);
    groups("sort", dim, ["values", "places"], at_rank(body, rank)).with("descending", descending)
}

/// `topk`: the largest elements, one after the other, equal ones in the order in which they were; of short rows with many
/// chosen each element's rank is counted instead.
pub(super) fn top(dim: usize, rank: usize, largest: bool) -> Generated {
    let (n, d) = along(rank, dim);
    let (count, _) = along(rank, dim);
    let count = count.replace("x.", "values.");
    let body = filled!("ordering/top.cu", n, count, d);
    groups("topk", dim, ["values", "places"], at_rank(body, rank)).with("largest", largest)
}

/// A number's coordinates are none: those of its only element are never asked for.
fn at_rank(body: String, rank: usize) -> String {
    if rank == 0 {
        body.replace("i[0] = ", "i[0] = 0 * ")
    } else {
        body
    }
}

/// `cumsum`, or its gradient: the sum of what comes after an element and of itself.
pub(super) fn running_sum(dim: usize, rank: usize, reversed: bool) -> Generated {
    let body = include_str!("ordering/running_sum.cu");
    let dims = if rank == 0 { Vec::new() } else { vec![dim] };
    let form = Form::Rows {
        dims,
        body: body.into(),
    };
    Generated::of("cumsum", ["x"], ["y"], form).with("reversed", reversed)
}

/// `tril` or `triu`.
pub(super) fn triangle(upper: bool, diagonal: i64, rank: usize) -> Generated {
    let body = format!(
        "const i64 above = (i64)i[{}] - (i64)i[{}];
    y.set_at(is_upper ? above >= diagonal ? x.at(i) : 0 : above <= diagonal ? x.at(i) : 0, i);",
        rank.saturating_sub(1),
        rank.saturating_sub(2)
    );
    Generated::each("tril", ["x"], ["y"], 1, body)
        .with("is_upper", upper)
        .with("diagonal", diagonal)
}

/// `one_hot` of a tensor of this rank.
pub(super) fn one_hot(rank: usize) -> Generated {
    Generated::each(
        "one_hot",
        ["x"],
        ["y"],
        1,
        format!("y.set_at(x.at(i) == (i64)i[{rank}], i);"),
    )
}

/// `searchsorted` in a sequence with so many dimensions: the first place whose element is not smaller, or is larger.
pub(super) fn search(rank: usize, right: bool) -> Generated {
    let last = rank.saturating_sub(1);
    let size = rank.max(1);
    let body = filled!("ordering/search.cu", size, last);
    Generated::each("searchsorted", ["sorted", "values"], ["places"], 2, body).with("right", right)
}

/// `isin`.
pub(super) fn is_in(invert: bool) -> Generated {
    let form = Form::each(
        2,
        "const auto own = x.at(i); const i64 count = listed.count(); bool is_there = false;
    for (i64 j = 0; j < count && !is_there; ++j) is_there = listed.flat(j) == own;
    y.set_at(is_there != inverted, i);",
    );
    Generated::of("isin", ["x", "listed"], ["y"], form).with("inverted", invert)
}

/// `histc`: a group for each bin. As `kernelHistogram1D` finds the bin of an element.
pub(super) fn histogram(range: [f64; 2]) -> Generated {
    let form = Form::groups(1, [], include_str!("ordering/histogram.cu"));
    Generated::of("histc", ["x"], ["y"], form)
        .with("low", range[0])
        .with("high", range[1])
}
