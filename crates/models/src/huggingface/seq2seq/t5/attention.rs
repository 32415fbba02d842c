//! Attention with a bias that depends on how far apart tokens are.

use super::{CODE, Part, T5, new_norm};
use crate::huggingface::attention::{distance_buckets, sdpa, smallest};
use crate::huggingface::prelude::*;
use crate::tracing::functional::Attention as Settings;

/// `T5Attention`.
struct Attention {
    place: ModulePath,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    relative_attention_bias: Option<Embedding>,
    part: Part,
    is_causal: bool,
    heads: u64,
    head_dim: u64,
    buckets: u64,
    max_distance: u64,
    dropout: f64,
}

/// What an attention is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Role {
    pub(super) part: Part,
    pub(super) is_cross: bool,
    pub(super) has_bias: bool,
}

impl Attention {
    fn new(tracer: &Tracer, path: String, config: &T5, role: Role) -> Attention {
        let place = CODE.place(path, "Attention");
        let inner = config.heads.saturating_mul(config.head_dim);
        let linear = |name: &str, sizes| Linear::new(tracer, place.path(name), sizes, false);
        Attention {
            q: linear("q", [config.width, inner]),
            k: linear("k", [config.width, inner]),
            v: linear("v", [config.width, inner]),
            o: linear("o", [inner, config.width]),
            relative_attention_bias: role.has_bias.then(|| {
                let path = place.path("relative_attention_bias");
                Embedding::new(tracer, path, [config.buckets, config.heads])
            }),
            part: role.part,
            is_causal: role.part == Part::Decoder && !role.is_cross,
            heads: config.heads,
            head_dim: config.head_dim,
            buckets: config.buckets,
            max_distance: config.max_distance,
            dropout: config.dropout,
            place,
        }
    }

    /// The result, and the bias of positions, which the first layer computes for all.
    fn forward(
        &self,
        x: &Tensor,
        key_value_states: Option<&Tensor>,
        position_bias: Option<&Tensor>,
    ) -> (Tensor, Tensor) {
        let tracer = x.tracer();
        tracer.in_module(&self.place, || {
            let heads = |x: &Tensor| {
                let lengths = [x.size(0).into(), x.size(1).into()];
                [lengths[0], lengths[1], Size::REST, self.head_dim.into()]
            };
            let query = self.q.forward(x).view(&heads(x)).transpose(1, 2);
            let current = key_value_states.unwrap_or(x);
            let shape = heads(current);
            let key = self.k.forward(current).view(&shape).transpose(1, 2);
            let value = self.v.forward(current).view(&shape).transpose(1, 2);
            let lengths = [x.length(1), current.length(1)];
            let position_bias = match (position_bias, &self.relative_attention_bias) {
                (Some(bias), _) => bias.clone(),
                (None, Some(table)) => self.compute_bias(&tracer, table, lengths),
                (None, None) => {
                    let [queries, keys] = lengths;
                    let shape = [1, self.heads, queries, keys].map(Size::from);
                    tracer.zeros(&shape, query.dtype().dtype)
                }
            };
            let mut output = self.attend(&query, &key, &value, &position_bias);
            output = (&output)
                .reshape(&[x.size(0).into(), x.size(1).into(), Size::REST])
                .contiguous();
            output = self.o.forward(&output);
            drop((query, key, value));
            (output, position_bias)
        })
    }

    /// `sdpa_attention_forward` with a bias, which becomes the mask.
    fn attend(&self, query: &Tensor, key: &Tensor, value: &Tensor, bias: &Tensor) -> Tensor {
        let [queries, keys] = [query.length(2), key.length(2)];
        let mask = if self.is_causal && queries > 1 {
            let tracer = query.tracer();
            let rows = tracer.arange(queries).unsqueeze(1);
            let causal = rows.at_least(tracer.arange(keys).unsqueeze(0));
            let shape = [1, 1, queries, keys].map(Size::from);
            let lowest = smallest(key.dtype().dtype);
            causal.view(&shape).choose_or_number(bias, lowest)
        } else {
            bias.clone()
        };
        let settings = Settings {
            mask: Some(&mask),
            dropout: self.dropout,
            scale: Some(1.0),
            ..Settings::default()
        };
        sdpa(query, key, value, settings)
    }

    /// `compute_bias`.
    fn compute_bias(
        &self,
        tracer: &Tracer,
        table: &Embedding,
        [queries, keys]: [u64; 2],
    ) -> Tensor {
        let context_position = tracer.arange(queries).unsqueeze(1).add_number(0);
        let memory_position = tracer.arange(keys).unsqueeze(0);
        let relative_position = (&memory_position).sub(&context_position);
        let bucket = self.bucket(&relative_position);
        let mut values = table.forward(&bucket);
        values = (&values).permute(&[2, 0, 1]).unsqueeze(0);
        values.and_drop((context_position, memory_position, relative_position, bucket))
    }

    /// `_relative_position_bucket`.
    fn bucket(&self, relative_position: &Tensor) -> Tensor {
        let mut buckets = self.buckets.cast_signed();
        let mut so_far = None;
        let relative_position = if self.part == Part::Encoder {
            buckets /= 2;
            let is_after = relative_position.greater_than_number(0).to(DType::Int64);
            so_far = Some(is_after.mul_number(buckets).add_number(0));
            relative_position.abs()
        } else {
            relative_position
                .minimum(relative_position.zeros_like())
                .neg()
        };
        let farthest = self.max_distance as f64;
        let (near_or_far, named) = distance_buckets(&relative_position, buckets, farthest);
        let relative_buckets = if let Some(so_far) = so_far {
            so_far.add_in_place(near_or_far);
            so_far
        } else {
            near_or_far.add_number(0)
        };
        relative_buckets.and_drop((relative_position, named))
    }
}

/// `T5LayerSelfAttention` or `T5LayerCrossAttention`.
pub(super) fn new_attention_layer(
    tracer: &Tracer,
    path: String,
    config: &T5,
    role: Role,
) -> impl Fn(&Tensor, Option<&Tensor>, Option<&Tensor>) -> (Tensor, Tensor) + use<> {
    let (class, name) = if role.is_cross {
        ("LayerCrossAttention", "EncDecAttention")
    } else {
        ("LayerSelfAttention", "SelfAttention")
    };
    let place = CODE.place(path, class);
    let attention = Attention::new(tracer, place.path(name), config, role);
    let layer_norm = new_norm(tracer, place.path("layer_norm"), config);
    let dropout = Dropout::new(place.path("dropout"), config.dropout);
    let is_cross = role.is_cross;
    move |x: &Tensor, key_value_states: Option<&Tensor>, position_bias: Option<&Tensor>| {
        x.tracer().in_module(&place, || {
            let normed = layer_norm.forward(x);
            let (mut output, bias) = attention.forward(&normed, key_value_states, position_bias);
            let sum = x.add(dropout.forward(&output));
            if is_cross {
                return (sum.and_drop((normed, output)), bias);
            }
            output = sum;
            (output.and_drop(normed), bias)
        })
    }
}
