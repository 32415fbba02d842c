//! Attention as transformers calls it.

use super::tasks::stem;
use crate::huggingface::prelude::*;
use crate::shape::numel;
use crate::tracing::functional::Attention;
use crate::tracing::{Attending, Eager};

/// How a family attends, apart from how it calls `scaled_dot_product_attention`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AttentionCode {
    pub(super) eager: Eager,
    /// Whether tokens attend to those before them alone; `None` where there are no texts, which could be padded.
    pub(super) causal: Option<bool>,
}

/// Probabilities in float32, in the type of the queries after that, or as they come.
const IN_FLOAT32: Eager = Eager {
    softmax: Some(DType::Float32),
    casts: true,
};
const CAST: Eager = Eager {
    softmax: None,
    ..IN_FLOAT32
};
const AS_IT_IS: Eager = Eager {
    casts: false,
    ..CAST
};

/// Families by what their classes' names begin with, and how their `eager_attention_forward` and masks are written.
const WRITTEN: &[(&str, Eager, Option<bool>)] = &[
    (
        "Llama Mistral Mixtral Qwen2 Qwen2Moe Qwen3 Qwen3Moe Gemma Gemma3 Phi Phi3 Olmo Olmo2 Granite SmolLM3 DeepseekV2 \
         DeepseekV3 GPTNeoX OPT",
        IN_FLOAT32,
        Some(true),
    ),
    ("GPT2", CAST, Some(true)),
    (
        "Bert Roberta XLMRoberta Camembert DistilBert Albert Electra",
        AS_IT_IS,
        Some(false),
    ),
    ("ViT DeiT Swin CLIP", IN_FLOAT32, None),
    ("Dinov2", AS_IT_IS, None),
];

/// How attention is written for a class, where it is known.
pub(super) fn attention_code(class: &str) -> Option<AttentionCode> {
    let stem = stem(class);
    let is_known = |stems: &str| stems.split(' ').any(|known| known == stem);
    let mut known = WRITTEN.iter().filter(|(stems, ..)| is_known(stems));
    let (_, eager, causal) = *known.next()?;
    Some(AttentionCode { eager, causal })
}

/// Runs `forward` on texts, which are padded if the request says so.
pub(super) fn padded<T>(task: &Task<'_>, ids: &Tensor, forward: impl FnOnce() -> T) -> T {
    if !task.sizes.padded {
        return forward();
    }
    let tracer = ids.tracer();
    let shape = [ids.size(0), Extent::fixed(ids.length(1))];
    let attention_mask = tracer.input("attention_mask", &shape, DType::Int64);
    let is_causal = task.written.and_then(|written| written.causal);
    let before = tracer.attending();
    tracer.attend(if is_causal == Some(true) {
        Attending {
            padding: Some(attention_mask),
            ..before.clone()
        }
    } else {
        // `create_bidirectional_mask`.
        Attending {
            mask: Some(of_padding(&attention_mask, false, |mask| mask)),
            ..before.clone()
        }
    });
    let made = forward();
    tracer.attend(before);
    made
}

/// `create_causal_mask` where nothing is kept: a mask where texts are padded or attention is eager.
pub(super) fn create_causal_mask(position_ids: &Tensor, batch: Extent) -> Option<Tensor> {
    let tracer = position_ids.tracer();
    let attending = tracer.attending();
    if let Some(attention_mask) = attending.padding {
        return causal_mask_of(&attention_mask);
    }
    look_for_packed_sequences(position_ids, batch);
    let is_eager = attending.eager.is_some();
    let mask = is_eager.then(|| causal_mask(&tracer, batch, position_ids.length(1)))?;
    Some(biases(mask, tracer.dtype()))
}

/// The mask of eager attention to the tokens before, for hidden states.
pub(super) fn causal_biases_of(hidden_states: &Tensor) -> Tensor {
    let tracer = hidden_states.tracer();
    let mask = causal_mask(&tracer, hidden_states.size(0), hidden_states.length(1));
    biases(mask, tracer.dtype())
}

/// The same of an `attention_mask`, which masks nothing unless texts are padded.
pub(super) fn causal_mask_of(attention_mask: &Tensor) -> Option<Tensor> {
    let tracer = attention_mask.tracer();
    let attending = tracer.attending();
    if attending.eager.is_some() {
        return Some(causal_biases(attention_mask, tracer.dtype()));
    }
    if attending.padding.is_some() {
        return Some(of_padding(attention_mask, true, |mask| mask));
    }
    look_for_padding(attention_mask);
    None
}

/// `eager_attention_forward`, with as many heads of keys and values as of queries.
fn eager(
    query: &Tensor,
    (key, value): (Tensor, Tensor),
    settings: &Attention<'_>,
    eager: Eager,
) -> Tensor {
    let mut weights = query.matmul((&key).transpose(2, 3));
    weights = (&weights).mul_number(settings.scale.unwrap_or(1.0));
    if let Some(mask) = settings.mask {
        weights = (&weights).add(mask);
    }
    if eager.softmax.is_some() {
        let of_query = query.dtype();
        weights = (&weights).softmax(-1, eager.softmax).to_dtype_of(of_query);
    } else {
        weights = (&weights).softmax(-1, None);
        if eager.casts {
            weights = (&weights).to_dtype_of(value.dtype());
        }
    }
    weights = functional::dropout(&weights, settings.dropout);
    let mut output = (&weights).matmul(&value);
    output = (&output).transpose(1, 2).contiguous();
    query.tracer().keep_for_caller(weights);
    output.and_drop((key, value))
}

/// Widest head for which `sdpa` lets several query heads share one of key and value: `use_gqa_in_sdpa`.
const WIDEST_SHARED: u64 = 256;

