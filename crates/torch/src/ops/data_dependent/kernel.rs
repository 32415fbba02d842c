//! Kernels that find elements by their values.
//!
//! Results are as long as the memory rule takes them to be, which may be longer or shorter than what values say.

use crate::ops::prelude::*;
use crate::program::Text;

/// What stands behind the places that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beyond {
    /// The same places again from the first on, so that averages over all are about right.
    Repeat,
    /// None: nothing is written there.
    Nowhere,
}

fn groups(
    name: &'static str,
    inputs: &[&'static str],
    outputs: &[&'static str],
    rank: usize,
    body: impl Into<Text>,
) -> Generated {
    let form = Form::groups(0, (0..rank).collect::<Vec<_>>(), body);
    Generated::of(name, inputs, outputs, form)
}

/// A part of all elements in order for each thread: `begin` to `end`.
const CHUNK: &str = "const i64 n = x.count(), chunk = (n + LANES - 1) / LANES;
    const i64 begin = lane * chunk < n ? lane * chunk : n, end = begin + chunk < n ? begin + chunk : n;
    i64 own = 0;";

/// `nonzero` of a tensor with some dimensions.
pub(super) fn nonzero(rank: usize, beyond: Beyond) -> Generated {
    let body = filled!("kernel/nonzero.cu", CHUNK, rank);
    groups("nonzero", &["x"], &["places"], rank, body).with("repeats", beyond == Beyond::Repeat)
}

/// How many elements up to each are true, or their sum, over the flattened tensor.
pub(super) fn counted(rank: usize) -> Generated {
    let body = "const I chunk = (n + LANES - 1) / LANES;
    const I begin = lane * chunk < n ? lane * chunk : n, end = begin + chunk < n ? begin + chunk : n;
    i64 sum = 0;
    for (I j = begin; j < end; ++j) sum += (i64)x(j);
    i64 total = row_before(sum, (i64)0);
    for (I j = begin; j < end; ++j) { total += (i64)x(j); sums.set(total, j); }";
    let form = Form::Rows {
        dims: (0..rank).collect(),
        body: body.into(),
    };
    Generated::of("cumsum", ["x"], ["sums"], form)
}

/// `masked_scatter_`: the next element of the source for each that the mask marks.
pub(super) fn masked_scatter() -> Generated {
    let form = Form::each(
        3,
        "const i64 which = sums.at(i) - 1;
    if (mask.at(i) && which >= 0 && which < source.count()) into.set_at(source.flat(which), i);",
    );
    Generated::of(
        "masked_scatter_",
        ["mask", "sums", "source"],
        ["into"],
        form,
    )
}

/// Which element is repeated at each place: the first whose repetitions and those before it go beyond.
pub(super) fn repeated_places() -> Generated {
    let form = Form::each(1, "i64 low = 0, high = sums.count();
    while (low < high) { const i64 middle = (low + high) / 2; if (sums.flat(middle) > (i64)i[0]) high = middle; else low = middle + 1; }
    places.set_at(low < sums.count() ? low : max_whole(sums.count() - 1, 0), i);");
    Generated::of("repeat_interleave", ["sums"], ["places"], form)
}

/// Sorts a vector in its own memory, by a bitonic network as long as it must be.
pub(super) fn sorted_in_place() -> Generated {
    let body = include_str!("kernel/sorted_in_place.cu");
    groups("sort", &[], &["x"], 1, body)
}

/// The distinct elements of a tensor whose equal ones are neighbours, which of them each element is, and how many there are
/// of each. Behind them the last one stands again, none times.
pub(super) fn distinct(rank: usize, inverse: bool, counts: bool) -> Generated {
    let places = if inverse {
        "places.set_flat(at - 1, j);"
    } else {
        ""
    };
    let many = if counts {
        "i64 behind = j + 1; while (behind < n && ordered(x.flat(behind)) == ordered(value)) ++behind; many.set(behind - j, at);"
    } else {
        ""
    };
    let no_more = if counts { "many.set(0, k);" } else { "" };
    let body = filled!("kernel/distinct.cu", CHUNK, many, places, no_more);
    let mut outputs = vec!["whole"];
    outputs.extend(inverse.then_some("places"));
    outputs.extend(counts.then_some("many"));
    groups("unique", &["x"], &outputs, rank, body)
}

/// Where each element is among sorted ones.
pub(super) fn search_sorted() -> Generated {
    let form = Form::each(2, "const i64 own = ordered(x.at(i)); i64 low = 0, high = sorted.count();
    while (low < high) { const i64 middle = (low + high) / 2; if (ordered(sorted(middle)) >= own) high = middle; else low = middle + 1; }
    places.set_at(low, i);");
    Generated::of("unique", ["x", "sorted"], ["places"], form)
}
