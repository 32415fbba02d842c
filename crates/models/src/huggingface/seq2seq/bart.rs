//! `modeling_bart.py`, `modeling_mbart.py` and `modeling_pegasus.py`.

use super::layers::{EPS, Family, Layers, decoder_layers, encoder_layers, last_norm};
use super::{Shifted, mask_of_ones, target_len, token_loss};
use crate::huggingface::prelude::*;
use crate::huggingface::text::ids;
use crate::tracing::functional::dropout;

/// What the families differ in besides their layers.
struct Model {
    layers: Family,
    /// Whether positions are those of sine and cosine, instead of learned ones that are normalized with the words.
    is_sinusoidal: bool,
    /// Whether the answer's first token is its language, instead of a fixed one.
    starts_with_language: bool,
    /// Whether the bias of the head and the labels are brought to the logits' device.
    is_moved: bool,
    /// Vocabulary, and most positions.
    defaults: [u64; 2],
    padding: u64,
    start: u64,
}

impl Model {
    /// An embedding of words, as one of the class that the family has for them.
    fn of_words(&self, words: Embedding) -> Embedding {
        if self.is_sinusoidal {
            return words;
        }
        words.class(self.layers.code.class("ScaledWordEmbedding"))
    }
}

const BART: Model = Model {
    layers: Family::new(Code::new("bart.modeling_bart", "Bart"), false),
    is_sinusoidal: false,
    starts_with_language: false,
    is_moved: true,
    defaults: [50265, 1024],
    padding: 1,
    start: 2,
};

const MBART: Model = Model {
    layers: Family::new(Code::new("mbart.modeling_mbart", "MBart"), true),
    starts_with_language: true,
    is_moved: false,
    ..BART
};

const PEGASUS: Model = Model {
    layers: Family::new(Code::new("pegasus.modeling_pegasus", "Pegasus"), true),
    is_sinusoidal: true,
    is_moved: false,
    padding: 0,
    start: 0,
    ..BART
};

/// What a config says of such a model.
struct Sizes {
    model: &'static Model,
    vocabulary: u64,
    positions: u64,
    padding: Option<u64>,
    width: u64,
    /// What words are multiplied by.
    scale: f64,
    dropout: f64,
    encoder: Layers,
    decoder: Layers,
    is_tied: bool,
}

