//! Attention with a bias that depends on how far apart tokens are.

use super::{Part, T5, norm};
use crate::huggingface::attention::{distance_buckets, sdpa, smallest};
use crate::huggingface::prelude::*;
use crate::tracing::functional::Attention as Settings;

/// What an attention is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Role {
    pub(super) part: Part,
    pub(super) is_cross: bool,
    pub(super) has_bias: bool,
}

impl Role {
    fn is_causal(self) -> bool {
        self.part == Part::Decoder && !self.is_cross
    }
}

/// `T5Attention`, as it is called.
struct Attention<'a> {
    at: &'a Frame,
    config: &'a T5,
    role: Role,
}

impl Attention<'_> {
    /// The result, and the bias of positions, which the first layer computes for all.
    fn forward(
        &self,
        x: &Tensor,
        key_value_states: Option<&Tensor>,
        position_bias: Option<&Tensor>,
    ) -> (Tensor, Tensor) {
        let (at, config) = (self.at, self.config);
        let inner = config.heads.saturating_mul(config.head_dim);
        let linear = |name: &str, sizes, x: &Tensor| at.linear(name, sizes, false, x);
        let in_heads = |name: &str, x: &Tensor| {
            let lengths: [Size; 2] = [x.size(0).into(), x.size(1).into()];
            let heads = [lengths[0], lengths[1], Size::REST, config.head_dim.into()];
            let states = linear(name, [config.width, inner], x);
            states.view(&heads).transpose(1, 2)
        };
        let query = in_heads("q", x);
        let current = key_value_states.unwrap_or(x);
        let key = in_heads("k", current);
        let value = in_heads("v", current);
        at.made(&["o"]);
        let table = self
            .role
            .has_bias
            .then(|| at.embedding("relative_attention_bias", [config.buckets, config.heads]));
        let lengths = [x.length(1), current.length(1)];
        let position_bias = match (position_bias, &table) {
            (Some(bias), _) => bias.clone(),
            (None, Some(table)) => self.compute_bias(at.tracer(), table, lengths),
            (None, None) => {
                let [queries, keys] = lengths;
                let shape = [1, config.heads, queries, keys].map(Size::from);
                at.tracer().zeros(&shape, query.dtype().dtype)
            }
        };
        let mut output = self.attend(&query, &key, &value, &position_bias);
        output = (&output)
            .reshape(&[x.size(0).into(), x.size(1).into(), Size::REST])
            .contiguous();
        output = linear("o", [inner, config.width], &output);
        drop((query, key, value));
        (output, position_bias)
    }

    /// `sdpa_attention_forward` with a bias, which becomes the mask.
    fn attend(&self, query: &Tensor, key: &Tensor, value: &Tensor, bias: &Tensor) -> Tensor {
        let [queries, keys] = [query.length(2), key.length(2)];
        let mask = if self.role.is_causal() && queries > 1 {
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
            dropout: self.config.dropout,
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
        let mut buckets = self.config.buckets.cast_signed();
        let mut so_far = None;
        let relative_position = if self.role.part == Part::Encoder {
            buckets /= 2;
            let is_after = relative_position.greater_than_number(0).to(DType::Int64);
            so_far = Some(is_after.mul_number(buckets).add_number(0));
            relative_position.abs()
        } else {
            relative_position
                .minimum(relative_position.zeros_like())
                .neg()
        };
        let farthest = self.config.max_distance as f64;
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
pub(super) fn attention_layer(
    at: &Frame,
    name: &str,
    config: &T5,
    role: Role,
    x: &Tensor,
    [key_value_states, position_bias]: [Option<&Tensor>; 2],
) -> (Tensor, Tensor) {
    let (class, inner) = if role.is_cross {
        ("LayerCrossAttention", "EncDecAttention")
    } else {
        ("LayerSelfAttention", "SelfAttention")
    };
    at.call(name, class, |at| {
        at.made(&[inner]);
        let normed = norm(at, "layer_norm", config, x);
        let (mut output, bias) = at.call(inner, "Attention", |at| {
            let attention = Attention { at, config, role };
            attention.forward(&normed, key_value_states, position_bias)
        });
        let sum = x.add(at.dropout("dropout", config.dropout, &output));
        if role.is_cross {
            return (sum.and_drop((normed, output)), bias);
        }
        output = sum;
        (output.and_drop(normed), bias)
    })
}
