//! Attention in decoders with rotary embeddings.

use super::decoder::Decoder;
use super::layer::Around;
use super::rotation::{Part, Rotations, apply_rotary, split_heads_at};
use crate::huggingface::attention::{joined, sdpa_of_heads};
use crate::huggingface::prelude::*;
use crate::tracing::functional::Attention as Settings;

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
pub(super) fn attention(
    at: &Frame,
    config: &Decoder,
    layer: u64,
    x: &Tensor,
    (rotations, mask, past): Around<'_>,
) -> Tensor {
    if config.is_projected_as_one {
        at.made(&["o_proj"]);
    } else {
        at.made(&["q_proj", "k_proj", "v_proj", config.output_name]);
    }
    let ([mut query, mut key, mut value], whole) = project(at, config, x);
    if config.query_norms == QueryNorms::OfHeadsLater {
        let [of_query, of_key] = config.query_norm_names;
        query = config.norm(at, of_query, config.shape.head_dim, query);
        key = config.norm(at, of_key, config.shape.head_dim, key);
    }
    let mut parts = Vec::new();
    let how = config.rotation;
    if how.part == Part::FirstBeforehand {
        parts = rotate_part(how.dims, [&mut query, &mut key], rotations);
    } else if config.is_rotated(layer) {
        [query, key] = apply_rotary(&query, &key, rotations, how.part);
    }
    if let Some(past) = past {
        [key, value] = past.cache.update(layer, [&key, &value]);
    }
    let settings = Settings::of_decoder(x, mask, [config.shape.attention_dropout, config.scale]);
    let heads = [config.shape.heads, config.shape.kv_heads];
    let mut output = joined(sdpa_of_heads(&query, &key, &value, heads, settings));
    let sizes = [
        config.shape.heads.saturating_mul(config.shape.head_dim),
        config.shape.width,
    ];
    output = at.linear(config.output_name, sizes, config.output_bias, output);
    drop((whole, query, key, value));
    parts.into_iter().for_each(drop);
    output
}

/// Queries, keys and values, and all of them together where one layer makes them.
fn project(at: &Frame, config: &Decoder, x: &Tensor) -> ([Tensor; 3], Option<Tensor>) {
    let (batch, seq_len) = (x.size(0).into(), x.size(1).into());
    let shape = [batch, seq_len, Size::REST, config.shape.head_dim.into()];
    let into_heads = |x: Tensor| (&x).view(&shape).transpose(1, 2);
    let width_of = |heads: u64| heads.saturating_mul(config.shape.head_dim);
    let [queries, keys] = [config.shape.heads, config.shape.kv_heads].map(width_of);
    if config.is_projected_as_one {
        let all = queries.saturating_add(keys.saturating_mul(2));
        let qkv = at.linear("qkv_proj", [config.shape.width, all], config.qkv_bias, x);
        let queries = queries.cast_signed();
        let both = queries.saturating_add(keys.cast_signed());
        let query = (&qkv).slice(2, 0, queries);
        let key = (&qkv).slice(2, queries, both);
        let value = (&qkv).slice_from(2, both);
        let heads = [query, key, value].map(into_heads);
        return (heads, Some(qkv));
    }
    let proj = |name, width| at.linear(name, [config.shape.width, width], config.qkv_bias, x);
    let [of_query, of_key] = config.query_norm_names;
    let three = match config.query_norms {
        QueryNorms::OfHeads => {
            let norm = |name, x: Tensor| {
                let normed = config.norm(at, name, config.shape.head_dim, x.view(&shape));
                normed.transpose(1, 2)
            };
            let query = norm(of_query, proj("q_proj", queries));
            let key = norm(of_key, proj("k_proj", keys));
            [query, key, into_heads(proj("v_proj", keys))]
        }
        QueryNorms::OfAllHeads => {
            let query = config.norm(at, of_query, queries, proj("q_proj", queries));
            let key = config.norm(at, of_key, keys, proj("k_proj", keys));
            let three = [query, key, proj("v_proj", keys)];
            three.map(into_heads)
        }
        QueryNorms::None | QueryNorms::OfHeadsLater => {
            let widths = [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)];
            if !config.is_projected_before_heads {
                return (
                    widths.map(|(name, width)| into_heads(proj(name, width))),
                    None,
                );
            }
            let three = widths.map(|(name, width)| proj(name, width));
            if let Some(clip) = config.clip {
                let bounds = [
                    ("min", Argument::Float(-clip)),
                    ("max", Argument::Float(clip)),
                ];
                for states in &three {
                    states.change_in_place("aten.clamp_.default", &bounds);
                }
            }
            three.map(into_heads)
        }
    };
    (three, None)
}

/// `PhiAttention`: rotates the first elements of each head; gives the names that the code has for its parts.
fn rotate_part(dims: u64, [query, key]: [&mut Tensor; 2], rotations: &Rotations) -> Vec<Tensor> {
    let (mut query_rot, query_pass) = split_heads_at(query, dims);
    let (mut key_rot, key_pass) = split_heads_at(key, dims);
    [query_rot, key_rot] = apply_rotary(&query_rot, &key_rot, rotations, Part::FirstBeforehand);
    let tracer = query.tracer();
    *query = tracer.cat_of(&[&query_rot, &query_pass], -1);
    *key = tracer.cat_of(&[&key_rot, &key_pass], -1);
    vec![query_rot, query_pass, key_rot, key_pass]
}
