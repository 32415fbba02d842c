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
struct Attention {
    place: ModulePath,
    k_proj: Linear,
    v_proj: Linear,
    q_proj: Linear,
    out_proj: Linear,
    heads: u64,
    head_dim: u64,
    is_causal: bool,
    is_whisper: bool,
    dropout: f64,
}

impl Attention {
    fn new(tracer: &Tracer, path: String, config: &Layers, is_causal: bool) -> Attention {
        let place = config.family.code.place(path, "Attention");
        let sizes = [config.width, config.width];
        let linear = |name: &str, bias| Linear::new(tracer, place.path(name), sizes, bias);
        Attention {
            k_proj: linear("k_proj", !config.family.is_whisper),
            v_proj: linear("v_proj", true),
            q_proj: linear("q_proj", true),
            out_proj: linear("out_proj", true),
            heads: config.heads,
            head_dim: config.width / config.heads,
            is_causal,
            is_whisper: config.family.is_whisper,
            dropout: config.attention_dropout,
            place,
        }
    }

    fn forward(&self, x: &Tensor, key_value_states: Option<&Tensor>) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let tokens = x.size(1);
            let current = key_value_states.unwrap_or(x);
            let [query, key, value] = if self.is_whisper {
                self.laid_out(x, current)
            } else {
                self.in_heads(x, current)
            };
            let scale = (self.head_dim as f64).powf(-0.5);
            let settings = Settings {
                dropout: self.dropout,
                causal: self.is_causal && tokens != Extent::ONE,
                scale: Some(if self.is_whisper { 1.0 } else { scale }),
                ..Settings::default()
            };
            let mut output = joined(sdpa(&query, &key, &value, settings));
            output = self.out_proj.forward(&output);
            output.and_drop((query, key, value))
        })
    }

    /// `[*x.shape[:-1], -1, head_dim]`
    fn shape(&self, x: &Tensor) -> [Size; 4] {
        let [batch, tokens] = [x.size(0).into(), x.size(1).into()];
        [batch, tokens, Size::REST, self.head_dim.into()]
    }

    fn in_heads(&self, x: &Tensor, current: &Tensor) -> [Tensor; 3] {
        let query = self.q_proj.forward(x).view(&self.shape(x)).transpose(1, 2);
        let mut key = self.k_proj.forward(current);
        let mut value = self.v_proj.forward(current);
        let shape = self.shape(current);
        key = (&key).view(&shape).transpose(1, 2);
        value = (&value).view(&shape).transpose(1, 2);
        [query, key, value]
    }

    fn laid_out(&self, x: &Tensor, current: &Tensor) -> [Tensor; 3] {
        let scale = (self.head_dim as f64).powf(-0.5);
        let laid_out = |x: Tensor, shape: &[Size]| x.view(shape).transpose(1, 2).contiguous();
        let query = self.q_proj.forward(x).mul_number(scale);
        let query = laid_out(query, &self.shape(x));
        let [heads, head_dim] = [self.heads.into(), self.head_dim.into()];
        let shape = [x.size(0).into(), Size::REST, heads, head_dim];
        let key = laid_out(self.k_proj.forward(current), &shape);
        let value = laid_out(self.v_proj.forward(current), &shape);
        [query, key, value]
    }
}

/// The branch of a layer that works on each token alone: the result, and the name of what is added, which its layer holds until it
/// returns.
fn new_feed_forward(
    tracer: &Tracer,
    place: &ModulePath,
    config: &Layers,
) -> impl Fn(Tensor) -> (Tensor, Tensor) + use<> {
    let (outer, inner) = (config.width, config.intermediate);
    let activation = place.path("activation_fn");
    let activation_fn = Activation::named(tracer, activation, &config.activation);
    let fc1 = Linear::new(tracer, place.path("fc1"), [outer, inner], true);
    let fc2 = Linear::new(tracer, place.path("fc2"), [inner, outer], true);
    let final_layer_norm = LayerNorm::new(tracer, place.path("final_layer_norm"), outer, EPS);
    let (p, activation_p) = (config.dropout, config.activation_dropout);
    let is_normalized_first = config.family.is_normalized_first;
    move |mut hidden_states| {
        let residual = hidden_states.clone();
        if is_normalized_first {
            hidden_states = final_layer_norm.forward(&hidden_states);
        }
        hidden_states = activation_fn.forward(fc1.forward(&hidden_states));
        hidden_states = dropout(&hidden_states, activation_p);
        hidden_states = fc2.forward(&hidden_states);
        hidden_states = dropout(&hidden_states, p);
        hidden_states = (&residual).add(&hidden_states);
        if !is_normalized_first {
            hidden_states = final_layer_norm.forward(&hidden_states);
        }
        (hidden_states, residual)
    }
}

