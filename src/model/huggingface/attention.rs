//! Attention as transformers calls it.

use crate::model::tracing::functional::{self, Attention};
use crate::model::tracing::{Tensor, Views as _};
use crate::shape::DType;

/// `sdpa_attention_forward`.
pub(super) fn sdpa(query: &Tensor, key: &Tensor, value: &Tensor, how: Attention<'_>) -> Tensor {
    let mut output = functional::attention(query, key, value, how);
    output = (&output).transpose(1, 2).contiguous();
    output
}

/// `torch.finfo(dtype).min`.
pub(super) fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::Float16 => -65504.0,
        // The largest power of two, times what eight bits of precision reach.
        DType::BFloat16 => -(2.0 - 2_f64.powi(-7)) * 2_f64.powi(127),
        DType::Float64 => f64::MIN,
        _ => f64::from(f32::MIN),
    }
}
