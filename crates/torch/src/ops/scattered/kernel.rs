//! Kernels of what writes to places.

use crate::ops::placing::{self, Combine, Places, Written};
use crate::ops::prelude::*;

fn each(
    name: &'static str,
    inputs: &[&'static str],
    output: &'static str,
    body: &'static str,
) -> Generated {
    Generated::each(name, inputs, [output], inputs.len(), body)
}

/// `take`: elements of the flattened tensor.
pub(super) fn take() -> Generated {
    let body = "y.set_at(x.flat(wrapped(index.at(i), x.count())), i);";
    each("take", &["x", "index"], "y", body)
}

/// What a mask marks becomes zero.
pub(super) fn cleared_under_mask() -> Generated {
    let body = "result = mask ? (T)0 : (T)x;";
    Generated::map("masked_scatter", ["mask", "x"], body)
}

/// Whether two tensors are equal, the second at places along a dimension of it.
pub(super) fn is_there(rank: usize, dim: usize) -> Generated {
    let body = format!(
        "I at[{0}]; for (int d = 0; d < {rank}; ++d) at[d] = i[d];
    at[{dim}] = (I)wrapped(index.at(i), result.size({dim}));
    y.set_at(source.at(i) == result.at(at), i);",
        rank.max(1)
    );
    Generated::each(
        "scatter_reduce",
        ["source", "index", "result"],
        ["y"],
        3,
        body,
    )
}

impl Eager {
    /// `put_`: into elements of the flattened tensor.
    pub fn put_flat(
        &mut self,
        into: &TensorBody,
        index: &TensorBody,
        (combine, values): (Combine, Result<&TensorBody, f64>),
    ) {
        let rank = into.shape.len();
        let places = Places {
            rows: (0..rank).collect(),
            ranks: [index.shape.len(), rank, 1],
            flat: true,
            ..Places::default()
        };
        let kernel = placing::by_owners("put_", &places, combine, Written::of(values), i64::MIN);
        let inputs: Vec<&TensorBody> = values.into_iter().chain([index]).collect();
        self.launch(kernel, &inputs, &[into]);
    }
}
