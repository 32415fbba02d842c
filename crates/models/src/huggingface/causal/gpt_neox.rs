//! GPT-NeoX, and Pythia, which is one: `modeling_gpt_neox.py`.

use super::plain_rotation;
use crate::huggingface::attention::{joined, sdpa};
use crate::huggingface::generation::{GenerationTraits, Past, masked, positions};
use crate::huggingface::prelude::*;
use crate::huggingface::rotary::rotation::{
    Part, Rotary, Rotation, Rotations, apply_rotary, split_heads_at,
};
use crate::huggingface::text;
use crate::tracing::functional::Attention as Settings;

const CODE: Code = Code::new("gpt_neox.modeling_gpt_neox", "GPTNeoX");

/// What a config says of such a model.
struct Decoder {
    shape: Shape,
    rotated: u64,
    attention_bias: bool,
    is_parallel: bool,
}

impl Decoder {
    fn read(config: &Config<'_>) -> Result<Decoder, RequestError> {
        let shape = Shape::of(config)?;
        Ok(Decoder {
            rotated: rotated(config, shape.head_dim)?,
            shape,
            attention_bias: config.flag("attention_bias", true)?,
            is_parallel: config.flag("use_parallel_residual", true)?,
        })
    }
}

/// How many elements of a head are rotated.
fn rotated(config: &Config<'_>, head_dim: u64) -> Result<u64, RequestError> {
    let mut factor = config.number("rotary_pct", 0.25)?;
    let mut at = config.at("rotary_pct");
    if let Some(rope) = plain_rotation(config)? {
        factor = rope.number("partial_rotary_factor", factor)?;
        at = rope.at("partial_rotary_factor");
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most the size of a head; as Python's int()"
    )]
    let rotated = (head_dim as f64 * factor.clamp(0.0, 1.0)) as u64;
    if rotated == 0 || factor > 1.0 {
        let problem =
            format!("a part of {head_dim} elements must be rotated, and {factor} is none");
        return Err(RequestError::at(at, problem));
    }
    Ok(rotated)
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Decoder::read(&task.config)?;
    let seq_len = task.tokens_read()?;
    let at = task.frame(CODE, "gpt_neox");
    let tracer = at.tracer().clone();
    let words = at.embedding(
        "gpt_neox.embed_in",
        [config.shape.vocabulary, config.shape.width],
    );
    let model = |ids: &Tensor, past: Past<'_>| model(&at, &config, &words, ids, past);
    if task.class == "GPTNeoXForSequenceClassification" {
        let of_tokens = (seq_len, config.shape.width, None);
        return text::classes_of_decoder(task, tracer, of_tokens, |ids| model(ids, None));
    }
    let traits = GenerationTraits::plain(config.shape.layers);
    text::tied_language_model(task, (&words, false), (seq_len, traits), model)
}

/// `apply_rotary_pos_emb`.
fn rotate_first_part(query: &Tensor, key: &Tensor, rotations: &Rotations) -> [Tensor; 2] {
    let tracer = query.tracer();
    let dims = rotations.dims();
    let (query_rot, query_pass) = split_heads_at(query, dims);
    let (key_rot, key_pass) = split_heads_at(key, dims);
    let [mut query, mut key] = apply_rotary(&query_rot, &key_rot, rotations, Part::Whole);
    query = tracer.cat_of(&[&query, &query_pass], -1);
    key = tracer.cat_of(&[&key, &key_pass], -1);
    drop((query_rot, query_pass, key_rot, key_pass));
    [query, key]
}

/// What a layer is given besides its states: rotations, a mask, and what is kept of earlier tokens.
type Around<'a> = (&'a Rotations, Option<&'a Tensor>, Past<'a>);

