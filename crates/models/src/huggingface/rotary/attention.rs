//! Attention in decoders with rotary embeddings.

use super::decoder::Decoder;
use super::layer::Around;
use super::norm::Norm;
use super::rotation::{Part, Rotations, apply_rotary, split_heads_at};
use crate::huggingface::attention::{eager, joined, only_prompt};
use crate::huggingface::prelude::*;
use crate::tracing::functional::Attention as Settings;

/// Widest head for which `sdpa` lets several query heads share one of key and value: `use_gqa_in_sdpa`.
const WIDEST_SHARED: u64 = 256;

/// Where queries and keys are normalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueryNorms {
    None,
    /// Each head by itself, right after its projection: `modeling_qwen3.py`.
    OfHeads,
    /// Each head by itself, once there are queries, keys and values: `modeling_gemma3.py`, `modeling_phi.py`.
    OfHeadsLater,
    /// All heads together: `modeling_olmo2.py`.
    OfAllHeads,
}

/// `LlamaAttention`, and those of other families.
pub(super) struct Attention {
    place: ModulePath,
    projections: Projections,
    o_proj: Linear,
    norms: Option<[Norm; 2]>,
    norms_at: QueryNorms,
    /// Heads of queries and of keys.
    heads: [u64; 2],
    head_dim: u64,
    dropout: f64,
    scale: f64,
    is_projected_before_heads: bool,
    clip: Option<f64>,
    part: Part,
    rotated: u64,
    is_rotated: bool,
    layer: usize,
}

enum Projections {
    Three([Linear; 3]),
    /// `qkv_proj`.
    One(Linear),
}

impl Attention {
    pub(super) fn new(tracer: &Tracer, path: String, config: &Decoder, layer: u64) -> Attention {
        let place = ModulePath::new(path, config.class("Attention"));
        let linear = |name: &str, sizes, bias| Linear::new(tracer, place.path(name), sizes, bias);
        let width_of = |heads: u64| heads.saturating_mul(config.head_dim);
        let [queries, keys] = [config.heads, config.kv_heads].map(width_of);
        let to_output = [queries, config.width];
        let (projections, o_proj) = if config.is_projected_as_one {
            let o_proj = linear("o_proj", to_output, config.output_bias);
            let all = queries.saturating_add(keys.saturating_mul(2));
            let all = linear("qkv_proj", [config.width, all], config.qkv_bias);
            (Projections::One(all), o_proj)
        } else {
            let of = |name, outputs| linear(name, [config.width, outputs], config.qkv_bias);
            let three = [
                of("q_proj", queries),
                of("k_proj", keys),
                of("v_proj", keys),
            ];
            let o_proj = linear(config.output_name, to_output, config.output_bias);
            (Projections::Three(three), o_proj)
        };
        let widths = match config.query_norms {
            QueryNorms::OfAllHeads => [queries, keys],
            _ => [config.head_dim; 2],
        };
        let norm = |name: &str, width| config.norm(tracer, place.path(name), width);
        let norms = (config.query_norms != QueryNorms::None).then(|| {
            let [query, key] = config.query_norm_names;
            [norm(query, widths[0]), norm(key, widths[1])]
        });
        Attention {
            place,
            projections,
            o_proj,
            norms,
            norms_at: config.query_norms,
            heads: [config.heads, config.kv_heads],
            head_dim: config.head_dim,
            dropout: config.dropout,
            scale: config.scale,
            is_projected_before_heads: config.is_projected_before_heads,
            clip: config.clip,
            part: config.rotation.part,
            rotated: config.rotation.dims,
            is_rotated: config.is_rotated(layer),
            layer: usize::try_from(layer).unwrap_or(usize::MAX),
        }
    }

