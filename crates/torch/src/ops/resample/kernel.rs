//! Kernels of interpolation, padding, shuffles and columns.

use std::fmt::Write as _;

use super::{Interpolation, Mode};
use crate::ops::pooling::of_window;
use crate::ops::prelude::*;
use crate::shape::Window;

/// What formulas call the scale of each dimension.
const RATIOS: [&str; 3] = ["ratio0", "ratio1", "ratio2"];

/// Mixes along the last dimensions; the gradient goes the same way backwards.
///
/// What an element of the result takes of one of the operand is a product over dimensions; `mixed` in the prelude says
/// how much along one, and where what mixes lies.
pub(super) fn interpolate(of: &Interpolation, rank: usize, backward: bool) -> Generated {
    let sides = of.ratios.len();
    let first = rank - sides;
    let mode = match of.mode {
        Mode::Nearest => 0,
        Mode::NearestExact => 1,
        Mode::Linear => 2,
        Mode::Cubic => 3,
        Mode::LinearAntialias => 4,
        Mode::CubicAntialias => 5,
    };
    let (read, written) = if backward { ("y", "x") } else { ("x", "y") };
    let mut text = format!(
        "I at[{rank}]; for (int d = 0; d < {first}; ++d) at[d] = i[d]; T sum = 0; const T all = 1; (void)all;\n"
    );
    for d in 0..sides {
        let at = first + d;
        let _ = writeln!(
            text,
            "    const Axis<T> axis{d} = axis_of<{mode}>(x.size({at}), y.size({at}), (T)ratio{d}, aligned);"
        );
    }
    let mut before = "all".to_owned();
    for d in 0..sides {
        let at = first + d;
        let (one, other) = if backward {
            (format!("at[{at}]"), format!("i[{at}]"))
        } else {
            (format!("i[{at}]"), format!("at[{at}]"))
        };
        let (from, to) = if backward {
            ("first_result", "last_result")
        } else {
            ("first_source", "last_source")
        };
        let _ = write!(
            text,
            "    for (I j{d} = (I){from}<{mode}>(axis{d}, i[{at}]), end{d} = (I){to}<{mode}>(axis{d}, i[{at}]); j{d} <= end{d}; ++j{d}) {{ at[{at}] = j{d}; const T w{d} = {before} * mixed<{mode}>(axis{d}, {one}, {other}); if (w{d} == 0) continue; "
        );
        before = format!("w{d}");
    }
    let _ = write!(
        text,
        "sum += {before} * (T){read}.at(at); {}\n    {written}.set_at(sum, i);",
        "} ".repeat(sides)
    );
    let form = Form::each(1, text);
    let name = match of.mode {
        Mode::Nearest | Mode::NearestExact => "interpolate_nearest",
        _ => "interpolate",
    };
    let mut generated =
        Generated::of(name, [read], [written], form).with("aligned", of.align_corners);
    for (name, ratio) in RATIOS.into_iter().zip(&of.ratios) {
        generated = generated.with(name, *ratio);
    }
    generated
}

/// How many elements are added before each dimension, first dimension first, and what was said of them.
fn before(amounts: &[[i64; 2]], rank: usize) -> Number {
    let of = |d: usize| amounts.get(rank - 1 - d).map_or(0, |amount| amount[0]);
    Number::List((0..rank).map(of).collect())
}

/// `pad` with a number, or its gradient: the same with what was added taken away.
pub(super) fn pad_constant(
    amounts: &[[i64; 2]],
    value: f64,
    rank: usize,
    backward: bool,
) -> Generated {
    let amounts: Vec<[i64; 2]> = if backward {
        amounts.iter().map(|[a, b]| [-a, -b]).collect()
    } else {
        amounts.to_vec()
    };
    let body = format!(
        "I at[{}]; bool is_inside = true;
    for (int d = 0; d < {rank}; ++d) {{ at[d] = i[d] - (I)before[d]; is_inside = is_inside && at[d] >= 0 && at[d] < (I)x.size(d); }}
    if (is_inside) y.set_at(x.at(at), i); else y.set_at(value, i);",
        rank.max(1)
    );
    Generated::each("pad", ["x"], ["y"], 1, body)
        .with("before", before(&amounts, rank))
        .with("value", value)
}

/// `pad` with what is there: as `PadReflect` and `PadReplicate` index it.
pub(super) fn pad_copied(amounts: &[[i64; 2]], reflect: bool, rank: usize) -> Generated {
    let body = format!(
        "I at[{}];
    for (int d = 0; d < {rank}; ++d) {{
        const i64 n = x.size(d); i64 from = i[d] - before[d];
        if (reflects) from = from < 0 ? -from : from >= n ? 2 * (n - 1) - from : from;
        at[d] = (I)(from < 0 ? 0 : from >= n ? n - 1 : from);
    }}
    y.set_at(x.at(at), i);",
        rank.max(1)
    );
    Generated::each("pad", ["x"], ["y"], 1, body)
        .with("before", before(amounts, rank))
        .with("reflects", reflect)
}

