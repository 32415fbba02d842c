//! `modeling_t5.py`.

mod attention;

use attention::{Role, attention_layer};

use super::{Shifted, target_len, token_loss};
use crate::huggingface::attention::smallest;
use crate::huggingface::config::MOST_LAYERS;
use crate::huggingface::prelude::*;
use crate::huggingface::text::ids;

const CODE: Code = Code::new("t5.modeling_t5", "T5");

/// What a config says of such a model.
struct T5 {
    vocabulary: u64,
    width: u64,
    head_dim: u64,
    intermediate: u64,
    /// Layers of the encoder and of the decoder.
    layers: [u64; 2],
    heads: u64,
    buckets: u64,
    max_distance: u64,
    dropout: f64,
    eps: f64,
    activation: String,
    is_gated: bool,
    /// Whether what goes into the head is scaled; the head's weight is that of the embeddings either way.
    is_scaled: bool,
    shifted: Shifted,
}

impl T5 {
    fn of(config: &Config<'_>) -> Result<T5, RequestError> {
        // A decoder is as deep as `num_layers` says, by no other name.
        let layers_of_decoder = config.layers_within("num_layers", 6, MOST_LAYERS)?;
        let buckets = config.size("relative_attention_num_buckets", 32)?;
        if buckets < 4 {
            return Err(config.wrong(
                "relative_attention_num_buckets",
                format!(
                    "at least 4 buckets are needed for distances in both directions, not {buckets}"
                ),
            ));
        }
        let (activation, is_gated) = feed_forward(config)?;
        Ok(T5 {
            vocabulary: config.size("vocab_size", 32128)?,
            width: config.size("d_model", 512)?,
            head_dim: config.size("d_kv", 64)?,
            intermediate: config.size("d_ff", 2048)?,
            layers: [
                config.layers("num_layers", 6)?,
                config.layers("num_decoder_layers", layers_of_decoder)?,
            ],
            heads: config.size("num_heads", 8)?,
            buckets,
            max_distance: config.size("relative_attention_max_distance", 128)?,
            dropout: config.number("dropout_rate", 0.1)?,
            eps: config.number("layer_norm_epsilon", 1e-6)?,
            activation,
            is_gated,
            is_scaled: config.flag(
                "scale_decoder_outputs",
                config.flag("tie_word_embeddings", true)?,
            )?,
            shifted: Shifted::of(config, None, Some(0))?,
        })
    }
}

/// The activation of `feed_forward_proj`, and whether it is a gate, unless the config says these by themselves, as transformers
/// writes it.
fn feed_forward(config: &Config<'_>) -> Result<(String, bool), RequestError> {
    let text = config.text("feed_forward_proj", "relu")?;
    let (activation, is_gated) = match text.split('-').collect::<Vec<_>>()[..] {
        ["gated", "gelu"] => ("gelu_new", true),
        ["gated", activation] => (activation, true),
        [activation] => (activation, false),
        _ => return Err(config.wrong("feed_forward_proj", "feed_forward_proj must be an activation, such as relu, or one after \"gated-\", such as gated-gelu",
        )),
    };
    Ok((
        config.text("dense_act_fn", activation)?.to_owned(),
        config.flag("is_gated_act", is_gated)?,
    ))
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = T5::of(&task.config)?;
    let (seq_len, target_len) = (task.seq_len()?, target_len(task)?);
    let at = task.frame(CODE, "shared");
    let tracer = at.tracer().clone();
    let shared = at.embedding("shared", [config.vocabulary, config.width]);
    let lm_head = Linear::tied("lm_head".into(), &shared.weight, None);
    let input_ids = ids(&tracer, "input_ids", seq_len);
    let labels = ids(&tracer, "labels", target_len);

    let encoder_outputs = stack(
        &at,
        &config,
        &shared,
        Part::Encoder,
        [&input_ids, &input_ids],
    );
    let hidden_states = encoder_outputs.clone();
    let decoder_input_ids = config.shifted.tokens(&labels);
    let decoder_outputs = stack(
        &at,
        &config,
        &shared,
        Part::Decoder,
        [&decoder_input_ids, &hidden_states],
    );
    let mut sequence_output = decoder_outputs.clone();
    if config.is_scaled {
        sequence_output = (&sequence_output).mul_number((config.width as f64).powf(-0.5));
    }
    let logits = lm_head.forward(&sequence_output);
    let labels = (&labels).to_device();
    let loss = token_loss(&logits, &labels, config.vocabulary);
    drop((decoder_input_ids, labels, decoder_outputs, sequence_output));
    drop((logits, encoder_outputs, hidden_states));
    task.finish(tracer, &loss)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Encoder,
    Decoder,
}

