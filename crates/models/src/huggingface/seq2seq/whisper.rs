//! `modeling_whisper.py`.

use super::layers::{EPS, Family, Layers, decoder_layers, encoder_layers};
use super::{Shifted, token_input};
use crate::huggingface::prelude::*;
use crate::tracing::Conv;
use crate::tracing::functional::{cross_entropy, dropout};

const CODE: Code = Code::new("whisper.modeling_whisper", "Whisper");

const FAMILY: Family = Family {
    is_normalized_first: true,
    is_whisper: true,
    code: CODE,
};

/// Frames of sound for each position of the encoder, whose second convolution has this stride.
const FRAMES: u64 = 2;

/// What a config says of such a model.
struct Whisper {
    vocabulary: u64,
    bins: u64,
    width: u64,
    source_positions: u64,
    target_positions: u64,
    padding: Option<u64>,
    dropout: f64,
    encoder: Layers,
    decoder: Layers,
    is_tied: bool,
}

impl Whisper {
    fn of(config: &Config<'_>) -> Result<Whisper, RequestError> {
        if config.flag("apply_spec_augment", false)? {
            return Err(config.wrong("apply_spec_augment", "SpecAugment is not built here; `batchfit export --hf config.json -o model.json.gz`, of batchfit's \
                 Python client, reads it",
            ));
        }
        let width = config.size("d_model", 384)?;
        let [encoder, decoder] = Layers::read(config, &FAMILY, width, [6, 1536, 4], 0.0)?;
        Ok(Whisper {
            vocabulary: config.size("vocab_size", 51865)?,
            bins: config.size("num_mel_bins", 80)?,
            width,
            source_positions: config.size("max_source_positions", 1500)?,
            target_positions: config.size("max_target_positions", 448)?,
            padding: config.token("pad_token_id", Some(50256))?,
            dropout: config.number("dropout", 0.0)?,
            encoder,
            decoder,
            is_tied: config.flag("tie_word_embeddings", true)?,
        })
    }

