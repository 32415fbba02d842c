//! Kernels of gradients of views whose elements are seen more than once.

use std::fmt::Write as _;

use crate::ops::prelude::*;

/// `unfold_backward`: the windows of `size`, `step` apart, that an element is in, along a dimension.
pub(super) fn unfold_backward(dim: usize, [size, step]: [u64; 2], rank: usize) -> Generated {
    let body = format!(
        "I at[{rank} + 1]; for (int d = 0; d < {rank}; ++d) at[d] = i[d];
    const i64 own = i[{dim}], last = own / step, windows = grad.size({dim}); T sum = 0;
    for (i64 window = own < size ? 0 : (own - size) / step + 1; window <= last && window < windows; ++window) {{
        at[{dim}] = (I)window; at[{rank}] = (I)(own - window * step);
        sum += (T)grad.at(at);
    }}
    grad_x.set_at(sum, i);"
    );
    Generated::each("unfold_backward", ["grad"], ["grad_x"], 1, body)
        .with("size", size.cast_signed())
        .with("step", step.max(1).cast_signed())
}

/// Where each element of a strided view is.
pub(super) fn strided_places(strides: &[Extent], offset: Extent) -> Kernel {
    const NAMES: [&str; 8] = ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"];
    if strides.len() > NAMES.len() {
        return Kernel::MemoryOnly("as_strided of more than eight dimensions");
    }
    let mut body = String::from("i64 at = offset; ");
    for (d, name) in NAMES.iter().enumerate().take(strides.len()) {
        let _ = write!(body, "at += i[{d}] * {name}; ");
    }
    body.push_str("places.set_at(at, i);");
    let form = Form::each(0, body);
    let generated =
        Generated::of("as_strided_scatter", [], ["places"], form).with("offset", offset);
    let named = NAMES.into_iter().zip(strides);
    named
        .fold(generated, |generated, (name, stride)| {
            generated.with(name, *stride)
        })
        .into()
}
