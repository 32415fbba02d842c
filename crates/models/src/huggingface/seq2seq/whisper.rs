//! `modeling_whisper.py`.

use super::Shifted;
use super::layers::{Family, Layers, decoder_layers, encoder_layers, last_norm};
use crate::huggingface::prelude::*;
use crate::huggingface::text::ids;
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
    let at = task.frame(CODE, "model.encoder");
    let tracer = at.tracer().clone();
    let words = at.embedding(
        "model.decoder.embed_tokens",
        [config.vocabulary, config.width],
    );
    let words = words.padding(config.padding);
    let [bins, frames] = [config.bins, frames].map(Extent::fixed);
    let shape = [Extent::BATCH, bins, frames];
    let input_features = tracer.input("input_features", &shape, tracer.dtype());
    let labels = ids(&tracer, "labels", tokens);

    let decoder_input_ids = shifted.tokens(&labels);
    let [outputs, encoder_outputs] = at.call("model", "Model", |at| {
        let encoder_outputs = encoder(at, &config, &input_features);
        let outputs = decoder(at, &config, &words, &decoder_input_ids, &encoder_outputs);
        [outputs, encoder_outputs]
    });
    let logits = if config.is_tied {
        Linear::tied("proj_out".into(), &words.weight, None).forward(&outputs)
    } else {
        at.linear(
            "proj_out",
            [config.width, config.vocabulary],
            false,
            &outputs,
        )
    };
    let labels = (&labels).to_device();
    let loss = cross_entropy(
        (&logits).view(&[Size::REST, config.vocabulary.into()]),
        (&labels).reshape(&[Size::REST]),
    );
    drop((decoder_input_ids, labels, outputs));
    drop((logits, encoder_outputs));
    task.finish(tracer, &loss)
}

/// `WhisperEncoder`.
fn encoder(at: &Frame, config: &Whisper, input_features: &Tensor) -> Tensor {
    at.call("encoder", "Encoder", |at| {
        let conv =
            |name: &str, inputs| at.conv(name, [inputs, config.width], &[3], true).padding(1);
        let (conv1, conv2) = (conv("conv1", config.bins), conv("conv2", config.width));
        let mut inputs_embeds = conv1.forward(input_features).gelu("none");
        inputs_embeds = conv2.stride(FRAMES).forward(&inputs_embeds).gelu("none");
        inputs_embeds = (&inputs_embeds).permute(&[0, 2, 1]);
        let all_positions = at.tracer().arange(config.source_positions);
        let positions = [config.source_positions, config.width];
        let embed_positions = Embedding::frozen(at.tracer(), at.path("embed_positions"), positions);
        let mut hidden_states = (&inputs_embeds).add(embed_positions.forward(&all_positions));
        hidden_states = dropout(&hidden_states, config.dropout);
        hidden_states = encoder_layers(at, &config.encoder, hidden_states);
        hidden_states = last_norm(at, &config.encoder, hidden_states);
        hidden_states.and_drop((inputs_embeds, all_positions))
    })
}

/// `WhisperDecoder`.
fn decoder(
    at: &Frame,
    config: &Whisper,
    words: &Embedding,
    ids: &Tensor,
    encoder_hidden_states: &Tensor,
) -> Tensor {
    at.call("decoder", "Decoder", |at| {
        let tracer = at.tracer();
        let inputs_embeds = words.forward(ids);
        let mut position_ids = tracer.arange(ids.length(1)).add_number(0);
        position_ids = (&position_ids)
            .unsqueeze(0)
            .repeat(&[ids.size(0).into(), 1.into()]);
        let positions = at.call("embed_positions", "PositionalEmbedding", |at| {
            let table = at.parameter("weight", &[config.target_positions, config.width]);
            (&table).index(&[Some(&position_ids)])
        });
        let mut hidden_states = (&inputs_embeds).add((&positions).to_device());
        hidden_states = dropout(&hidden_states, config.dropout);
        tracer.look_for_packed_sequences(&position_ids);
        hidden_states = decoder_layers(at, &config.decoder, hidden_states, encoder_hidden_states);
        hidden_states = last_norm(at, &config.decoder, hidden_states);
        hidden_states.and_drop((inputs_embeds, position_ids, positions))
    })
}
