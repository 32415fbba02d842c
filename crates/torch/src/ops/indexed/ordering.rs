//! Kernels along a dimension: sorts, choices, running sums; and triangles of matrices.

use crate::program::{Form, Generated, Kernel, Number, Text};

fn groups(
    name: &'static str,
    dim: usize,
    outputs: impl Into<Vec<&'static str>>,
    body: impl Into<Text>,
) -> Generated {
    let form = Form::Groups {
        over: 0,
        without: vec![dim],
        body: body.into(),
    };
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
pub(super) fn sorted(dim: usize, rank: usize, descending: bool) -> Kernel {
    let (n, d) = along(rank, dim);
    let body = format!(
        "const I n = (I){n};
    for (I j = lane; j < n; j += LANES) {{ i[{d}] = j; places.set_at(j, i); }}
    row_wait();
    for (i64 run = 2; run < 2 * (i64)n; run *= 2)
        for (i64 step = run / 2; step > 0; step /= 2) {{
            for (I pair = lane; pair < (n + 1) / 2 * 2; pair += LANES) {{
                // The first step of a run compares with its mirror image.
                const i64 in_run = pair & (run - 1), low = pair;
                const i64 high = step == run / 2 ? pair - in_run + run - 1 - in_run : pair + step;
                if ((step == run / 2 ? in_run >= run / 2 : (pair & step) != 0) || high >= n) continue;
                i[{d}] = (I)low; const i64 at_low = places.at(i);
                i[{d}] = (I)high; const i64 at_high = places.at(i);
                i[{d}] = (I)wrapped(at_low, n); const i64 a = ordered(x.at(i));
                i[{d}] = (I)wrapped(at_high, n); const i64 b = ordered(x.at(i));
                if (a == b ? at_low > at_high : descending ? a < b : a > b) {{
                    i[{d}] = (I)low; places.set_at(at_high, i);
                    i[{d}] = (I)high; places.set_at(at_low, i);
                }}
            }}
            row_wait();
        }}
    for (I j = lane; j < n; j += LANES) {{
        i[{d}] = j; const i64 at = places.at(i);
        i[{d}] = (I)wrapped(at, n); const auto value = x.at(i);
        i[{d}] = j; values.set_at(value, i);
    }}"
    );
    groups("sort", dim, ["values", "places"], at_rank(body, rank))
        .with("descending", Number::Truth(descending))
        .into()
}

/// `topk`: the largest elements, one after the other, equal ones in the order in which they were; of short rows with many
/// chosen each element's rank is counted instead.
pub(super) fn top(dim: usize, rank: usize, largest: bool) -> Kernel {
    let (n, d) = along(rank, dim);
    let (count, _) = along(rank, dim);
    let count = count.replace("x.", "values.");
    let body = format!(
        "const I n = (I){n}, count = (I){count};
    if (count > 64 && n <= 4096) {{
        for (I j = lane; j < n; j += LANES) {{
            i[{d}] = j; const auto value = x.at(i); const i64 own = ordered(value);
            I rank = 0;
            for (I k = 0; k < n; ++k) {{
                i[{d}] = k; const i64 other = ordered(x.at(i));
                rank += other == own ? k < j : largest ? other > own : other < own;
            }}
            if (rank < count) {{ i[{d}] = rank; values.set_at(value, i); places.set_at(j, i); }}
        }}
        return;
    }}
    i64 last = 0, last_at = -1;
    for (I chosen = 0; chosen < count; ++chosen) {{
        i64 best = 0, best_at = n;
        for (I j = lane; j < n; j += LANES) {{
            i[{d}] = j; const i64 key = largest ? -ordered(x.at(i)) : ordered(x.at(i));
            const bool is_left = chosen == 0 || key > last || key == last && j > last_at;
            if (is_left && (best_at == n || key < best)) {{ best = key; best_at = j; }}
        }}
        const i64 key = row_min(best_at == n ? 0x7fffffffffffffffll : best);
        const i64 at = row_min(best_at < n && best == key ? best_at : (i64)n);
        last = key; last_at = at;
        if (lane == 0) {{
            i[{d}] = (I)wrapped(at, n); const auto value = x.at(i);
            i[{d}] = chosen; values.set_at(value, i); places.set_at(at, i);
        }}
    }}"
    );
    groups("topk", dim, ["values", "places"], at_rank(body, rank))
        .with("largest", Number::Truth(largest))
        .into()
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
pub(super) fn running_sum(dim: usize, rank: usize, reversed: bool) -> Kernel {
    let body = "const I chunk = (n + LANES - 1) / LANES;
    const I begin = lane * chunk < n ? lane * chunk : n, end = begin + chunk < n ? begin + chunk : n;
    T sum = 0;
    for (I j = begin; j < end; ++j) sum += (T)x(reversed ? n - 1 - j : j);
    T total = row_before(sum, (T)0);
    for (I j = begin; j < end; ++j) {
        const I at = reversed ? n - 1 - j : j;
        total += (T)x(at);
        y.set(total, at);
    }";
    let dims = if rank == 0 { Vec::new() } else { vec![dim] };
    let form = Form::Rows {
        dims,
        body: body.into(),
    };
    Generated::of("cumsum", ["x"], ["y"], form)
        .with("reversed", Number::Truth(reversed))
        .into()
}

/// `tril` or `triu`.
pub(super) fn triangle(upper: bool, diagonal: i64, rank: usize) -> Kernel {
    let body = format!(
        "const i64 above = (i64)i[{}] - (i64)i[{}];
    y.set_at(is_upper ? above >= diagonal ? x.at(i) : 0 : above <= diagonal ? x.at(i) : 0, i);",
        rank.saturating_sub(1),
        rank.saturating_sub(2)
    );
    Generated::each("tril", ["x"], ["y"], 1, body)
        .with("is_upper", Number::Truth(upper))
        .with("diagonal", Number::Whole(diagonal))
        .into()
}

/// `one_hot` of a tensor of this rank.
pub(super) fn one_hot(rank: usize) -> Kernel {
    Generated::each(
        "one_hot",
        ["x"],
        ["y"],
        1,
        format!("y.set_at(x.at(i) == (i64)i[{rank}], i);"),
    )
    .into()
}

/// `searchsorted` in a sequence with so many dimensions: the first place whose element is not smaller, or is larger.
pub(super) fn search(rank: usize, right: bool) -> Kernel {
    let last = rank.saturating_sub(1);
    let body = format!(
        "I at[{}]; for (int d = 0; d < {last}; ++d) at[d] = i[d];
    const auto own = values.at(i); i64 low = 0, high = sorted.size({last});
    while (low < high) {{
        const i64 middle = (low + high) / 2; at[{last}] = (I)middle; const auto other = sorted.at(at);
        if (right ? !(other > own) : !(other >= own)) low = middle + 1; else high = middle;
    }}
    places.set_at(low, i);",
        rank.max(1)
    );
    Generated::each("searchsorted", ["sorted", "values"], ["places"], 2, body)
        .with("right", Number::Truth(right))
        .into()
}

/// `isin`.
pub(super) fn is_in(invert: bool) -> Kernel {
    let form = Form::each(
        2,
        "const auto own = x.at(i); const i64 count = listed.count(); bool is_there = false;
    for (i64 j = 0; j < count && !is_there; ++j) is_there = listed.flat(j) == own;
    y.set_at(is_there != inverted, i);",
    );
    Generated::of("isin", ["x", "listed"], ["y"], form)
        .with("inverted", Number::Truth(invert))
        .into()
}

/// `histc`: a group for each bin. As `kernelHistogram1D` finds the bin of an element.
pub(super) fn histogram(range: [f64; 2]) -> Kernel {
    let form = Form::Groups {
        over: 1,
        without: Vec::new(),
        body: "const i64 n = x.count(), bins = y.size(0);
    T first = (T)low, last = (T)high;
    if (first == last && n > 0) {
        first = last = (T)x.flat(0);
        for (i64 j = lane; j < n; j += LANES) { const T value = (T)x.flat(j); first = minimum(first, value); last = maximum(last, value); }
        first = row_min(first); last = row_max(last);
    }
    if (first == last) { first -= 1; last += 1; }
    i64 count = 0;
    for (i64 j = lane; j < n; j += LANES) {
        const T value = (T)x.flat(j);
        if (!(value >= first && value <= last)) continue;
        i64 bin = (i64)((value - first) * (T)bins / (last - first));
        if (bin == bins) --bin;
        count += bin == (i64)i[0];
    }
    count = row_sum(count);
    if (lane == 0) y.set_at((T)count, i);"
            .into(),
    };
    Generated::of("histc", ["x"], ["y"], form)
        .with("low", Number::Real(range[0]))
        .with("high", Number::Real(range[1]))
        .into()
}
