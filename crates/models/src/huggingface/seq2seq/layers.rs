//! Layers of BART and of the models that follow it.

use crate::huggingface::attention::{joined, sdpa, smallest};
use crate::huggingface::prelude::*;
use crate::tracing::functional::{Attention as Settings, dropout};

/// What a `LayerNorm` is given where nothing says so.
pub(super) const EPS: f64 = 1e-5;

/// What families differ in.
pub(super) struct Family {
    /// Whether norms come first in a branch, instead of after the sum.
    pub(super) is_normalized_first: bool,
    /// Whether queries are scaled, and all heads laid out again, before the attention; keys have no bias then.
    pub(super) is_whisper: bool,
    pub(super) code: Code,
}

impl Family {
    pub(super) const fn new(code: Code, is_normalized_first: bool) -> Family {
        Family {
            is_normalized_first,
            is_whisper: false,
            code,
        }
    }
}

/// What a config says of the layers of an encoder or a decoder.
pub(super) struct Layers {
    pub(super) family: &'static Family,
    pub(super) width: u64,
    pub(super) heads: u64,
    pub(super) intermediate: u64,
    pub(super) count: u64,
    pub(super) activation: String,
    pub(super) dropout: f64,
    pub(super) attention_dropout: f64,
    pub(super) activation_dropout: f64,
}

impl Layers {
    /// Those of encoder and decoder, whose class has these defaults: heads, elements between, layers, and dropout.
    pub(super) fn read(
        config: &Config<'_>,
        family: &'static Family,
        width: u64,
        [heads, intermediate, layers]: [u64; 3],
        dropout: f64,
    ) -> Result<[Layers; 2], RequestError> {
        let read = |count: &'static str, heads_of: &'static str, between: &'static str| {
            let heads = config.size(heads_of, heads)?;
            config.quotient([("d_model", width), (heads_of, heads)])?;
            Ok(Layers {
                family,
                width,
                heads,
                intermediate: config.size(between, intermediate)?,
                count: config.layers(count, layers)?,
                activation: config.text("activation_function", "gelu")?.to_owned(),
                dropout: config.number("dropout", dropout)?,
                attention_dropout: config.number("attention_dropout", 0.0)?,
                activation_dropout: config.number("activation_dropout", 0.0)?,
            })
        };
        Ok([
            read(
                "encoder_layers",
                "encoder_attention_heads",
                "encoder_ffn_dim",
            )?,
            read(
                "decoder_layers",
                "decoder_attention_heads",
                "decoder_ffn_dim",
            )?,
        ])
    }
}

/// `BartAttention`.
fn attention(at: &Frame, config: &Layers, is_causal: bool, x: &Tensor, current: &Tensor) -> Tensor {
    at.made(&["k_proj", "v_proj"]);
    let is_whisper = config.family.is_whisper;
    let head_dim = config.width / config.heads;
    let scale = (head_dim as f64).powf(-0.5);
    let linear = |name, bias, x: &Tensor| at.linear(name, [config.width; 2], bias, x);
    // `[*x.shape[:-1], -1, head_dim]`
    let shape = |x: &Tensor| {
        [
            x.size(0).into(),
            x.size(1).into(),
            Size::REST,
            head_dim.into(),
        ]
    };
    let query = linear("q_proj", true, x);
    let [query, key, value] = if is_whisper {
        let laid_out = |x: Tensor, shape: &[Size]| x.view(shape).transpose(1, 2).contiguous();
        let query = laid_out(query.mul_number(scale), &shape(x));
        let shape = [
            x.size(0).into(),
            Size::REST,
            config.heads.into(),
            head_dim.into(),
        ];
        let key = laid_out(linear("k_proj", false, current), &shape);
        [
            query,
            key,
            laid_out(linear("v_proj", true, current), &shape),
        ]
    } else {
        let query = query.view(&shape(x)).transpose(1, 2);
        let states = ["k_proj", "v_proj"].map(|name| linear(name, true, current));
        let [key, value] = states.map(|x| (&x).view(&shape(current)).transpose(1, 2));
        [query, key, value]
    };
    let settings = Settings {
        dropout: config.attention_dropout,
        causal: is_causal && x.size(1) != Extent::ONE,
        scale: Some(if is_whisper { 1.0 } else { scale }),
        ..Settings::default()
    };
    let mut output = joined(sdpa(&query, &key, &value, settings));
    output = linear("out_proj", true, &output);
    output.and_drop((query, key, value))
}

