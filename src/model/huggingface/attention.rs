//! Attention as transformers calls it.

use crate::model::tracing::functional::{self, Attention};
use crate::model::tracing::{
    Linear, Pointwise as _, Reductions as _, Size, Tensor, Tensors, Tracer, Views as _,
};
use crate::shape::{DType, Extent, numel};

/// `sdpa_attention_forward`.
pub(super) fn sdpa(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    settings: Attention<'_>,
) -> Tensor {
    let (mut key, mut value) = (key.clone(), value.clone());
    only_prompt(query, [&mut key, &mut value], &settings);
    let mut output = functional::attention(query, &key, &value, settings);
    output = (&output).transpose(1, 2).contiguous();
    output.and_drop((key, value))
}

/// What `sdpa_attention_forward` does with a prompt and keys and values that have room for more: it leaves that out.
pub(super) fn only_prompt(query: &Tensor, states: [&mut Tensor; 2], settings: &Attention<'_>) {
    let queries = query.length(2);
    for states in states {
        if settings.causal && states.length(2) > queries {
            *states = (&*states).slice(2, 0, queries.cast_signed());
        }
    }
}

/// Attention of all tokens to all, by the `SelfAttention` of BERT, ALBERT and DistilBERT, whose code is the same: what it gives
/// each token, with the queries, keys and values that the caller's names hold on to.
pub(super) fn self_attention(
    x: &Tensor,
    [query, key, value]: [&Linear; 3],
    head_dim: u64,
    dropout: f64,
) -> (Tensor, [Tensor; 3]) {
    let (batch, seq_len): (Size, Size) = (x.size(0).into(), x.size(1).into());
    let heads = [batch, seq_len, Size::REST, head_dim.into()];
    let states = [query, key, value].map(|linear| linear.forward(x).view(&heads).transpose(1, 2));
    let settings = Attention {
        dropout,
        scale: Some((head_dim as f64).powf(-0.5)),
        ..Attention::default()
    };
    let [query, key, value] = &states;
    let mut output = sdpa(query, key, value, settings);
    output = (&output)
        .reshape(&[batch, seq_len, Size::REST])
        .contiguous();
    (output, states)
}

/// What `create_causal_mask` does where there is nothing to mask but what comes after.
pub(super) fn look_for_packed_sequences(position_ids: &Tensor, batch: Extent) {
    let expanded = position_ids.expand(&[batch.into(), Size::REST]);
    expanded.tracer().look_for_packed_sequences(&expanded);
}

/// What `create_causal_mask` does with a mask that masks nothing: it finds that out.
pub(super) fn look_for_padding(attention_mask: &Tensor) {
    all_true(attention_mask.to(DType::Bool));
}

/// `fast_all`: whether all of it is true.
pub(super) fn all_true(x: impl Tensors) {
    let shape = x.tensor().shape();
    drop(x.tensor().sum_all().equal_to_size(numel(&shape)));
    drop(x);
}

/// `create_causal_mask` where a mask is wanted in any case: truth values of queries and keys.
pub(super) fn causal_mask(tracer: &Tracer, batch: Extent, seq_len: u64) -> Tensor {
    let indices = Indices::new(tracer, batch, seq_len);
    let mask = indices.key.clone().at_most(&indices.query);
    indices.expanded(mask)
}

/// `create_causal_mask` of eager attention: what is added to scores of this dtype.
pub(super) fn causal_biases(attention_mask: &Tensor, dtype: DType) -> Tensor {
    let tracer = attention_mask.tracer();
    let padding_mask = attention_mask.to(DType::Bool);
    let indices = Indices::new(&tracer, attention_mask.size(0), attention_mask.length(1));
    let (query, key) = (&indices.query, &indices.key);
    let mut mask = query.new_ones(&[], DType::Bool);
    mask = (&mask).and(key.at_most(query));
    mask = (&mask).and((&padding_mask).index(&[Some(&indices.sample), Some(key)]));
    mask = indices.expanded(mask);
    let zero = tracer.constant(&[], dtype);
    mask = mask.choose_or_number(zero, smallest(dtype));
    mask.and_drop(padding_mask)
}

/// What masks are functions of.
struct Indices {
    batch: Extent,
    seq_len: u64,
    sample: Tensor,
    query: Tensor,
    key: Tensor,
    aranges: [Tensor; 4],
}

impl Indices {
    fn new(tracer: &Tracer, batch: Extent, seq_len: u64) -> Indices {
        let sample = tracer.arange_of(batch, DType::Int64);
        let head = tracer.arange(1);
        let query = tracer.arange(seq_len).add_number(0);
        let key = tracer.arange(seq_len).add_number(0);
        Indices {
            batch,
            seq_len,
            sample: (&sample).unsqueeze(1).unsqueeze(2).unsqueeze(3),
            query: (&query).unsqueeze(0).unsqueeze(1).unsqueeze(3),
            key: (&key).unsqueeze(0).unsqueeze(1).unsqueeze(2),
            aranges: [sample, head, query, key],
        }
    }

    /// The mask for all samples, after which the indices are let go of.
    fn expanded(self, mask: Tensor) -> Tensor {
        drop((self.key, self.query, self.sample));
        let length = self.seq_len.into();
        let sizes = [self.batch.into(), Size::REST, length, length];
        let expanded = (&mask).expand(&sizes).and_drop(mask);
        let [sample, head, query, key] = self.aranges;
        expanded.and_drop((sample, head, query, key))
    }
}

/// `torch.finfo(dtype).min`.
pub(super) fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::Float16 => -65504.0,
        // The largest power of two, times what eight bits of precision reach.
        DType::BFloat16 => -(2.0 - 2_f64.powi(-7)) * 2_f64.powi(127),
        DType::Float64 => f64::MIN,
        _ => f64::from(f32::MIN),
    }
}
