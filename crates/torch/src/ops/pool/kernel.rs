//! Formulas of pools: tensors of batch, channels, and one to three dimensions that are pooled.

use std::fmt::Write as _;

use crate::ops::prelude::*;
use crate::shape::Window;

/// How many dimensions are pooled.
type PoolDims = usize;

/// Loops over a range in each pooled dimension, around a body. `range` gives the first index and that behind the last.
fn nested(
    sides: PoolDims,
    index: &str,
    range: impl Fn(usize) -> [String; 2],
    body: &str,
) -> String {
    let mut text = String::new();
    for d in 0..sides {
        let [first, behind] = range(d);
        let _ = write!(
            text,
            "for (I {index}{d} = {first}, {index}_end{d} = {behind}; {index}{d} < {index}_end{d}; ++{index}{d}) "
        );
    }
    let _ = write!(text, "{{ {body} }}");
    text
}

/// Assigns coordinates: batch and channel as visited, then these.
fn coordinates(name: &str, sides: PoolDims, value: impl Fn(usize) -> String) -> String {
    (0..sides).fold(String::new(), |text, d| {
        format!("{text}{name}[{}] = {}; ", d + 2, value(d))
    })
}

/// Declares coordinates in a plane of the batch and channel that are visited.
fn in_plane(name: &str, sides: PoolDims) -> String {
    let rank = sides + 2;
    format!("I {name}[{rank}]; {name}[0] = i[0]; {name}[1] = i[1];")
}

/// How many elements a plane has.
fn plane(tensor: &str, sides: PoolDims) -> String {
    (0..sides).fold("(i64)1".to_owned(), |text, d| {
        format!("{text} * {tensor}.size({})", d + 2)
    })
}

/// Breaks `left`, a place within a plane, down into coordinates.
fn unravel(name: &str, tensor: &str, sides: PoolDims) -> String {
    (2..sides + 2).rev().fold(String::new(), |text, at| {
        format!(
            "{text}{name}[{at}] = (I)(left % {tensor}.size({at})); left /= {tensor}.size({at}); "
        )
    })
}

/// What loops over windows call the coordinate along a dimension.
fn visited(d: usize) -> String {
    format!("w{d}")
}

/// The row-major place of coordinates within a tensor's pooled dimensions.
fn flat(tensor: &str, sides: PoolDims, value: impl Fn(usize) -> String) -> String {
    (1..sides).fold(format!("(i64)({})", value(0)), |so_far, d| {
        format!("({so_far} * {tensor}.size({}) + {})", d + 2, value(d))
    })
}

fn list(values: [u64; 3], sides: PoolDims) -> Number {
    let own = &values[3 - sides..];
    Number::List(own.iter().map(|value| value.cast_signed()).collect())
}

/// With the constants of a window along so many dimensions.
pub(in crate::ops) fn of_window(
    generated: Generated,
    window: &Window,
    sides: PoolDims,
) -> Generated {
    generated
        .with("kernel", list(window.kernel, sides))
        .with("stride", list(window.stride, sides))
        .with("padding", list(window.padding, sides))
        .with("dilation", list(window.dilation, sides))
}