    /// Frames of a sample, of which the model takes one number, and tokens of an answer.
    fn lengths(&self, task: &Task<'_>) -> Result<[u64; 2], RequestError> {
        let frames = self.source_positions.saturating_mul(FRAMES);
        if let Some(given) = task.sizes.seq_len.filter(|given| *given != frames) {
            return Err(RequestError::at(
                format!("{}/seq_len", task.pointer),
                format!(
                    "the model takes {frames} frames of sound, twice max_source_positions, not {given}"
                ),
            ));
        }
        let tokens = task.sizes.target_len.unwrap_or(self.target_positions);
        if tokens > self.target_positions {
            return Err(RequestError::at(
                format!("{}/target_len", task.pointer),
                format!(
                    "target_len is {tokens}, but the model has positions for {} tokens: see max_target_positions",
                    self.target_positions
                ),
            ));
        }
        Ok([frames, tokens])
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Whisper::of(&task.config)?;
    let shifted = Shifted::of(&task.config, Some(50257), Some(50256))?;
    let [frames, tokens] = config.lengths(task)?;
    let tracer = task.tracer(CODE.module);
    let place = CODE.place("model", "Model");
    let encoder = new_encoder(&tracer, &place, &config);
    let (decoder, words) = new_decoder(&tracer, &place, &config);
    let proj_out = if config.is_tied {
        Linear::tied("proj_out".into(), &words, None)
    } else {
        let sizes = [config.width, config.vocabulary];
        Linear::new(&tracer, "proj_out", sizes, false)
    };
    let [bins, frames] = [config.bins, frames].map(Extent::fixed);
    let shape = [Extent::BATCH, bins, frames];
    let input_features = tracer.input("input_features", &shape, tracer.dtype());
    let labels = token_input(&tracer, "labels", tokens);

    let decoder_input_ids = shifted.tokens(&labels);
    let [outputs, encoder_outputs] = tracer.in_module(&place, || {
        let encoder_outputs = encoder.forward(&input_features);
        let outputs = decoder(&decoder_input_ids, &encoder_outputs);
        [outputs, encoder_outputs]
    });
    let logits = proj_out.forward(&outputs);
    let labels = (&labels).to_device();
    let loss = cross_entropy(
        (&logits).view(&[Size::REST, config.vocabulary.into()]),
        (&labels).reshape(&[Size::REST]),
    );
    drop((decoder_input_ids, labels, outputs));
    drop((logits, encoder_outputs));
    tracer.finish(&loss).map_err(|error| task.invalid(&error))
}

/// `WhisperEncoder`.
fn new_encoder(tracer: &Tracer, parent: &ModulePath, config: &Whisper) -> FnModule {
    let place = CODE.place(parent.path("encoder"), "Encoder");
    let conv = |name: &str, inputs| {
        let sizes = [inputs, config.width];
        Conv::new(tracer, place.path(name), sizes, &[3], 1, true).padding(1)
    };
    let positions = [config.source_positions, config.width];
    let conv1 = conv("conv1", config.bins);
    let conv2 = conv("conv2", config.width).stride(FRAMES);
    let embed_positions = Embedding::frozen(tracer, place.path("embed_positions"), positions);
    let positions = config.source_positions;
    let layers = encoder_layers(tracer, &place, &config.encoder);
    let layer_norm = LayerNorm::new(tracer, place.path("layer_norm"), config.width, EPS);
    let p = config.dropout;
    FnModule::new(place, move |input_features| {
        let tracer = input_features.tracer();
        let mut inputs_embeds = conv1.forward(input_features).gelu("none");
        inputs_embeds = conv2.forward(&inputs_embeds).gelu("none");
        inputs_embeds = (&inputs_embeds).permute(&[0, 2, 1]);
        let all_positions = tracer.arange(positions);
        let mut hidden_states = (&inputs_embeds).add(embed_positions.forward(&all_positions));
        hidden_states = dropout(&hidden_states, p);
        hidden_states = chain(&[&layers, &layer_norm], hidden_states);
        hidden_states.and_drop((inputs_embeds, all_positions))
    })
}

/// `WhisperDecoder`.
fn new_decoder(
    tracer: &Tracer,
    parent: &ModulePath,
    config: &Whisper,
) -> (impl Fn(&Tensor, &Tensor) -> Tensor + use<>, Tensor) {
    let place = CODE.place(parent.path("decoder"), "Decoder");
    let embedding =
        |name: &str, rows| Embedding::new(tracer, place.path(name), [rows, config.width]);
    let embed_tokens = embedding("embed_tokens", config.vocabulary).padding(config.padding);
    let embed_positions = embedding("embed_positions", config.target_positions)
        .class(CODE.class("PositionalEmbedding"));
    let layers = decoder_layers(tracer, &place, &config.decoder);
    let layer_norm = LayerNorm::new(tracer, place.path("layer_norm"), config.width, EPS);
    let p = config.dropout;

    let weight = embed_tokens.weight.clone();
    let module = move |ids: &Tensor, encoder_hidden_states: &Tensor| {
        let tracer = ids.tracer();
        tracer.in_module(&place, || {
            let inputs_embeds = embed_tokens.forward(ids);
            let mut position_ids = tracer.arange(ids.length(1)).add_number(0);
            position_ids = (&position_ids)
                .unsqueeze(0)
                .repeat(&[ids.size(0).into(), 1.into()]);
            let positions = tracer.in_module(embed_positions.place(), || {
                embed_positions.index(&position_ids)
            });
            let mut hidden_states = (&inputs_embeds).add((&positions).to_device());
            hidden_states = dropout(&hidden_states, p);
            tracer.look_for_packed_sequences(&position_ids);
            for layer in &layers {
                hidden_states = layer(&hidden_states, encoder_hidden_states);
            }
            hidden_states = layer_norm.forward(&hidden_states);
            hidden_states.and_drop((inputs_embeds, position_ids, positions))
        })
    };
    (module, weight)
}
