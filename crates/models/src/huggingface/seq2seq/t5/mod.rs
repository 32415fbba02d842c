//! `modeling_t5.py`.

mod attention;

use attention::{Role, new_attention_layer};

use super::{Shifted, target_len, token_input, token_loss};
use crate::huggingface::attention::smallest;
use crate::huggingface::config::MOST_LAYERS;
use crate::huggingface::prelude::*;

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
    let tracer = task.tracer(CODE.module);
    let shared = Embedding::new(&tracer, "shared".into(), [config.vocabulary, config.width]);
    let encoder = new_stack(&tracer, "encoder", &config, &shared, Part::Encoder);
    let decoder = new_stack(&tracer, "decoder", &config, &shared, Part::Decoder);
    let lm_head = Linear::tied("lm_head".into(), &shared.weight, None);
    let input_ids = token_input(&tracer, "input_ids", seq_len);
    let labels = token_input(&tracer, "labels", target_len);

    let encoder_outputs = encoder(&input_ids, None);
    let hidden_states = encoder_outputs.clone();
    let decoder_input_ids = config.shifted.tokens(&labels);
    let decoder_outputs = decoder(&decoder_input_ids, Some(&hidden_states));
    let mut sequence_output = decoder_outputs.clone();
    if config.is_scaled {
        sequence_output = (&sequence_output).mul_number((config.width as f64).powf(-0.5));
    }
    let logits = lm_head.forward(&sequence_output);
    let labels = (&labels).to_device();
    let loss = token_loss(&logits, &labels, config.vocabulary);
    drop((decoder_input_ids, labels, decoder_outputs, sequence_output));
    drop((logits, encoder_outputs, hidden_states));
    tracer.finish(&loss).map_err(|error| task.invalid(&error))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Encoder,
    Decoder,
}

/// `T5LayerNorm`.
fn new_norm(tracer: &Tracer, path: String, config: &T5) -> FnModule {
    let weight = tracer.parameter(&format!("{path}.weight"), &[config.width]);
    let eps = config.eps;
    FnModule::new(CODE.place(path, "LayerNorm"), move |x| {
        let variance = x.to(DType::Float32).pow(2).mean(&[-1], true);
        let mut hidden_states = x.mul((&variance).add_number(eps).rsqrt());
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
fn new_dense(tracer: &Tracer, path: String, config: &T5) -> FnModule {
    let class = if config.is_gated {
        "DenseGatedActDense"
    } else {
        "DenseActDense"
    };
    let place = CODE.place(path, class);
    let wide = [config.width, config.intermediate];
    let narrow = [config.intermediate, config.width];
    let linear = |name: &str, sizes| Linear::new(tracer, place.path(name), sizes, false);
    let first = if config.is_gated { "wi_0" } else { "wi" };
    let wi = linear(first, wide);
    // What the activation's result is multiplied by.
    let gated = config.is_gated.then(|| linear("wi_1", wide));
    let wo = linear("wo", narrow);
    let dropout = Dropout::new(place.path("dropout"), config.dropout);
    let act = Activation::named(tracer, place.path("act"), &config.activation);
    FnModule::new(place, move |x| {
        let Some(linear) = &gated else {
            return chain(&[&wi, &act, &dropout, &wo], x);
        };
        let hidden_gelu = act.forward(wi.forward(x));
        let hidden_linear = linear.forward(x);
        let mut hidden_states = (&hidden_gelu).mul(&hidden_linear);
        hidden_states = chain(&[&dropout, &wo], hidden_states);
        hidden_states.and_drop((hidden_gelu, hidden_linear))
    })
}

/// `T5LayerFF`.
fn new_feed_forward(tracer: &Tracer, path: String, config: &T5) -> FnModule {
    let place = CODE.place(path, "LayerFF");
    let dense = new_dense(tracer, place.path("DenseReluDense"), config);
    let layer_norm = new_norm(tracer, place.path("layer_norm"), config);
    let dropout = Dropout::new(place.path("dropout"), config.dropout);
    FnModule::new(place, move |x| {
        let mut forwarded_states = layer_norm.forward(x);
        forwarded_states = dense.forward(&forwarded_states);
        let hidden_states = x.add(dropout.forward(&forwarded_states));
        hidden_states.and_drop(forwarded_states)
    })
}

/// `T5Block`.
fn new_block(
    tracer: &Tracer,
    path: String,
    config: &T5,
    part: Part,
    is_first: bool,
) -> impl Fn(&Tensor, Option<&Tensor>, &Biases) -> (Tensor, Biases) + use<> {
    let place = CODE.place(path, "Block");
    let at = |index: usize| place.path(&format!("layer.{index}"));
    let role = |is_cross| Role {
        part,
        is_cross,
        has_bias: is_first && !is_cross,
    };
    let is_decoder = part == Part::Decoder;
    let self_attention = new_attention_layer(tracer, at(0), config, role(false));
    let cross_attention =
        is_decoder.then(|| new_attention_layer(tracer, at(1), config, role(true)));
    let feed_forward = new_feed_forward(tracer, at(1 + usize::from(is_decoder)), config);
    move |x: &Tensor,
          encoder_hidden_states: Option<&Tensor>,
          [position_bias, cross_bias]: &Biases| {
        x.tracer().in_module(&place, || {
            let (mut hidden_states, self_bias) = self_attention(x, None, position_bias.as_ref());
            hidden_states = clamped(hidden_states);
            let mut biases = [Some(self_bias), None];
            if let Some(cross_attention) = &cross_attention {
                let (output, bias) =
                    cross_attention(&hidden_states, encoder_hidden_states, cross_bias.as_ref());
                hidden_states = output;
                biases[1] = Some(bias);
                hidden_states = clamped(hidden_states);
            }
            hidden_states = feed_forward.forward(&hidden_states);
            (clamped(hidden_states), biases)
        })
    }
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

/// `T5Stack`.
fn new_stack(
    tracer: &Tracer,
    path: &str,
    config: &T5,
    shared: &Embedding,
    part: Part,
) -> impl Fn(&Tensor, Option<&Tensor>) -> Tensor + use<> {
    let place = CODE.place(path, "Stack");
    let [encoder_layers, decoder_layers] = config.layers;
    let layers = match part {
        Part::Encoder => encoder_layers,
        Part::Decoder => decoder_layers,
    };
    let embed_tokens = shared.at(place.path("embed_tokens"));
    let blocks: Vec<_> = (0..layers)
        .map(|layer| {
            let path = place.path(&format!("block.{layer}"));
            new_block(tracer, path, config, part, layer == 0)
        })
        .collect();
    let final_layer_norm = new_norm(tracer, place.path("final_layer_norm"), config);
    let dropout = Dropout::new(place.path("dropout"), config.dropout);
    move |ids: &Tensor, encoder_hidden_states: Option<&Tensor>| {
        ids.tracer().in_module(&place, || {
            let inputs_embeds = embed_tokens.forward(ids);
            let mut biases: Biases = [None, None];
            let mut hidden_states = dropout.forward(&inputs_embeds);
            for block in &blocks {
                (hidden_states, biases) = block(&hidden_states, encoder_hidden_states, &biases);
            }
            hidden_states = final_layer_norm.forward(&hidden_states);
            hidden_states = dropout.forward(&hidden_states);
            hidden_states.and_drop((inputs_embeds, biases))
        })
    }
}