/// `self.name(x)` of a `T5LayerNorm`.
fn norm(at: &Frame, name: &str, config: &T5, x: &Tensor) -> Tensor {
    at.call(name, "LayerNorm", |at| {
        let weight = at.parameter("weight", &[config.width]);
        let variance = x.to(DType::Float32).pow(2).mean(&[-1], true);
        let mut hidden_states = x.mul((&variance).add_number(config.eps).rsqrt());
        let dtype = weight.dtype();
        if matches!(dtype.dtype, DType::Float16 | DType::BFloat16) {
            hidden_states = (&hidden_states).to_dtype_of(dtype);
        }
        (&weight)
            .mul(&hidden_states)
            .and_drop((hidden_states, variance))
    })
}

/// `T5DenseActDense` or `T5DenseGatedActDense`.
fn dense(at: &Frame, config: &T5, x: &Tensor) -> Tensor {
    let wide = [config.width, config.intermediate];
    let narrow = [config.intermediate, config.width];
    let active = |at: &Frame, name| {
        let hidden = at.linear(name, wide, false, x);
        at.activation("act", &config.activation, hidden)
    };
    let narrowed = |at: &Frame, hidden_states: Tensor| {
        let hidden_states = at.dropout("dropout", config.dropout, hidden_states);
        at.linear("wo", narrow, false, hidden_states)
    };
    if !config.is_gated {
        return at.call("DenseReluDense", "DenseActDense", |at| {
            narrowed(at, active(at, "wi"))
        });
    }
    at.call("DenseReluDense", "DenseGatedActDense", |at| {
        let hidden_gelu = active(at, "wi_0");
        let hidden_linear = at.linear("wi_1", wide, false, x);
        let hidden_states = narrowed(at, (&hidden_gelu).mul(&hidden_linear));
        hidden_states.and_drop((hidden_gelu, hidden_linear))
    })
}

/// `T5LayerFF`.
fn layer_ff(at: &Frame, config: &T5, x: &Tensor) -> Tensor {
    at.made(&["DenseReluDense"]);
    let mut forwarded_states = norm(at, "layer_norm", config, x);
    forwarded_states = dense(at, config, &forwarded_states);
    let hidden_states = x.add(at.dropout("dropout", config.dropout, &forwarded_states));
    hidden_states.and_drop(forwarded_states)
}

/// `T5Block`.
fn block(
    at: &Frame,
    config: &T5,
    (part, is_first): (Part, bool),
    [x, encoder_hidden_states]: [&Tensor; 2],
    [position_bias, cross_bias]: &Biases,
) -> (Tensor, Biases) {
    let role = |is_cross| Role {
        part,
        is_cross,
        has_bias: is_first && !is_cross,
    };
    let given = [None, position_bias.as_ref()];
    let (mut hidden_states, bias) = attention_layer(at, "layer.0", config, role(false), x, given);
    hidden_states = clamped(hidden_states);
    let mut biases = [Some(bias), None];
    if part == Part::Decoder {
        let given = [Some(encoder_hidden_states), cross_bias.as_ref()];
        let (output, bias) =
            attention_layer(at, "layer.1", config, role(true), &hidden_states, given);
        hidden_states = output;
        biases[1] = Some(bias);
        hidden_states = clamped(hidden_states);
    }
    let last = match part {
        Part::Encoder => "layer.1",
        Part::Decoder => "layer.2",
    };
    hidden_states = at.call(last, "LayerFF", |at| layer_ff(at, config, &hidden_states));
    (clamped(hidden_states), biases)
}

/// The biases of positions of self attention and of cross attention.
type Biases = [Option<Tensor>; 2];

/// Keeps numbers of half precision finite.
fn clamped(mut hidden_states: Tensor) -> Tensor {
    if hidden_states.dtype().dtype != DType::Float16 {
        return hidden_states;
    }
    let most = -smallest(DType::Float16);
    let is_infinite = (&hidden_states).isinf().any();
    let clamp_value = is_infinite.choose_numbers(most - 1000.0, most);
    hidden_states = (&hidden_states).clamp_between((&clamp_value).neg(), &clamp_value);
    hidden_states.and_drop(clamp_value)
}

/// `T5Stack`: the encoder, which takes nothing but tokens, or the decoder.
fn stack(
    at: &Frame,
    config: &T5,
    shared: &Embedding,
    part: Part,
    [ids, encoder_hidden_states]: [&Tensor; 2],
) -> Tensor {
    let [encoder_layers, decoder_layers] = config.layers;
    let (name, layers) = match part {
        Part::Encoder => ("encoder", encoder_layers),
        Part::Decoder => ("decoder", decoder_layers),
    };
    at.call(name, "Stack", |at| {
        let inputs_embeds = shared.at(at.path("embed_tokens")).forward(ids);
        let mut biases: Biases = [None, None];
        let mut hidden_states = at.dropout("dropout", config.dropout, &inputs_embeds);
        for index in 0..layers {
            (hidden_states, biases) = at.call(&format!("block.{index}"), "Block", |at| {
                let states = [&hidden_states, encoder_hidden_states];
                block(at, config, (part, index == 0), states, &biases)
            });
        }
        hidden_states = norm(at, "final_layer_norm", config, &hidden_states);
        hidden_states = at.dropout("dropout", config.dropout, hidden_states);
        hidden_states.and_drop((inputs_embeds, biases))
    })
}
