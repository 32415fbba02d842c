//! Attention from compressed keys and values: `modeling_deepseek_v3.py` and `modeling_deepseek_v2.py`.

use super::attention::sdpa;
use super::decoder::Decoder;
use super::layer::Around;
use super::norm::Norm;
use super::rotation::{Part, apply_rotary};
use crate::huggingface::attention::joined;
use crate::huggingface::prelude::*;
use crate::tracing::functional::Attention as Settings;

/// Widths of compressed keys and values, and of parts of heads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ranks {
    /// What queries are compressed to, if they are.
    pub(super) queries: Option<u64>,
    pub(super) keys_and_values: u64,
    /// Elements of a head of queries and keys that are not rotated, and those that are.
    pub(super) plain: u64,
    pub(super) rotated: u64,
    pub(super) value: u64,
    /// Whether the layers that compress have biases.
    pub(super) bias: bool,
}

/// `DeepseekV3Attention`.
pub(super) struct LatentAttention {
    place: ModulePath,
    queries: Queries,
    kv_a_proj_with_mqa: Linear,
    kv_a_layernorm: Norm,
    kv_b_proj: Linear,
    o_proj: Linear,
    ranks: Ranks,
    heads: [u64; 2],
    scale: f64,
    dropout: f64,
    part: Part,
    layer: usize,
}

enum Queries {
    Plain(Linear),
    Compressed { a: Linear, norm: Norm, b: Linear },
}

impl LatentAttention {
    pub(super) fn new(
        tracer: &Tracer,
        path: String,
        config: &Decoder,
        (layer, ranks): (u64, Ranks),
    ) -> LatentAttention {
        let place = ModulePath::new(path, config.class("Attention"));
        let (width, bias) = (config.width, ranks.bias);
        let linear = |name: &str, sizes, bias| Linear::new(tracer, place.path(name), sizes, bias);
        let norm = |name: &str, width| {
            let class = config.class("RMSNorm");
            Norm::new(tracer, config.norm, class, place.path(name), width, 1e-6)
        };
        let of_heads = |width: u64| config.heads.saturating_mul(width);
        let all_queries = of_heads(ranks.plain.saturating_add(ranks.rotated));
        let compressed = ranks.keys_and_values;
        LatentAttention {
            queries: match ranks.queries {
                None => Queries::Plain(linear("q_proj", [width, all_queries], false)),
                Some(rank) => Queries::Compressed {
                    a: linear("q_a_proj", [width, rank], bias),
                    norm: norm("q_a_layernorm", rank),
                    b: linear("q_b_proj", [rank, all_queries], false),
                },
            },
            kv_a_proj_with_mqa: linear(
                "kv_a_proj_with_mqa",
                [width, compressed.saturating_add(ranks.rotated)],
                bias,
            ),
            kv_a_layernorm: norm("kv_a_layernorm", compressed),
            kv_b_proj: linear(
                "kv_b_proj",
                [
                    compressed,
                    of_heads(ranks.plain.saturating_add(ranks.value)),
                ],
                false,
            ),
            o_proj: linear("o_proj", [of_heads(ranks.value), width], bias),
            ranks,
            heads: [config.heads, config.kv_heads],
            scale: config.scale,
            dropout: config.dropout,
            part: config.rotation.part,
            layer: usize::try_from(layer).unwrap_or(usize::MAX),
            place,
        }
    }

    pub(super) fn forward(&self, x: &Tensor, (rotations, mask, past): Around<'_>) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let (batch, seq_len) = (x.size(0), x.size(1));
            let ranks = self.ranks;
            let mut q_states = match &self.queries {
                Queries::Plain(q_proj) => q_proj.forward(x),
                Queries::Compressed { a, norm, b } => b.forward(norm.forward(a.forward(x))),
            };
            let query_width = ranks.plain.saturating_add(ranks.rotated);
            let heads = [batch.into(), seq_len.into(), Size::REST, query_width.into()];
            q_states = (&q_states).view(&heads).transpose(1, 2);
            let [q_pass, mut q_rot] =
                pair((&q_states).split_into(&[ranks.plain, ranks.rotated], -1));
            let compressed_kv = self.kv_a_proj_with_mqa.forward(x);
            let parts = (&compressed_kv).split_into(&[ranks.keys_and_values, ranks.rotated], -1);
            let [mut kv_nope, mut k_rot] = pair(parts);
            kv_nope = self.kv_a_layernorm.forward(&kv_nope);
            let one_head = |width: u64| [batch.into(), 1.into(), seq_len.into(), width.into()];
            kv_nope = (&kv_nope).view(&one_head(ranks.keys_and_values));
            k_rot = (&k_rot).view(&one_head(ranks.rotated));
            [q_rot, k_rot] = apply_rotary(&q_rot, &k_rot, rotations, self.part);
            // What is kept is still compressed.
            if let Some(past) = past {
                [kv_nope, k_rot] = past.cache.update(self.layer, [&kv_nope, &k_rot]);
            }
            let query_states = x.tracer().cat_of(&[&q_pass, &q_rot], -1);
            let [key_states, value_states] = self.expand_kv(&kv_nope, &k_rot);
            let settings = Settings::of_decoder(x, mask, [self.dropout, self.scale]);
            let mut output = joined(sdpa(
                &query_states,
                &key_states,
                &value_states,
                self.heads,
                settings,
            ));
            output = self.o_proj.forward(&output);
            drop((q_states, q_pass, q_rot, compressed_kv));
            // `modeling_deepseek_v2.py` has another name for what is normalized.
            if self.part == Part::Complex {
                drop((k_rot, kv_nope));
            } else {
                drop((kv_nope, k_rot));
            }
            output.and_drop((query_states, key_states, value_states))
        })
    }

    fn expand_kv(&self, kv_nope: &Tensor, k_rot: &Tensor) -> [Tensor; 2] {
        let ranks = self.ranks;
        let (batch, seq_len) = (kv_nope.size(0), kv_nope.size(2));
        let width = ranks.plain.saturating_add(ranks.value);
        let expanded = self
            .kv_b_proj
            .forward(kv_nope)
            .view(&[batch.into(), seq_len.into(), Size::REST, width.into()])
            .transpose(1, 2);
        let [plain_keys, value_states] =
            pair((&expanded).split_into(&[ranks.plain, ranks.value], -1));
        let heads = Size::from(plain_keys.size(1));
        let k_rot = k_rot.expand(&[Size::REST, heads, Size::REST, Size::REST]);
        let key_width = ranks.plain.saturating_add(ranks.rotated);
        let shape = [batch.into(), heads, seq_len.into(), key_width.into()];
        let key_states = (&expanded).new_empty(&shape);
        let plain = ranks.plain.cast_signed();
        for (part, from) in [
            ((&key_states).slice(3, 0, plain), &plain_keys),
            ((&key_states).slice_from(3, plain), &k_rot),
        ] {
            part.change_in_place("aten.copy_.default", &[("src", Argument::Tensor(from))]);
        }
        drop((expanded, k_rot, plain_keys));
        [key_states, value_states]
    }
}

/// Both parts of a split.
fn pair(parts: Vec<Tensor>) -> [Tensor; 2] {
    let mut parts = parts.into_iter();
    match (parts.next(), parts.next()) {
        (Some(first), Some(second)) => [first, second],
        _ => unreachable!("a split into two has two parts"),
    }
}
