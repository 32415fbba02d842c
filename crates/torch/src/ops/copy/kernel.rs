//! Kernels of copies in another order.

use crate::ops::prelude::*;

fn each(name: &'static str, body: String) -> Generated {
    Generated::each(name, ["x"], ["y"], 1, body)
}

/// `roll` along one dimension, or along the flattened tensor.
pub(super) fn rolled(shift: i64, dim: Option<usize>, rank: usize) -> Generated {
    let body = match dim.filter(|_| rank > 0) {
        Some(dim) => format!(
            "I at[{rank}]; for (int d = 0; d < {rank}; ++d) at[d] = i[d];
    const i64 n = x.size({dim}), from = (i[{dim}] - shift) % n;
    at[{dim}] = (I)(from < 0 ? from + n : from);
    y.set_at(x.at(at), i);"
        ),
        None => format!(
            "i64 index = 0; for (int d = 0; d < {rank}; ++d) index = index * y.size(d) + i[d];
    const i64 n = x.count(), from = (index - shift) % n;
    y.set_at(x.flat(from < 0 ? from + n : from), i);"
        ),
    };
    each("roll", body).with("shift", shift)
}

/// `flip` along these dimensions.
pub(super) fn flipped(dims: &[usize], rank: usize) -> Generated {
    let size = rank.max(1);
    let body = format!(
        "I at[{size}]; for (int d = 0; d < {rank}; ++d) at[d] = turns[d] ? (I)x.size(d) - 1 - i[d] : i[d];
    y.set_at(x.at(at), i);"
    );
    let turns: Vec<i64> = (0..rank).map(|d| i64::from(dims.contains(&d))).collect();
    each("flip", body).with("turns", turns)
}

/// `repeat`: a tensor of `own` dimensions to one of `rank`.
pub(super) fn repeated(own: usize, rank: usize) -> Generated {
    let (size, more) = (own.max(1), rank - own);
    let body = format!(
        "I at[{size}]; for (int d = 0; d < {own}; ++d) at[d] = i[d + {more}] % (I)x.size(d);
    y.set_at(x.at(at), i);"
    );
    each("repeat", body)
}