/// The branch of a layer that works on each token alone: the result, and the name of what is added, which its layer holds until it
/// returns.
fn feed_forward(at: &Frame, config: &Layers, mut hidden_states: Tensor) -> (Tensor, Tensor) {
    let (outer, inner) = (config.width, config.intermediate);
    let is_normalized_first = config.family.is_normalized_first;
    let norm = |x: &Tensor| at.layer_norm("final_layer_norm", outer, EPS, x);
    at.made(&["fc1", "fc2"]);
    let residual = hidden_states.clone();
    if is_normalized_first {
        hidden_states = norm(&hidden_states);
    }
    let wide = at.linear("fc1", [outer, inner], true, &hidden_states);
    hidden_states = at.activation("activation_fn", &config.activation, wide);
    hidden_states = dropout(&hidden_states, config.activation_dropout);
    hidden_states = at.linear("fc2", [inner, outer], true, hidden_states);
    hidden_states = dropout(&hidden_states, config.dropout);
    hidden_states = (&residual).add(&hidden_states);
    if !is_normalized_first {
        hidden_states = norm(&hidden_states);
    }
    (hidden_states, residual)
}

/// The branch of a layer that attends to its own tokens, or to those whose states it is given.
fn attend(
    at: &Frame,
    config: &Layers,
    (name, is_causal): (&str, bool),
    residual: &Tensor,
    states: Option<&Tensor>,
) -> Tensor {
    let is_normalized_first = config.family.is_normalized_first;
    let norm = |x: &Tensor| at.layer_norm(&format!("{name}_layer_norm"), config.width, EPS, x);
    at.made(&[name]);
    let mut hidden_states = residual.clone();
    if is_normalized_first {
        hidden_states = norm(&hidden_states);
    }
    hidden_states = at.call(name, "Attention", |at| {
        let current = states.unwrap_or(&hidden_states);
        attention(at, config, is_causal, &hidden_states, current)
    });
    hidden_states = dropout(&hidden_states, config.dropout);
    hidden_states = residual.add(&hidden_states);
    if !is_normalized_first {
        hidden_states = norm(&hidden_states);
    }
    hidden_states
}

/// The layers of an encoder: `BartEncoderLayer`.
pub(super) fn encoder_layers(at: &Frame, config: &Layers, x: Tensor) -> Tensor {
    at.call_each(("layers", config.count), "EncoderLayer", x, |at, x| {
        let hidden_states = attend(at, config, ("self_attn", false), x, None);
        let (mut hidden_states, residual) = feed_forward(at, config, hidden_states);
        if hidden_states.dtype().dtype == DType::Float16 {
            hidden_states = kept_finite(hidden_states, config.family.is_normalized_first);
        }
        hidden_states.and_drop(residual)
    })
}

/// What layers do to numbers of half precision; they are taken to be finite where only that decides.
fn kept_finite(hidden_states: Tensor, is_normalized_first: bool) -> Tensor {
    if !is_normalized_first {
        drop((&hidden_states).isfinite().all());
        return hidden_states;
    }
    let most = -smallest(DType::Float16) - 1000.0;
    (&hidden_states).clamp(Some((-most).into()), Some(most.into()))
}

/// The layers of a decoder, of its states and the encoder's: `BartDecoderLayer`.
pub(super) fn decoder_layers(at: &Frame, config: &Layers, x: Tensor, encoded: &Tensor) -> Tensor {
    at.call_each(("layers", config.count), "DecoderLayer", x, |at, x| {
        let earlier = attend(at, config, ("self_attn", true), x, None);
        let hidden_states = attend(at, config, ("encoder_attn", false), &earlier, Some(encoded));
        drop(earlier);
        let (hidden_states, residual) = feed_forward(at, config, hidden_states);
        hidden_states.and_drop(residual)
    })
}

/// The norm after the layers, where those have theirs first.
pub(super) fn last_norm(at: &Frame, config: &Layers, x: Tensor) -> Tensor {
    if config.family.is_normalized_first {
        at.layer_norm("layer_norm", config.width, EPS, x)
    } else {
        x
    }
}
