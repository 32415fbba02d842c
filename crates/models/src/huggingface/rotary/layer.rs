//! Layers of decoders with rotary embeddings.

use super::attention::attention;
use super::decoder::{Block, Decoder};
use super::experts::{Products, mixture};
use super::latent::latent_attention;
use super::mlp::mlp;
use super::rotation::Rotations;
use crate::huggingface::generation::Past;
use crate::huggingface::prelude::*;

/// What a layer is given besides its states: rotations, a mask, and what is kept of earlier tokens.
pub(super) type Around<'a> = (&'a Rotations, Option<&'a Tensor>, Past<'a>);

/// Norms before and after attention, and before and after the feed-forward part; those that a family has.
const fn norms(block: Block) -> [Option<&'static str>; 4] {
    let [input, post] = ["input_layernorm", "post_attention_layernorm"];
    match block {
        Block::Before | Block::BeforeAndScaled(_) | Block::BeforeAndDropout(_) => {
            [Some(input), None, Some(post), None]
        }
        Block::Around => {
            let [before, after] = ["pre_feedforward_layernorm", "post_feedforward_layernorm"];
            [Some(input), Some(post), Some(before), Some(after)]
        }
        Block::After => [None, Some(post), None, Some("post_feedforward_layernorm")],
        Block::SideBySide(_) => [Some(input), None, None, None],
    }
}

/// `LlamaDecoderLayer`, and those of other families.
pub(super) fn layer(
    at: &Frame,
    config: &Decoder,
    layer: u64,
    x: &Tensor,
    around: Around<'_>,
) -> Tensor {
    at.made(&["self_attn", "mlp"]);
    let self_attn = |x: &Tensor| {
        at.call("self_attn", "Attention", |at| match config.ranks {
            Some(ranks) => latent_attention(at, config, (layer, ranks), x, around),
            None => attention(at, config, layer, x, around),
        })
    };
    let feed_forward = |x: &Tensor| match config.mixture_of(layer) {
        None => mlp(at, "mlp", config, config.shape.intermediate, x),
        Some(experts) => {
            let products = match around.2 {
                Some(past) if past.is_decoding => Products::Batched,
                _ => Products::Grouped,
            };
            mixture(at, "mlp", config, (experts, products), x)
        }
    };
    // `hidden_states = norm(hidden_states)`, where there is such a norm.
    let normalized = |name: Option<&str>, hidden_states: Tensor| match name {
        Some(name) => config.norm(at, name, config.shape.width, hidden_states),
        None => hidden_states,
    };
    let [before_attention, after_attention, before_mlp, after_mlp] = norms(config.block);
    let mut hidden_states = normalized(before_attention, x.clone());
    if let Block::SideBySide(p) = config.block {
        let mut attn_outputs = self_attn(&hidden_states);
        attn_outputs = at.dropout("resid_dropout", p, attn_outputs);
        let forwarded = at.dropout("resid_dropout", p, feed_forward(&hidden_states));
        hidden_states = (&attn_outputs).add(&forwarded).add(x);
        return hidden_states.and_drop((attn_outputs, forwarded));
    }
    let add = |residual: &Tensor, dropout: &str, hidden_states: &Tensor| match config.block {
        Block::BeforeAndScaled(scale) => residual.add(hidden_states.mul_number(scale)),
        Block::BeforeAndDropout(p) => residual.add(at.dropout(dropout, p, hidden_states)),
        _ => residual.add(hidden_states),
    };
    hidden_states = self_attn(&hidden_states);
    hidden_states = normalized(after_attention, hidden_states);
    hidden_states = add(x, "resid_attn_dropout", &hidden_states);
    let residual = hidden_states.clone();
    hidden_states = normalized(before_mlp, hidden_states);
    hidden_states = feed_forward(&hidden_states);
    hidden_states = normalized(after_mlp, hidden_states);
    hidden_states = add(&residual, "resid_mlp_dropout", &hidden_states);
    hidden_states.and_drop(residual)
}