    pub(super) fn forward(&self, x: &Tensor, (rotations, mask, past): Around<'_>) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let (batch, seq_len) = (x.size(0), x.size(1));
            let ([mut query, mut key, mut value], whole) = self.project(x, batch, seq_len);
            if let (Some([q_norm, k_norm]), QueryNorms::OfHeadsLater) = (&self.norms, self.norms_at)
            {
                query = q_norm.forward(&query);
                key = k_norm.forward(&key);
            }
            let mut parts = Vec::new();
            if self.part == Part::FirstBeforehand {
                parts = self.rotate_part(&mut query, &mut key, rotations);
            } else if self.is_rotated {
                [query, key] = apply_rotary(&query, &key, rotations, self.part);
            }
            if let Some(past) = past {
                [key, value] = past.cache.update(self.layer, [&key, &value]);
            }
            let settings = Settings::of_decoder(x, mask, [self.dropout, self.scale]);
            let mut output = joined(sdpa(&query, &key, &value, self.heads, settings));
            output = self.o_proj.forward(&output);
            drop((whole, query, key, value));
            parts.into_iter().for_each(drop);
            output
        })
    }

    /// Queries, keys and values, and all of them together where one layer makes them.
    fn project(&self, x: &Tensor, batch: Extent, seq_len: Extent) -> ([Tensor; 3], Option<Tensor>) {
        let shape = [
            batch.into(),
            seq_len.into(),
            Size::REST,
            self.head_dim.into(),
        ];
        let into_heads = |x: &Tensor| x.view(&shape).transpose(1, 2);
        match (&self.projections, self.norms_at, &self.norms) {
            (Projections::One(qkv_proj), ..) => {
                let qkv = qkv_proj.forward(x);
                let width_of = |heads: u64| heads.saturating_mul(self.head_dim).cast_signed();
                let [queries, keys] = self.heads.map(width_of);
                let both = queries.saturating_add(keys);
                let query = (&qkv).slice(2, 0, queries);
                let key = (&qkv).slice(2, queries, both);
                let value = (&qkv).slice_from(2, both);
                let heads = [query, key, value].map(|x| into_heads(&x));
                (heads, Some(qkv))
            }
            (Projections::Three([q_proj, k_proj, v_proj]), at, Some([q_norm, k_norm]))
                if at != QueryNorms::OfHeadsLater =>
            {
                if at == QueryNorms::OfHeads {
                    let norm = |norm: &Norm, proj: &Linear| {
                        norm.forward(proj.forward(x).view(&shape)).transpose(1, 2)
                    };
                    let (query, key) = (norm(q_norm, q_proj), norm(k_norm, k_proj));
                    return ([query, key, into_heads(&v_proj.forward(x))], None);
                }
                let query = q_norm.forward(q_proj.forward(x));
                let key = k_norm.forward(k_proj.forward(x));
                let value = v_proj.forward(x);
                ([query, key, value].map(|x| into_heads(&x)), None)
            }
            (Projections::Three(projections), ..) => {
                let projections = projections.each_ref();
                if !self.is_projected_before_heads {
                    let three = projections.map(|proj| into_heads(&proj.forward(x)));
                    return (three, None);
                }
                let three = projections.map(|proj| proj.forward(x));
                if let Some(clip) = self.clip {
                    let bounds = [
                        ("min", Argument::Float(-clip)),
                        ("max", Argument::Float(clip)),
                    ];
                    for states in &three {
                        states.change_in_place("aten.clamp_.default", &bounds);
                    }
                }
                (three.map(|x| into_heads(&x)), None)
            }
        }
    }

    /// `PhiAttention`: rotates the first elements of each head; gives the names that the code has for its parts.
    fn rotate_part(
        &self,
        query: &mut Tensor,
        key: &mut Tensor,
        rotations: &Rotations,
    ) -> Vec<Tensor> {
        let (mut query_rot, query_pass) = split_heads_at(query, self.rotated);
        let (mut key_rot, key_pass) = split_heads_at(key, self.rotated);
        [query_rot, key_rot] = apply_rotary(&query_rot, &key_rot, rotations, self.part);
        let tracer = query.tracer();
        *query = tracer.cat_of(&[&query_rot, &query_pass], -1);
        *key = tracer.cat_of(&[&key_rot, &key_pass], -1);
        vec![query_rot, query_pass, key_rot, key_pass]
    }
}

/// `sdpa_attention_forward`, with heads of queries and of keys.
pub(super) fn sdpa(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    [heads, kv_heads]: [u64; 2],
    settings: Settings<'_>,
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
    let settings = Settings {
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