impl Sizes {
    fn of(config: &Config<'_>, model: &'static Model) -> Result<Sizes, RequestError> {
        let [vocabulary, positions] = model.defaults;
        let width = config.size("d_model", 1024)?;
        let is_scaled = config.flag("scale_embedding", false)?;
        let defaults = [16, 4096, 12];
        let [encoder, decoder] = Layers::read(config, &model.layers, width, defaults, 0.1)?;
        Ok(Sizes {
            model,
            vocabulary: config.size("vocab_size", vocabulary)?,
            positions: config.size("max_position_embeddings", positions)?,
            padding: config.token("pad_token_id", Some(model.padding))?,
            width,
            scale: if is_scaled {
                (width as f64).sqrt()
            } else {
                1.0
            },
            dropout: config.number("dropout", 0.1)?,
            encoder,
            decoder,
            is_tied: config.flag("tie_word_embeddings", true)?,
        })
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let model = match task.class {
        "MBartForConditionalGeneration" => &MBART,
        "PegasusForConditionalGeneration" => &PEGASUS,
        _ => &BART,
    };
    let config = Sizes::of(&task.config, model)?;
    let shifted = Shifted::of(&task.config, Some(model.start), Some(model.padding))?;
    let (seq_len, target_len) = (task.seq_len()?, target_len(task)?);
    for (name, length) in [("seq_len", seq_len), ("target_len", target_len)] {
        if length > config.positions {
            return Err(RequestError::at(
                format!("{}/{name}", task.pointer),
                format!(
                    "{name} is {length}, but the model has positions for {} tokens: see max_position_embeddings",
                    config.positions
                ),
            ));
        }
    }
    let at = task.frame(model.layers.code, "model.shared");
    let tracer = at.tracer().clone();
    let shared = at.embedding("model.shared", [config.vocabulary, config.width]);
    let shared = model.of_words(shared.padding(config.padding));
    let input_ids = ids(&tracer, "input_ids", seq_len);
    let labels = ids(&tracer, "labels", target_len);

    let decoder_input_ids = if model.starts_with_language {
        shifted.tokens_from_the_last(&labels)
    } else {
        shifted.tokens(&labels)
    };
    let [outputs, encoder_outputs] = at.call("model", "Model", |at| {
        let encoder_outputs = encoder(at, &config, &shared, &input_ids);
        let outputs = decoder(at, &config, &shared, &decoder_input_ids, &encoder_outputs);
        [outputs, encoder_outputs]
    });
    let lm_head = if config.is_tied {
        Linear::tied("lm_head".into(), &shared.weight, None)
    } else {
        let sizes = [config.width, config.vocabulary];
        Linear::new(&tracer, "lm_head", sizes, false)
    };
    let bias = at.buffer("final_logits_bias", &[1, config.vocabulary], tracer.dtype());
    let (logits, labels) = if model.is_moved {
        let mut logits = lm_head.forward(&outputs);
        logits = (&logits).add((&bias).to_device());
        (logits, (&labels).to_device())
    } else {
        (lm_head.forward(&outputs).add(&bias), labels)
    };
    let loss = token_loss(&logits, &labels, config.vocabulary);
    drop((decoder_input_ids, labels, outputs));
    drop((logits, encoder_outputs));
    task.finish(tracer, &loss)
}

/// `inputs_embeds` of an encoder or a decoder.
fn inputs_embeds(at: &Frame, config: &Sizes, shared: &Embedding, ids: &Tensor) -> Tensor {
    let path = at.path("embed_tokens");
    let words = if config.is_tied {
        shared.at(path)
    } else {
        let words = at.embedding("embed_tokens", [config.vocabulary, config.width]);
        config.model.of_words(words.padding(config.padding))
    };
    if config.model.is_sinusoidal {
        return words.forward(ids).mul_number(config.scale);
    }
    at.tracer().in_module(words.place(), || {
        words.look_up(ids).mul_number(config.scale)
    })
}

/// `embed_positions`: what `learned` makes of its table of learned positions, or `ids` of those of sine and cosine.
fn embed_positions(
    at: &Frame,
    config: &Sizes,
    ids: impl FnOnce() -> Tensor,
    learned: impl FnOnce(&Embedding) -> Tensor,
) -> Tensor {
    let path = at.path("embed_positions");
    if config.model.is_sinusoidal {
        let sizes = [config.positions, config.width];
        let table = Embedding::frozen(at.tracer(), path, sizes);
        return at.call("embed_positions", "SinusoidalPositionalEmbedding", |at| {
            at.tracer().no_grad(|| table.look_up(ids()))
        });
    }
    // Learned positions begin with two that stand for nothing.
    let rows = config.positions.saturating_add(2);
    let table = at.embedding("embed_positions", [rows, config.width]);
    at.call("embed_positions", "LearnedPositionalEmbedding", |_| {
        learned(&table)
    })
}

/// What the layers of an encoder or a decoder are given, and what the name of the positions holds then.
fn embedded(
    at: &Frame,
    config: &Sizes,
    inputs_embeds: &Tensor,
    mut positions: Tensor,
) -> [Tensor; 2] {
    let sum = if config.model.is_sinusoidal {
        inputs_embeds.add(&positions)
    } else if config.model.is_moved {
        positions = (&positions).to_device();
        inputs_embeds.add(&positions)
    } else {
        inputs_embeds.add((&positions).to_device())
    };
    let normed = if config.model.is_sinusoidal {
        sum
    } else {
        at.layer_norm("layernorm_embedding", config.width, EPS, sum)
    };
    let hidden_states = dropout(&normed, config.dropout);
    drop(normed);
    [hidden_states, positions]
}

/// `BartEncoder`.
fn encoder(at: &Frame, config: &Sizes, shared: &Embedding, ids: &Tensor) -> Tensor {
    at.call("encoder", "Encoder", |at| {
        at.made(&["embed_tokens", "embed_positions", "layers"]);
        let tracer = at.tracer();
        let inputs_embeds = inputs_embeds(at, config, shared, ids);
        let last = (!config.model.is_sinusoidal).then(|| (&inputs_embeds).select(2, -1));
        let numbered = || tracer.arange_from(0, ids.length(1));
        let embed_pos = embed_positions(at, config, numbered, |table| {
            let batch = ids.size(0).into();
            let position_ids = numbered().expand(&[batch, Size::REST]);
            table
                .look_up((&position_ids).add_number(2))
                .and_drop(position_ids)
        });
        drop(last);
        let [mut hidden_states, embed_pos] = embedded(at, config, &inputs_embeds, embed_pos);
        hidden_states = encoder_layers(at, &config.encoder, hidden_states);
        hidden_states = last_norm(at, &config.encoder, hidden_states);
        hidden_states.and_drop((inputs_embeds, embed_pos))
    })
}

/// `BartDecoder`.
fn decoder(
    at: &Frame,
    config: &Sizes,
    shared: &Embedding,
    ids: &Tensor,
    encoder_hidden_states: &Tensor,
) -> Tensor {
    at.call("decoder", "Decoder", |at| {
        at.made(&["embed_tokens", "embed_positions", "layers"]);
        let tracer = at.tracer();
        let inputs_embeds = inputs_embeds(at, config, shared, ids);
        let mut position_ids = tracer.arange(ids.length(1)).add_number(0);
        let mask = mask_of_ones(tracer, ids.size(0), ids.length(1));
        // Only the first of the families gives the name to what is made of it, which is nothing.
        let mask = (!config.model.is_moved).then_some(mask);
        let numbered = || position_ids.clone();
        let positions = embed_positions(at, config, numbered, |table| {
            let position_ids = (&position_ids).unsqueeze(0);
            table
                .look_up((&position_ids).add_number(2))
                .and_drop(position_ids)
        });
        // The numbers of positions are kept beside the positions, but for mBART.
        if config.model.starts_with_language {
            position_ids = positions.clone();
        }
        let [mut hidden_states, positions] = embedded(at, config, &inputs_embeds, positions);
        hidden_states = decoder_layers(at, &config.decoder, hidden_states, encoder_hidden_states);
        hidden_states = last_norm(at, &config.decoder, hidden_states);
        hidden_states.and_drop((mask, inputs_embeds, position_ids, positions))
    })
}