/// `GPTNeoXAttention`.
fn attention(
    at: &Frame,
    config: &Decoder,
    layer: u64,
    x: &Tensor,
    (rotations, mask, past): Around<'_>,
) -> Tensor {
    let (width, head_dim, bias) = (
        config.shape.width,
        config.shape.head_dim,
        config.attention_bias,
    );
    let (batch, seq_len): (Size, Size) = (x.size(0).into(), x.size(1).into());
    let wide = head_dim.saturating_mul(3).into();
    let qkv = at.linear("query_key_value", [width, width.saturating_mul(3)], bias, x);
    let qkv = qkv
        .view(&[batch, seq_len, Size::REST, wide])
        .transpose(1, 2);
    let mut states = (&qkv).chunk(3, -1).into_iter();
    let mut next = || states.next().unwrap_or_else(|| x.clone());
    let (mut query, mut key, mut value) = (next(), next(), next());
    [query, key] = rotate_first_part(&query, &key, rotations);
    if let Some(past) = past {
        [key, value] = past.cache.update(layer, [&key, &value]);
    }
    let scales = [config.shape.attention_dropout, (head_dim as f64).powf(-0.5)];
    let settings = Settings::of_decoder(x, mask, scales);
    let mut output = joined(sdpa(&query, &key, &value, settings));
    output = at.linear("dense", [width, width], bias, output);
    output.and_drop((qkv, query, key, value))
}

/// `GPTNeoXMLP`.
fn mlp(at: &Frame, config: &Decoder, x: &Tensor) -> Tensor {
    let (outer, inner) = (config.shape.width, config.shape.intermediate);
    let mut hidden_states = at.linear("dense_h_to_4h", [outer, inner], true, x);
    hidden_states = at.activation("act", &config.shape.activation, hidden_states);
    at.linear("dense_4h_to_h", [inner, outer], true, hidden_states)
}

/// `GPTNeoXLayer`.
fn layer(at: &Frame, config: &Decoder, layer: u64, x: &Tensor, around: Around<'_>) -> Tensor {
    let norm = |name, x: &Tensor| at.layer_norm(name, config.shape.width, config.shape.eps, x);
    let dropout = |name, x: Tensor| at.dropout(name, config.shape.dropout, x);
    at.made(&["input_layernorm", "post_attention_layernorm"]);
    let mut attn_output = {
        let normed = norm("input_layernorm", x);
        at.call("attention", "Attention", |at| {
            attention(at, config, layer, &normed, around)
        })
        .and_drop(normed)
    };
    attn_output = dropout("post_attention_dropout", attn_output);
    let mlp = |x: &Tensor| {
        let normed = norm("post_attention_layernorm", x);
        let mlp_output = at.call("mlp", "MLP", |at| mlp(at, config, &normed));
        dropout("post_mlp_dropout", mlp_output.and_drop(normed))
    };
    if config.is_parallel {
        let mlp_output = mlp(x);
        let hidden_states = (&mlp_output).add(&attn_output).add(x);
        hidden_states.and_drop((attn_output, mlp_output))
    } else {
        attn_output = (&attn_output).add(x);
        let mlp_output = mlp(&attn_output);
        let hidden_states = (&mlp_output).add(&attn_output);
        hidden_states.and_drop((attn_output, mlp_output))
    }
}

/// `GPTNeoXModel`.
fn model(at: &Frame, config: &Decoder, words: &Embedding, ids: &Tensor, past: Past<'_>) -> Tensor {
    let rotation = Rotation {
        part: Part::First,
        ..Rotation::plain(config.rotated)
    };
    at.call("gpt_neox", "Model", |at| {
        let inputs_embeds = words.forward(ids);
        let position_ids = positions(past, at.tracer(), ids.length(1));
        let mask = masked(past, &position_ids, ids);
        let mut hidden_states = at.dropout("emb_dropout", config.shape.dropout, &inputs_embeds);
        let rotary_emb = Rotary::new(at, "rotary_emb", &[("", rotation)]);
        let rotations = rotary_emb.forward(&hidden_states, &position_ids, 0);
        for index in 0..config.shape.layers {
            hidden_states = at.call(&format!("layers.{index}"), "Layer", |at| {
                let around = (&rotations, mask.as_ref(), past);
                layer(at, config, index, &hidden_states, around)
            });
        }
        let width = config.shape.width;
        hidden_states = at.layer_norm("final_layer_norm", width, config.shape.eps, hidden_states);
        drop((position_ids, inputs_embeds, mask));
        rotations.let_go();
        hidden_states
    })
}
