//! Masks, as `transformers/masking_utils.py` makes them for `sdpa` where nothing is cached or padded.

use crate::huggingface::attention::create_causal_mask;
use crate::huggingface::prelude::*;

/// `create_sliding_window_causal_mask`: a mask where there are tokens beyond the window.
pub(super) fn sliding(position_ids: &Tensor, batch: Extent, window: u64) -> Option<Tensor> {
    let causal = create_causal_mask(position_ids, batch);
    let seq_len = position_ids.length(1);
    if seq_len < window {
        return causal;
    }
    let tracer = position_ids.tracer();
    if causal.is_some() {
        let problem = "windows of attention are not built with padding or eager attention; ask for fewer tokens";
        tracer.fail("attention", problem);
    }
    let batch_arange = tracer.arange_of(batch, DType::Int64);
    let head_arange = tracer.arange(1);
    let q_arange = tracer.arange(seq_len).add_number(0);
    let kv_arange = tracer.arange(seq_len).add_number(0);
    let mut mask = {
        let batch_indices = (&batch_arange).unsqueeze(1).unsqueeze(2).unsqueeze(3);
        let head_indices = (&head_arange).unsqueeze(0).unsqueeze(2).unsqueeze(3);
        let q_indices = (&q_arange).unsqueeze(0).unsqueeze(1).unsqueeze(3);
        let kv_indices = (&kv_arange).unsqueeze(0).unsqueeze(1).unsqueeze(2);
        let mut result = (&q_indices).new_ones(&[], DType::Bool);
        let window = i64::try_from(window).unwrap_or(i64::MAX);
        let is_near = (&kv_indices).greater((&q_indices).sub_number(window));
        result = (&result).and(is_near.to_device());
        result = (&result).and((&kv_indices).at_most(&q_indices).to_device());
        result.and_drop((batch_indices, head_indices, q_indices, kv_indices))
    };
    let length = Size::from(seq_len);
    mask = (&mask).expand(&[batch.into(), Size::REST, length, length]);
    Some(mask.and_drop((batch_arange, head_arange, q_arange, kv_arange)))
}