/// `sdpa_attention_forward`, or what stands in its place.
pub(super) fn sdpa(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    settings: Attention<'_>,
) -> Tensor {
    sdpa_of_heads(query, key, value, [1, 1], settings)
}

/// The same with heads of queries and of keys.
pub(super) fn sdpa_of_heads(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    [heads, kv_heads]: [u64; 2],
    settings: Attention<'_>,
) -> Tensor {
    let mut key = key.clone();
    let mut value = value.clone();
    let attending = query.tracer().attending();
    let settings = settings.or_masked(attending.mask.as_ref());
    let mut grouped = false;
    if heads > kv_heads {
        let width = key.length(-1);
        let is_one_call = attending.eager.is_none() && settings.mask.is_none();
        if is_one_call && width == value.length(-1) && width <= WIDEST_SHARED {
            grouped = true;
        } else {
            key = repeat(&key, heads / kv_heads);
            value = repeat(&value, heads / kv_heads);
        }
    }
    if let Some(how) = attending.eager {
        return eager(query, (key, value), &settings, how);
    }
    let settings = Attention {
        grouped,
        ..settings
    };
    only_prompt(query, [&mut key, &mut value], &settings);
    let mut output = functional::attention(query, &key, &value, settings);
    output = (&output).transpose(1, 2).contiguous();
    output.and_drop((key, value))
}

/// `repeat_kv`.
fn repeat(x: &Tensor, times: u64) -> Tensor {
    let [batch, heads, length, width] = [0, 1, 2, 3].map(|dim| x.size(dim));
    let all = x.length(1).saturating_mul(times);
    let expanded = x.unsqueeze(2).expand(&[
        batch.into(),
        heads.into(),
        times.into(),
        length.into(),
        width.into(),
    ]);
    expanded.reshape(&[batch.into(), all.into(), length.into(), width.into()])
}

/// `attn_output.reshape(*input_shape, -1).contiguous()` of what attention gives.
pub(super) fn joined(output: Tensor) -> Tensor {
    let [batch, tokens] = [0, 1].map(|dim| Size::from(output.size(dim)));
    let all = (&output).reshape(&[batch, tokens, Size::REST]).contiguous();
    all.and_drop(output)
}

/// What `sdpa_attention_forward` does with a prompt and keys and values that have room for more: it leaves that out.
fn only_prompt(query: &Tensor, states: [&mut Tensor; 2], settings: &Attention<'_>) {
    let queries = query.length(2);
    for states in states {
        if settings.causal && states.length(2) > queries {
            *states = (&*states).slice(2, 0, queries.cast_signed());
        }
    }
}

/// Attention of all tokens to all, as BERT, ALBERT, DistilBERT and ViT write it, by three linear layers: what it gives each token, with the
/// queries, keys and values that the caller's names hold on to.
pub(super) fn self_attention(
    at: &Frame,
    (names, sizes, bias): ([&str; 3], [u64; 2], bool),
    head_dim: u64,
    dropout: f64,
    x: &Tensor,
) -> (Tensor, [Tensor; 3]) {
    let (batch, seq_len): (Size, Size) = (x.size(0).into(), x.size(1).into());
    let heads = [batch, seq_len, Size::REST, head_dim.into()];
    let states = names.map(|name| at.linear(name, sizes, bias, x).view(&heads).transpose(1, 2));
    let settings = Attention {
        dropout,
        scale: Some((head_dim as f64).powf(-0.5)),
        ..Attention::default()
    };
    let [query, key, value] = &states;
    let output = joined(sdpa(query, key, value, settings));
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
    of_padding(attention_mask, true, |mask| biases(mask, dtype))
}

/// What `mask` makes of truth values of queries and keys, of which padding is none; attention is to all tokens, or to those before.
fn of_padding(
    attention_mask: &Tensor,
    is_causal: bool,
    mask: impl FnOnce(Tensor) -> Tensor,
) -> Tensor {
    let tracer = attention_mask.tracer();
    let padding_mask = attention_mask.to(DType::Bool);
    let indices = Indices::new(&tracer, padding_mask.size(0), padding_mask.length(1));
    let (query, key) = (&indices.query, &indices.key);
    let mut allowed = query.new_ones(&[], DType::Bool);
    let seen = if is_causal {
        key.at_most(query)
    } else {
        // `q_idx >= 0`, of the same shape and type.
        query.not_equal_to_number(-1_i64)
    };
    allowed = (&allowed).and(seen);
    allowed = (&allowed).and((&padding_mask).index(&[Some(&indices.sample), Some(key)]));
    mask(indices.expanded(allowed)).and_drop(padding_mask)
}

/// What is added to scores of this dtype for truth values: `eager_mask`.
fn biases(mask: Tensor, dtype: DType) -> Tensor {
    let zero = mask.tracer().constant(&[], dtype);
    mask.choose_or_number(zero, smallest(dtype))
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

/// What `_relative_position_bucket` of T5 and of `MPNet` make of distances of at least 0: half of the buckets are for one distance each, the
/// others grow by its logarithm up to `farthest`. Also gives what the function names until it returns.
pub(super) fn distance_buckets(
    distances: &Tensor,
    buckets: i64,
    farthest: f64,
) -> (Tensor, [Tensor; 2]) {
    let exact = buckets / 2;
    let is_small = distances.less_than_number(exact);
    let mut if_large = distances
        .to(DType::Float32)
        .div_number(exact)
        .log()
        .div_number((farthest / exact as f64).ln())
        .mul_number(buckets - exact)
        .to(DType::Int64)
        .add_number(exact);
    if_large = (&if_large).minimum((&if_large).full_like(buckets - 1));
    let near_or_far = (&is_small).choose(distances, &if_large);
    (near_or_far, [is_small, if_large])
}
