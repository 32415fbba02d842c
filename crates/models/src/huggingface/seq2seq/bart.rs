//! `modeling_bart.py`, `modeling_mbart.py` and `modeling_pegasus.py`.

use super::layers::{DecoderLayer, EPS, Family, Layers, decoder_layers, encoder_layers};
use super::{Shifted, mask_of_ones, target_len, token_input, token_loss};
use crate::huggingface::prelude::*;
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
    is_sinusoidal: false,
    starts_with_language: true,
    is_moved: false,
    defaults: [50265, 1024],
    padding: 1,
    start: 2,
};

const PEGASUS: Model = Model {
    layers: Family::new(Code::new("pegasus.modeling_pegasus", "Pegasus"), true),
    is_sinusoidal: true,
    starts_with_language: false,
    is_moved: false,
    defaults: [50265, 1024],
    padding: 0,
    start: 0,
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
    let tracer = task.tracer(model.layers.code.module);
    let place = model.layers.code.place("model", "Model");
    let sizes = [config.vocabulary, config.width];
    let shared = Embedding::new(&tracer, place.path("shared"), sizes).padding(config.padding);
    let shared = model.of_words(shared);
    let encoder = new_encoder(&tracer, &place, &config, &shared);
    let decoder = Decoder::new(&tracer, &place, &config, &shared);
    let dtype = tracer.dtype();
    let lm_head = if config.is_tied {
        Linear::tied("lm_head".into(), &shared.weight, None)
    } else {
        let sizes = [config.width, config.vocabulary];
        Linear::new(&tracer, "lm_head", sizes, false)
    };
    let final_logits_bias = tracer.buffer("final_logits_bias", &[1, config.vocabulary], dtype);
    let input_ids = token_input(&tracer, "input_ids", seq_len);
    let labels = token_input(&tracer, "labels", target_len);

    let decoder_input_ids = if model.starts_with_language {
        shifted.tokens_from_the_last(&labels)
    } else {
        shifted.tokens(&labels)
    };
    let [outputs, encoder_outputs] = tracer.in_module(&place, || {
        let encoder_outputs = encoder.forward(&input_ids);
        let outputs = decoder.forward(&decoder_input_ids, &encoder_outputs);
        [outputs, encoder_outputs]
    });
    let (logits, labels) = if model.is_moved {
        let mut logits = lm_head.forward(&outputs);
        logits = (&logits).add((&final_logits_bias).to_device());
        (logits, (&labels).to_device())
    } else {
        (lm_head.forward(&outputs).add(&final_logits_bias), labels)
    };
    let loss = token_loss(&logits, &labels, config.vocabulary);
    drop((decoder_input_ids, labels, outputs));
    drop((logits, encoder_outputs));
    tracer.finish(&loss).map_err(|error| task.invalid(&error))
}

/// The embeddings of an encoder or a decoder.
struct TokenEmbedding {
    embed_tokens: Embedding,
    embed_positions: Embedding,
    layernorm_embedding: Option<LayerNorm>,
    is_sinusoidal: bool,
    scale: f64,
    dropout: f64,
}

impl TokenEmbedding {
    /// Its embeddings; the norm comes after the layers.
    fn new(
        tracer: &Tracer,
        place: &ModulePath,
        config: &Sizes,
        shared: &Embedding,
    ) -> TokenEmbedding {
        let model = config.model;
        let path = place.path("embed_tokens");
        let embed_tokens = if config.is_tied {
            shared.at(path)
        } else {
            let sizes = [config.vocabulary, config.width];
            model.of_words(Embedding::new(tracer, path, sizes).padding(config.padding))
        };
        let path = place.path("embed_positions");
        let (embed_positions, class) = if model.is_sinusoidal {
            let table = Embedding::frozen(tracer, path, [config.positions, config.width]);
            (table, "SinusoidalPositionalEmbedding")
        } else {
            // Learned positions begin with two that stand for nothing.
            let rows = config.positions.saturating_add(2);
            let table = Embedding::new(tracer, path, [rows, config.width]);
            (table, "LearnedPositionalEmbedding")
        };
        TokenEmbedding {
            embed_tokens,
            embed_positions: embed_positions.class(model.layers.code.class(class)),
            layernorm_embedding: None,
            is_sinusoidal: model.is_sinusoidal,
            scale: config.scale,
            dropout: config.dropout,
        }
    }

    fn normalized(mut self, tracer: &Tracer, place: &ModulePath, config: &Sizes) -> TokenEmbedding {
        self.layernorm_embedding = (!self.is_sinusoidal)
            .then(|| LayerNorm::new(tracer, place.path("layernorm_embedding"), config.width, EPS));
        self
    }

    /// `inputs_embeds`
    fn embed(&self, ids: &Tensor) -> Tensor {
        if self.is_sinusoidal {
            return self.embed_tokens.forward(ids).mul_number(self.scale);
        }
        ids.tracer().in_module(self.embed_tokens.place(), || {
            self.embed_tokens.look_up(ids).mul_number(self.scale)
        })
    }

    /// What the layers are given.
    fn hidden_states(&self, inputs_embeds: &Tensor, positions: impl Tensors) -> Tensor {
        let mut hidden_states = inputs_embeds.add(positions);
        if let Some(norm) = &self.layernorm_embedding {
            hidden_states = norm.forward(&hidden_states);
        }
        hidden_states = dropout(&hidden_states, self.dropout);
        hidden_states
    }
}

