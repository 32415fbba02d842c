//! Biases of attention that grow with distance, as BLOOM and Falcon build them.

use crate::huggingface::prelude::*;

/// `build_alibi_tensor`, for a tensor of the dtype of `like`.
pub(super) fn alibi(attention_mask: &Tensor, heads: u64, like: &Tensor, kind: Kind) -> Tensor {
    let tracer = attention_mask.tracer();
    let (batch, seq_len) = (attention_mask.size(0), attention_mask.size(1));
    let closest = 1 << heads.max(1).ilog2();
    let base = base(&tracer, closest);
    let powers = tracer.arange_between([1, 1 + closest], 1, DType::Int32);
    let mut slopes = (&base).pow_tensor(&powers);
    let mut extra = None;
    if closest != heads {
        let extra_base = self::base(&tracer, 2 * closest);
        let remaining = closest.min(heads - closest);
        let extra_powers = tracer.arange_between([1, 1 + 2 * remaining], 2, DType::Int32);
        slopes = tracer.cat([slopes.clone(), (&extra_base).pow_tensor(&extra_powers)], 0);
        extra = Some((extra_base, extra_powers));
    }
    let arange = attention_mask.cumsum(-1).sub_number(1).mul(attention_mask);
    let arange = arange.unsqueeze(1);
    let mut column = (&slopes).unsqueeze(1);
    if kind == Kind::Falcon {
        column = column.to(DType::BFloat16);
    }
    let alibi = column.mul(&arange);
    let rows = batch.checked_mul(Extent::fixed(heads));
    let rows: Size = rows.unwrap_or(Extent::ONE).into();
    let biases = (&alibi)
        .reshape(&[rows, 1.into(), seq_len.into()])
        .to_dtype_of(like.dtype());
    drop((base, powers, slopes, extra));
    biases.and_drop((arange, alibi))
}

/// Whose code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Bloom,
    /// The same in bfloat16.
    Falcon,
}

/// The slope of the first of this many heads.
fn base(tracer: &Tracer, heads: u64) -> Tensor {
    let exponent = (heads as f64).log2() - 3.0;
    let slope = 2f64.powf(-(2f64.powf(-exponent)));
    tracer.full(&[], slope, DType::Float32)
}