/// The gradient of [`pad_copied`]: all results that are copies of an element, added up.
pub(super) fn pad_copied_backward(amounts: &[[i64; 2]], reflect: bool, rank: usize) -> Generated {
    let mut text = format!("I at[{}]; T sum = 0;\n    ", rank.max(1));
    let padded = rank.min(amounts.len());
    for d in 0..rank - padded {
        let _ = write!(text, "at[{d}] = i[{d}]; ");
    }
    for d in rank - padded..rank {
        let _ = if reflect {
            write!(
                text,
                "for (int c{d} = 0; c{d} < 3; ++c{d}) {{ const i64 n = grad_x.size({d}), own = i[{d}], o = c{d} == 0 ? own + before[{d}] : c{d} == 1 ? before[{d}] - own : before[{d}] + 2 * (n - 1) - own; if (o < 0 || o >= grad.size({d}) || (c{d} == 1 ? o >= before[{d}] : c{d} == 2 && o < before[{d}] + n)) continue; at[{d}] = (I)o; "
            )
        } else {
            write!(
                text,
                "for (i64 o{d} = i[{d}] == 0 ? 0 : i[{d}] + before[{d}], end{d} = i[{d}] == grad_x.size({d}) - 1 ? grad.size({d}) - 1 : i[{d}] + before[{d}]; o{d} <= end{d}; ++o{d}) {{ if (o{d} < 0 || o{d} >= grad.size({d})) continue; at[{d}] = (I)o{d}; "
            )
        };
    }
    let _ = write!(
        text,
        "sum += (T)grad.at(at); {}\n    grad_x.set_at(sum, i);",
        "} ".repeat(padded)
    );
    Generated::each("pad", ["grad"], ["grad_x"], 1, text).with("before", before(amounts, rank))
}

/// `pixel_shuffle`, or `pixel_unshuffle` where it goes inward; each is the other's gradient.
pub(super) fn shuffle(factor: u64, outward: bool, rank: usize) -> Generated {
    let (channel, height, width) = (rank - 3, rank - 2, rank - 1);
    let from = if outward {
        format!(
            "at[{height}] = (I)(i[{height}] / by); at[{width}] = (I)(i[{width}] / by); at[{channel}] = (I)((i[{channel}] * by + i[{height}] % by) * by + i[{width}] % by);"
        )
    } else {
        format!(
            "at[{channel}] = (I)(i[{channel}] / (by * by)); at[{height}] = (I)(i[{height}] * by + i[{channel}] / by % by); at[{width}] = (I)(i[{width}] * by + i[{channel}] % by);"
        )
    };
    mapped("pixel_shuffle", rank, &from).with("by", factor.cast_signed())
}

/// `channel_shuffle`: channels of so many groups, transposed.
pub(super) fn channel_shuffle(groups: u64, rank: usize, backward: bool) -> Generated {
    let from = if backward {
        "const i64 of = x.size(1) / groups; at[1] = (I)(i[1] % of * groups + i[1] / of);"
    } else {
        "const i64 of = x.size(1) / groups; at[1] = (I)(i[1] % groups * of + i[1] / groups);"
    };
    mapped("channel_shuffle", rank, from).with("groups", groups.max(1).cast_signed())
}

/// A permutation of elements: `from` assigns to some of the coordinates `at`.
fn mapped(name: &'static str, rank: usize, from: &str) -> Generated {
    let body = format!(
        "I at[{rank}]; for (int d = 0; d < {rank}; ++d) at[d] = i[d];
    {from}
    y.set_at(x.at(at), i);"
    );
    Generated::each(name, ["x"], ["y"], 1, body)
}

/// `im2col`: of planes `x`, whose last dimensions are channels, height and width, every window as a column of `y`.
pub(super) fn columns(window: &Window, rank: usize) -> Generated {
    let (column, place) = (rank - 2, rank - 1);
    let lead = rank - 2;
    let body = filled!("kernel/columns.cu", lead, column, place);
    of_window(Generated::each("im2col", ["x"], ["y"], 1, body), window, 2)
}

/// `col2im`: of columns `x`, planes `y` of this rank, in which windows that overlap add up.
pub(super) fn planes(window: &Window, rank: usize) -> Generated {
    let lead = rank - 3;
    let body = filled!("kernel/planes.cu", lead);
    of_window(Generated::each("col2im", ["x"], ["y"], 1, body), window, 2)
}

/// `glu` along a dimension.
pub(super) fn glu(dim: usize, rank: usize) -> Generated {
    let body = format!(
        "I at[{rank}]; for (int d = 0; d < {rank}; ++d) at[d] = i[d];
    const T value = (T)x.at(at); at[{dim}] += (I)y.size({dim});
    y.set_at(value * sigmoid((T)x.at(at)), i);"
    );
    Generated::each("glu", ["x"], ["y"], 1, body)
}

/// The gradient of [`glu`].
pub(super) fn glu_backward(dim: usize, rank: usize) -> Generated {
    let body = format!(
        "I at[{rank}]; for (int d = 0; d < {rank}; ++d) at[d] = i[d];
    const I half = (I)grad.size({dim}); const bool is_value = i[{dim}] < half;
    at[{dim}] = is_value ? i[{dim}] : i[{dim}] - half;
    const T incoming = (T)grad.at(at), value = (T)x.at(at);
    at[{dim}] += half;
    const T gate = sigmoid((T)x.at(at));
    grad_x.set_at(is_value ? incoming * gate : incoming * value * gate * ((T)1 - gate), i);"
    );
    Generated::each("glu", ["grad", "x"], ["grad_x"], 2, body)
}