/// `BartEncoder`.
fn new_encoder(
    tracer: &Tracer,
    parent: &ModulePath,
    config: &Sizes,
    shared: &Embedding,
) -> FnModule {
    let place = config
        .model
        .layers
        .code
        .place(parent.path("encoder"), "Encoder");
    let words = TokenEmbedding::new(tracer, &place, config, shared);
    let layers = encoder_layers(tracer, &place, &config.encoder);
    let words = words.normalized(tracer, &place, config);
    let layer_norm = last_norm(tracer, &place, config);
    let is_moved_at_once = config.model.is_moved;
    FnModule::new(place, move |ids| {
        let tracer = ids.tracer();
        let inputs_embeds = words.embed(ids);
        let (mut hidden_states, embed_pos) = if words.is_sinusoidal {
            let embed_pos = tracer.in_module(words.embed_positions.place(), || {
                tracer.no_grad(|| {
                    let position_ids = tracer.arange_from(0, ids.length(1));
                    words.embed_positions.look_up(&position_ids)
                })
            });
            (words.hidden_states(&inputs_embeds, &embed_pos), embed_pos)
        } else {
            let last = (&inputs_embeds).select(2, -1);
            let mut embed_pos = tracer.in_module(words.embed_positions.place(), || {
                let position_ids = tracer.arange_from(0, last.length(1));
                let position_ids = position_ids.expand(&[last.size(0).into(), Size::REST]);
                words.embed_positions.look_up((&position_ids).add_number(2))
            });
            drop(last);
            if is_moved_at_once {
                embed_pos = (&embed_pos).to_device();
                (words.hidden_states(&inputs_embeds, &embed_pos), embed_pos)
            } else {
                let moved = (&embed_pos).to_device();
                (words.hidden_states(&inputs_embeds, moved), embed_pos)
            }
        };
        hidden_states = layers.on(hidden_states);
        if let Some(norm) = &layer_norm {
            hidden_states = norm.forward(&hidden_states);
        }
        hidden_states.and_drop((inputs_embeds, embed_pos))
    })
}

/// `BartDecoder`.
struct Decoder {
    place: ModulePath,
    words: TokenEmbedding,
    layers: Vec<DecoderLayer>,
    layer_norm: Option<LayerNorm>,
    /// Whether the numbers of positions are kept beside the positions.
    keeps_position_ids: bool,
    is_moved_at_once: bool,
}

impl Decoder {
    fn new(tracer: &Tracer, parent: &ModulePath, config: &Sizes, shared: &Embedding) -> Decoder {
        let place = config
            .model
            .layers
            .code
            .place(parent.path("decoder"), "Decoder");
        let words = TokenEmbedding::new(tracer, &place, config, shared);
        let layers = decoder_layers(tracer, &place, &config.decoder);
        Decoder {
            words: words.normalized(tracer, &place, config),
            layers,
            layer_norm: last_norm(tracer, &place, config),
            keeps_position_ids: !config.model.starts_with_language,
            is_moved_at_once: config.model.is_moved,
            place,
        }
    }

    fn forward(&self, ids: &Tensor, encoder_hidden_states: &Tensor) -> Tensor {
        let tracer = ids.tracer();
        tracer.in_module(&self.place, || {
            let inputs_embeds = self.inputs(ids);
            let mut position_ids = tracer.arange(ids.length(1)).add_number(0);
            let mask = mask_of_ones(&tracer, ids.size(0), ids.length(1));
            // Only the first of the families gives the name to what is made of it, which is nothing.
            let mask = (!self.is_moved_at_once).then_some(mask);
            let mut positions = self.positions(&position_ids);
            if !self.keeps_position_ids {
                position_ids = positions.clone();
            }
            let mut hidden_states = if self.words.is_sinusoidal {
                self.words.hidden_states(&inputs_embeds, &positions)
            } else if self.is_moved_at_once {
                positions = (&positions).to_device();
                self.words.hidden_states(&inputs_embeds, &positions)
            } else {
                let moved = (&positions).to_device();
                self.words.hidden_states(&inputs_embeds, moved)
            };
            for layer in &self.layers {
                hidden_states = layer(&hidden_states, encoder_hidden_states);
            }
            if let Some(norm) = &self.layer_norm {
                hidden_states = norm.forward(&hidden_states);
            }
            hidden_states.and_drop((mask, inputs_embeds, position_ids, positions))
        })
    }

    fn inputs(&self, ids: &Tensor) -> Tensor {
        if !self.words.is_sinusoidal {
            return self.words.embed(ids);
        }
        let inputs_embeds = self.words.embed_tokens.forward(ids);
        inputs_embeds.mul_number(self.words.scale)
    }

    fn positions(&self, position_ids: &Tensor) -> Tensor {
        let tracer = position_ids.tracer();
        let embedding = &self.words.embed_positions;
        tracer.in_module(embedding.place(), || {
            if self.words.is_sinusoidal {
                return tracer.no_grad(|| embedding.look_up(position_ids));
            }
            let position_ids = position_ids.unsqueeze(0);
            embedding.look_up((&position_ids).add_number(2))
        })
    }
}

/// The norm after the layers, where those have theirs first.
fn last_norm(tracer: &Tracer, place: &ModulePath, config: &Sizes) -> Option<LayerNorm> {
    let path = place.path("layer_norm");
    let is_there = config.model.layers.is_normalized_first;
    is_there.then(|| LayerNorm::new(tracer, path, config.width, EPS))
}
