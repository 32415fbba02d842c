//! The largest, the smallest and other elements along dimensions, where they are, and whether all or any are true.

use crate::ops::prelude::*;

/// Which element is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// `max(dim)`.
    Largest,
    /// `min(dim)`.
    Smallest,
    /// `median(dim)`: the lower of two.
    Median,
    /// `nanmedian(dim)`: of what is a number.
    NanMedian,
    /// `mode(dim)`: the one that is there most often, the smallest of several.
    Mode,
    /// `kthvalue(k, dim)`, counted from one.
    Kth(u64),
}

impl Choice {
    /// The name a PyTorch user knows it by.
    pub(super) fn name(self) -> &'static str {
        match self {
            Choice::Largest => "max",
            Choice::Smallest => "min",
            Choice::Median => "median",
            Choice::NanMedian => "nanmedian",
            Choice::Mode => "mode",
            Choice::Kth(_) => "kthvalue",
        }
    }
}

const STATE: &str = "struct { P value; i64 at; }";
const START: &str = "s.value = 0; s.at = -1;";

/// Whether an element at some place goes before the best so far: what is no number before all others, of equal ones the
/// first (`MaxOps`, `MinOps` in SharedReduceOps.h).
macro_rules! chosen {
    ($order:literal, $value:literal, $at:literal) => {
        concat!(
            "if (",
            $at,
            " >= 0 && (s.at < 0 || (is_nan(",
            $value,
            ") ? !is_nan(s.value) || ",
            $at,
            " < s.at : !is_nan(s.value) && (",
            $value,
            $order,
            "s.value || ",
            $value,
            " == s.value && ",
            $at,
            " < s.at)))) { s.value = ",
            $value,
            "; s.at = ",
            $at,
            "; }"
        )
    };
}

/// `x -> values, places` along a dimension, or `x -> places` over several.
fn extreme(name: &'static str, dims: &[usize], largest: bool, with_values: bool) -> Generated {
    let (step, merge) = if largest {
        (
            chosen!(">", "(P)x", "(i64)j"),
            chosen!(">", "o.value", "o.at"),
        )
    } else {
        (
            chosen!("<", "(P)x", "(i64)j"),
            chosen!("<", "o.value", "o.at"),
        )
    };
    let (outputs, finish): (&[&'static str], _) = if with_values {
        (&["y", "at"], "y = s.value; at = s.at;")
    } else {
        (&["at"], "at = s.at;")
    };
    let texts = [STATE, START, step, merge, finish];
    Generated::reduce(name, ["x"], outputs, dims, texts)
}

/// Where the largest or the smallest is, counted over all dimensions that go away.
pub(super) fn place(dims: &[usize], largest: bool) -> Generated {
    let name = if largest { "argmax" } else { "argmin" };
    extreme(name, dims, largest, false)
}

/// `x -> values, places` along a dimension; both keep it, with a length of one.
pub(super) fn choose(choice: Choice, dim: usize) -> Generated {
    let rank = match choice {
        Choice::Largest => return extreme("max", &[dim], true, true),
        Choice::Smallest => return extreme("min", &[dim], false, true),
        Choice::Mode => {
            let body = include_str!("extremes/choose.cu");
            return Generated::rows("mode", ["x"], ["y", "at"], [dim], body);
        }
        Choice::Median => "numbers < n ? -1 : (n - 1) / 2",
        Choice::NanMedian => "numbers > 0 ? (numbers - 1) / 2 : -1",
        Choice::Kth(_) => "(I)k - 1",
    };
    // By how many elements are smaller: each thread looks at some of the row's. What is no number is larger than all.
    let body = filled!("extremes/choose_2.cu", rank);
    let k = match choice {
        Choice::Kth(k) => k,
        _ => 0,
    };
    Generated::rows(choice.name(), ["x"], ["y", "at"], [dim], body).with("k", k.cast_signed())
}

/// Whether all are true.
pub(super) fn all(dims: &[usize]) -> Generated {
    let (start, step, merge) = ("s = true;", "s = s && x != 0;", "s = s && o;");
    Generated::reduce(
        "all",
        ["x"],
        ["y"],
        dims,
        ["bool", start, step, merge, "y = s;"],
    )
}