/// The branch of a layer that attends to other tokens, of what is added and of the states of keys and values.
fn new_attending(
    tracer: &Tracer,
    place: &ModulePath,
    config: &Layers,
    name: &str,
    is_causal: bool,
) -> impl Fn(&Tensor, Option<&Tensor>) -> Tensor + use<> {
    let attention = Attention::new(tracer, place.path(name), config, is_causal);
    let norm = place.path(&format!("{name}_layer_norm"));
    let layer_norm = LayerNorm::new(tracer, norm, config.width, EPS);
    let p = config.dropout;
    let is_normalized_first = config.family.is_normalized_first;
    move |residual, key_value_states| {
        let mut hidden_states = residual.clone();
        if is_normalized_first {
            hidden_states = layer_norm.forward(&hidden_states);
        }
        hidden_states = attention.forward(&hidden_states, key_value_states);
        hidden_states = dropout(&hidden_states, p);
        hidden_states = residual.add(&hidden_states);
        if !is_normalized_first {
            hidden_states = layer_norm.forward(&hidden_states);
        }
        hidden_states
    }
}

/// The layers of an encoder below a path: `BartEncoderLayer`.
pub(super) fn encoder_layers(
    tracer: &Tracer,
    place: &ModulePath,
    config: &Layers,
) -> Vec<FnModule> {
    let paths = (0..config.count).map(|layer| place.path(&format!("layers.{layer}")));
    let layer = |path| {
        let place = config.family.code.place(path, "EncoderLayer");
        let self_attn = new_attending(tracer, &place, config, "self_attn", false);
        let feed_forward = new_feed_forward(tracer, &place, config);
        let is_normalized_first = config.family.is_normalized_first;
        FnModule::new(place, move |x| {
            let hidden_states = self_attn(x, None);
            let (mut hidden_states, residual) = feed_forward(hidden_states);
            if hidden_states.dtype().dtype == DType::Float16 {
                hidden_states = kept_finite(hidden_states, is_normalized_first);
            }
            hidden_states.and_drop(residual)
        })
    };
    paths.map(layer).collect()
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

/// `BartDecoderLayer`, of its states and the encoder's.
pub(super) type DecoderLayer = Box<dyn Fn(&Tensor, &Tensor) -> Tensor>;

/// The layers of a decoder below a path.
pub(super) fn decoder_layers(
    tracer: &Tracer,
    place: &ModulePath,
    config: &Layers,
) -> Vec<DecoderLayer> {
    let paths = (0..config.count).map(|layer| place.path(&format!("layers.{layer}")));
    let layer = |path| -> DecoderLayer {
        let place = config.family.code.place(path, "DecoderLayer");
        let self_attn = new_attending(tracer, &place, config, "self_attn", true);
        let encoder_attn = new_attending(tracer, &place, config, "encoder_attn", false);
        let feed_forward = new_feed_forward(tracer, &place, config);
        Box::new(move |x: &Tensor, encoder_hidden_states: &Tensor| {
            x.tracer().in_module(&place, || {
                let earlier = self_attn(x, None);
                let hidden_states = encoder_attn(&earlier, Some(encoder_hidden_states));
                drop(earlier);
                let (hidden_states, residual) = feed_forward(hidden_states);
                hidden_states.and_drop(residual)
            })
        })
    };
    paths.map(layer).collect()
}