fn each(
    name: &'static str,
    inputs: &[&'static str],
    outputs: &[&'static str],
    body: String,
) -> Generated {
    Generated::each(name, inputs, outputs, inputs.len(), body)
}

/// All elements of a window.
fn whole_window(d: usize) -> [String; 2] {
    ["0".into(), format!("(I)kernel[{d}]")]
}

/// The windows that cover element `i` of what is pooled, of a tensor of results.
fn covering(results: &str) -> impl Fn(usize) -> [String; 2] {
    move |d| {
        let at = d + 2;
        let reach = format!("i[{at}] + (I)padding[{d}] - (I)((kernel[{d}] - 1) * dilation[{d}])");
        [
            format!("{reach} <= 0 ? 0 : ({reach} + (I)stride[{d}] - 1) / (I)stride[{d}]"),
            format!(
                "(i[{at}] + (I)padding[{d}]) / (I)stride[{d}] + 1 < (I){results}.size({at}) ? (i[{at}] + (I)padding[{d}]) / (I)stride[{d}] + 1 : (I){results}.size({at})"
            ),
        ]
    }
}

/// The regions of an adaptive pool along a dimension: `Pooling` in `AdaptivePooling.h`.
fn region(d: usize) -> [String; 2] {
    let at = d + 2;
    [
        format!("(I)((i64)i[{at}] * x.size({at}) / y.size({at}))"),
        format!("(I)((((i64)i[{at}] + 1) * x.size({at}) + y.size({at}) - 1) / y.size({at}))"),
    ]
}

/// The regions that cover element `i` of what is pooled.
fn regions_covering(results: &'static str, pooled: &'static str) -> impl Fn(usize) -> [String; 2] {
    move |d| {
        let at = d + 2;
        [
            format!("(I)((i64)i[{at}] * {results}.size({at}) / {pooled}.size({at}))"),
            format!(
                "(I)((((i64)i[{at}] + 1) * {results}.size({at}) + {pooled}.size({at}) - 1) / {pooled}.size({at}))"
            ),
        ]
    }
}

const LARGEST: &str =
    "const T value = x.at(at); if (value > best || is_nan(value)) { best = value; best_at = ";

/// `x -> y, indices`: as in `DilatedMaxPool2d.cu`, positions within a plane.
pub fn max(window: &Window, sides: PoolDims) -> Generated {
    let at = |d: usize| {
        format!(
            "i[{}] * (I)stride[{d}] - (I)padding[{d}] + w{d} * (I)dilation[{d}]",
            d + 2
        )
    };
    let inside: Vec<String> = (0..sides)
        .map(|d| format!("at[{0}] >= 0 && at[{0}] < (I)x.size({0})", d + 2))
        .collect();
    let body = format!(
        "{}if ({}) {{ {LARGEST}{}; }} }}",
        coordinates("at", sides, at),
        inside.join(" && "),
        flat("x", sides, |d| format!("at[{}]", d + 2))
    );
    let start = flat("x", sides, |d| format!("start[{d}]"));
    let mut starts = format!("I start[{sides}]; ");
    for d in 0..sides {
        let _ = write!(
            starts,
            "start[{d}] = i[{}] * (I)stride[{d}] - (I)padding[{d}]; while (start[{d}] < 0) start[{d}] += (I)dilation[{d}]; ",
            d + 2
        );
    }
    let loops = nested(sides, "w", whole_window, &body);
    let text = format!(
        "{} {starts}
    T best = (T)-INFINITY; i64 best_at = {start};
    {loops}
    y.set_at(best, i); indices.set_at(best_at, i);",
        in_plane("at", sides)
    );
    of_window(
        each("max_pool", &["x"], &["y", "indices"], text),
        window,
        sides,
    )
}

/// `grad, indices -> grad_x`, where an element is looked for in the results that these loops visit.
fn max_grad(sides: PoolDims, range: impl Fn(usize) -> [String; 2]) -> Generated {
    let own = flat("grad_x", sides, |d| format!("i[{}]", d + 2));
    let body = format!(
        "{}if (indices.at(of) == own) sum += (T)grad.at(of);",
        coordinates("of", sides, visited)
    );
    let loops = nested(sides, "w", range, &body);
    let text = format!(
        "{} const i64 own = {own}; T sum = 0;
    {loops}
    grad_x.set_at(sum, i);",
        in_plane("of", sides)
    );
    each("max_pool", &["grad", "indices"], &["grad_x"], text)
}

/// The gradient of [`max`].
pub fn max_backward(window: &Window, sides: PoolDims) -> Generated {
    of_window(max_grad(sides, covering("grad")), window, sides)
}

/// What sums of a window `w` of results are divided by: `avg_pool2d_out_cuda_frame`.
fn divisor(sides: PoolDims, result: impl Fn(usize) -> String, pooled: &str) -> String {
    let mut text = String::from("i64 whole = 1, clipped = 1; ");
    for d in 0..sides {
        let at = d + 2;
        let _ = write!(
            text,
            "{{ i64 first = (i64){0} * stride[{d}] - padding[{d}], behind = first + kernel[{d}]; if (behind > {pooled}.size({at}) + padding[{d}]) behind = {pooled}.size({at}) + padding[{d}]; whole *= behind - first; if (first < 0) first = 0; if (behind > {pooled}.size({at})) behind = {pooled}.size({at}); clipped *= behind - first; }} ",
            result(d)
        );
    }
    text.push_str("const T by = (T)(divisor != 0 ? divisor : counts_padding ? whole : clipped); ");
    text
}

fn average(
    generated: Generated,
    window: &Window,
    of: (bool, Option<i64>),
    sides: PoolDims,
) -> Generated {
    of_window(generated, window, sides)
        .with("counts_padding", of.0)
        .with("divisor", of.1.unwrap_or(0))
}

/// `x -> y`: averages over windows; `of` says whether zeros of the padding count, and what sums are divided by instead.
pub fn avg(window: &Window, of: (bool, Option<i64>), sides: PoolDims) -> Generated {
    let first = |d: usize| format!("i[{}] * (I)stride[{d}] - (I)padding[{d}]", d + 2);
    let range = |d: usize| {
        let (first, at) = (first(d), d + 2);
        [
            format!("{first} < 0 ? 0 : {first}"),
            format!(
                "{first} + (I)kernel[{d}] < (I)x.size({at}) ? {first} + (I)kernel[{d}] : (I)x.size({at})"
            ),
        ]
    };
    let body = format!("{}sum += (T)x.at(at);", coordinates("at", sides, visited));
    let text = format!(
        "{} T sum = 0; {}
    {}
    y.set_at(sum / by, i);",
        in_plane("at", sides),
        divisor(sides, |d| format!("i[{}]", d + 2), "x"),
        nested(sides, "w", range, &body)
    );
    average(each("avg_pool", &["x"], &["y"], text), window, of, sides)
}

/// The gradient of [`avg`].
pub fn avg_backward(window: &Window, of: (bool, Option<i64>), sides: PoolDims) -> Generated {
    let body = format!(
        "{}{}sum += (T)grad.at(of) / by;",
        coordinates("of", sides, visited),
        divisor(sides, visited, "grad_x")
    );
    let text = format!(
        "{} T sum = 0;
    {}
    grad_x.set_at(sum, i);",
        in_plane("of", sides),
        nested(sides, "w", covering("grad"), &body)
    );
    average(
        each("avg_pool", &["grad"], &["grad_x"], text),
        window,
        of,
        sides,
    )
}

/// `x -> y`: averages over regions.
pub fn adaptive_avg(sides: PoolDims) -> Generated {
    let body = format!(
        "{}sum += (T)x.at(at); ++count;",
        coordinates("at", sides, visited)
    );
    let text = format!(
        "{} T sum = 0; i64 count = 0;
    {}
    y.set_at(sum / (T)count, i);",
        in_plane("at", sides),
        nested(sides, "w", region, &body)
    );
    each("adaptive_avg_pool", &["x"], &["y"], text)
}

/// The gradient of [`adaptive_avg`].
pub fn adaptive_avg_backward(sides: PoolDims) -> Generated {
    let mut count = String::from("i64 count = 1; ");
    for d in 0..sides {
        let at = d + 2;
        let _ = write!(
            count,
            "count *= ((w{d} + (i64)1) * grad_x.size({at}) + grad.size({at}) - 1) / grad.size({at}) - (i64)w{d} * grad_x.size({at}) / grad.size({at}); "
        );
    }
    let body = format!(
        "{}{count}sum += (T)grad.at(of) / (T)count;",
        coordinates("of", sides, visited)
    );
    let text = format!(
        "{} T sum = 0;
    {}
    grad_x.set_at(sum, i);",
        in_plane("of", sides),
        nested(sides, "w", regions_covering("grad", "grad_x"), &body)
    );
    each("adaptive_avg_pool", &["grad"], &["grad_x"], text)
}

/// `x -> y, indices`: the largest of regions.
pub fn adaptive_max(sides: PoolDims) -> Generated {
    let body = format!(
        "{}{LARGEST}{}; }}",
        coordinates("at", sides, visited),
        flat("x", sides, visited)
    );
    let start = flat("x", sides, |d| region(d)[0].clone());
    let text = format!(
        "{} T best = (T)-INFINITY; i64 best_at = {start};
    {}
    y.set_at(best, i); indices.set_at(best_at, i);",
        in_plane("at", sides),
        nested(sides, "w", region, &body)
    );
    each("adaptive_max_pool", &["x"], &["y", "indices"], text)
}

/// The gradient of [`adaptive_max`].
pub fn adaptive_max_backward(sides: PoolDims) -> Generated {
    max_grad(sides, regions_covering("grad", "grad_x"))
}

/// `x, samples -> y, indices`: `fractional_max_pool2d_out_cuda_frame` and `3d`, where regions begin by chance. In planes
/// the first sample is that of the width.
pub fn fractional_max(kernel: [u64; 3], sides: PoolDims) -> Generated {
    let mut starts = format!("I start[{sides}]; ");
    for d in 0..sides {
        let at = d + 2;
        let sample = if sides == 2 { 1 - d } else { d };
        let _ = write!(
            starts,
            "{{ const I room = (I)(x.size({at}) - kernel[{d}]), last = (I)y.size({at}) - 1; if (i[{at}] == last) start[{d}] = room; else {{ const T chance = (T)samples(i[0], i[1], {sample}), alpha = (T)room / (T)last; start[{d}] = (I)(((T)i[{at}] + chance) * alpha) - (I)(chance * alpha); }} start[{d}] = start[{d}] < 0 ? 0 : start[{d}] > room ? room : start[{d}]; }} "
        );
    }
    let body = format!(
        "{}{LARGEST}{}; }}",
        coordinates("at", sides, |d| format!("start[{d}] + w{d}")),
        flat("x", sides, |d| format!("at[{}]", d + 2))
    );
    let start = flat("x", sides, |d| format!("start[{d}]"));
    let text = format!(
        "{} {starts}
    T best = (T)-INFINITY; i64 best_at = {start};
    {}
    y.set_at(best, i); indices.set_at(best_at, i);",
        in_plane("at", sides),
        nested(sides, "w", whole_window, &body)
    );
    each(
        "fractional_max_pool",
        &["x", "samples"],
        &["y", "indices"],
        text,
    )
    .with("kernel", list(kernel, sides))
}

/// `values, indices -> into`: elements to their places within each plane, added up, a plane a thread; what else is there
/// is zero.
pub fn placed(name: &'static str, sides: PoolDims) -> Generated {
    let to_place = unravel("to", "into", sides);
    let text = format!(
        "const i64 places = {}, count = {};
    {}
    for (i64 place = 0; place < places; ++place) {{ i64 left = place; {to_place}into.set_at(0, to); }}
    for (i64 number = 0; number < count; ++number) {{
        i64 left = number; {}
        left = indices.at(i); if (left < 0 || left >= places) continue;
        {to_place}into.set_at(into.at(to) + values.at(i), to);
    }}",
        plane("into", sides),
        plane("values", sides),
        in_plane("to", sides),
        unravel("i", "values", sides),
    );
    let form = Form::skipping(2, (2..sides + 2).collect::<Vec<_>>(), text);
    Generated::of(name, ["values", "indices"], ["into"], form)
}

/// `x, indices -> y`: what is at places within each plane.
pub fn taken(name: &'static str, sides: PoolDims) -> Generated {
    let text = format!(
        "{} i64 left = indices.at(i); const i64 places = {}; left = left < 0 ? 0 : left >= places ? places - 1 : left; {}y.set_at(x.at(at), i);",
        in_plane("at", sides),
        plane("x", sides),
        unravel("at", "x", sides)
    );
    each(name, &["x", "indices"], &["y"], text)
}

/// `values, indices -> into`: elements to their places within each plane, of which equal ones have equal elements.
pub fn put(name: &'static str, sides: PoolDims) -> Generated {
    let text = format!(
        "{} i64 left = indices.at(i); const i64 places = {}; if (left < 0 || left >= places) return; {}into.set_at(values.at(i), to);",
        in_plane("to", sides),
        plane("into", sides),
        unravel("to", "into", sides)
    );
    Generated::each(name, ["values", "indices"], ["into"], 0, text)
}
