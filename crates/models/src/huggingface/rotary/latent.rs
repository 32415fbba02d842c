//! Attention from compressed keys and values: `modeling_deepseek_v3.py` and `modeling_deepseek_v2.py`.

use super::decoder::Decoder;
use super::layer::Around;
use super::norm::norm;
use super::rotation::{Part, apply_rotary};
use crate::huggingface::attention::{joined, sdpa_of_heads};
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
pub(super) fn latent_attention(
    at: &Frame,
    config: &Decoder,
    (layer, ranks): (u64, Ranks),
    x: &Tensor,
    (rotations, mask, past): Around<'_>,
) -> Tensor {
    let (width, bias) = (config.shape.width, ranks.bias);
    let norm = |name, width, x: Tensor| norm(at, name, config.norm, (width, 1e-6), x);
    let of_heads = |width: u64| config.shape.heads.saturating_mul(width);
    let (batch, seq_len) = (x.size(0), x.size(1));
    let query_width = ranks.plain.saturating_add(ranks.rotated);
    let all_queries = of_heads(query_width);
    let mut q_states = match ranks.queries {
        None => at.linear("q_proj", [width, all_queries], false, x),
        Some(rank) => {
            let low = at.linear("q_a_proj", [width, rank], bias, x);
            let low = norm("q_a_layernorm", rank, low);
            at.linear("q_b_proj", [rank, all_queries], false, low)
        }
    };
    let heads = [batch.into(), seq_len.into(), Size::REST, query_width.into()];
    q_states = (&q_states).view(&heads).transpose(1, 2);
    let [q_pass, mut q_rot] = pair((&q_states).split_into(&[ranks.plain, ranks.rotated], -1));
    let compressed = ranks.keys_and_values;
    let sizes = [width, compressed.saturating_add(ranks.rotated)];
    let compressed_kv = at.linear("kv_a_proj_with_mqa", sizes, bias, x);
    let parts = (&compressed_kv).split_into(&[compressed, ranks.rotated], -1);
    let [mut kv_nope, mut k_rot] = pair(parts);
    kv_nope = norm("kv_a_layernorm", compressed, kv_nope);
    let one_head = |width: u64| [batch.into(), 1.into(), seq_len.into(), width.into()];
    kv_nope = (&kv_nope).view(&one_head(compressed));
    k_rot = (&k_rot).view(&one_head(ranks.rotated));
    [q_rot, k_rot] = apply_rotary(&q_rot, &k_rot, rotations, config.rotation.part);
    // What is kept is still compressed.
    if let Some(past) = past {
        [kv_nope, k_rot] = past.cache.update(layer, [&kv_nope, &k_rot]);
    }
    let query_states = x.tracer().cat_of(&[&q_pass, &q_rot], -1);
    let [key_states, value_states] = expand_kv(at, config.shape.heads, ranks, [&kv_nope, &k_rot]);
    let settings = Settings::of_decoder(x, mask, [config.shape.attention_dropout, config.scale]);
    let heads = [config.shape.heads, config.shape.kv_heads];
    let mut output = joined(sdpa_of_heads(
        &query_states,
        &key_states,
        &value_states,
        heads,
        settings,
    ));
    output = at.linear("o_proj", [of_heads(ranks.value), width], bias, output);
    drop((q_states, q_pass, q_rot, compressed_kv));
    // `modeling_deepseek_v2.py` has another name for what is normalized.
    if config.rotation.part == Part::Complex {
        drop((k_rot, kv_nope));
    } else {
        drop((kv_nope, k_rot));
    }
    output.and_drop((query_states, key_states, value_states))
}

/// `expand_kv`
fn expand_kv(at: &Frame, heads: u64, ranks: Ranks, [kv_nope, k_rot]: [&Tensor; 2]) -> [Tensor; 2] {
    let (batch, seq_len) = (kv_nope.size(0), kv_nope.size(2));
    let width = ranks.plain.saturating_add(ranks.value);
    let sizes = [ranks.keys_and_values, heads.saturating_mul(width)];
    let expanded = at
        .linear("kv_b_proj", sizes, false, kv_nope)
        .view(&[batch.into(), seq_len.into(), Size::REST, width.into()])
        .transpose(1, 2);
    let [plain_keys, value_states] = pair((&expanded).split_into(&[ranks.plain, ranks.value], -1));
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

/// Both parts of a split.
fn pair(parts: Vec<Tensor>) -> [Tensor; 2] {
    let mut parts = parts.into_iter();
    match (parts.next(), parts.next()) {
        (Some(first), Some(second)) => [first, second],
        _ => unreachable!("a split into two has two parts"),
    }
}
