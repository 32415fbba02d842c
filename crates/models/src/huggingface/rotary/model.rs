//! Decoders with rotary embeddings: `modeling_llama.py` and those that follow it.

use super::decoder::{Decoder, Scaled, Windows};
use super::layer::layer;
use super::rotation::{Rotary, Rotations};
use super::{families, masks};
use crate::huggingface::attention::create_causal_mask;
use crate::huggingface::generation::{GenerationTraits, Past, positions};
use crate::huggingface::prelude::*;
use crate::huggingface::text::{self, WordHead};

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = families::read(task)?;
    let seq_len = task.tokens_read()?;
    let limits = config
        .rotations()
        .filter_map(|rotation| rotation.update.most());
    if let Some(most) = limits.min().filter(|most| seq_len > *most) {
        let but = format!(
            "beyond {most} tokens this model recomputes its rotary frequencies, \
             which batchfit does not build; `batchfit export --hf config.json -o model.json.gz`, of batchfit's Python \
             client, writes its graph, to be given with --model"
        );
        return Err(task.too_many(seq_len, &but));
    }
    let folder = config.folder;
    let tracer = task.tracer(&format!("{folder}.modeling_{folder}"));
    let at = Frame::of_classes(&tracer, &config.classes());
    at.made(&["model"]);
    let is_classifier = task.class.ends_with("ForSequenceClassification");
    let classifier = if is_classifier && task.sizes.generation.is_none() {
        let labels = Labels::of(&task.config, 2)?;
        let padding = config.shape.padding.ok_or_else(|| {
            task.config.wrong(
                "pad_token_id",
                "a classifier looks for the last token that is not padding; give \"pad_token_id\"",
            )
        })?;
        Some((labels, i64::try_from(padding).unwrap_or(i64::MAX)))
    } else {
        None
    };
    let words = words(&at, &config);
    let forward = |ids: &Tensor, past: Past<'_>| model(&at, &config, &words, ids, past);
    if let Some((labels, padding)) = classifier {
        let head = (config.shape.width, labels, true);
        let forward = |ids: &Tensor| forward(ids, None);
        return text::classes_of_last_token((task, seq_len, padding), tracer, forward, head);
    }
    let lm_head = lm_head(&at, &config, &words);
    let traits = GenerationTraits {
        windows: (0..config.shape.layers)
            .map(|layer| config.window_of(layer))
            .collect(),
        tokens: config.tokens,
    };
    let head = WordHead {
        logits: |hidden_states: Tensor| logits(&lm_head, &config, hidden_states),
        vocabulary: config.shape.vocabulary,
        keeps_logits: true,
    };
    text::language_model(task, tracer, (seq_len, traits), forward, head)
}

/// `lm_head`.
fn lm_head(at: &Frame, config: &Decoder, words: &Embedding) -> Linear {
    if config.is_tied {
        let bias = config.head_bias;
        let bias = bias.then(|| at.parameter("lm_head.bias", &[config.shape.vocabulary]));
        Linear::tied("lm_head".into(), &words.weight, bias)
    } else {
        let sizes = [config.shape.width, config.shape.vocabulary];
        Linear::new(at.tracer(), "lm_head", sizes, config.head_bias)
    }
}

/// What a `...ForCausalLM` makes of its states.
fn logits(lm_head: &Linear, config: &Decoder, hidden_states: Tensor) -> Tensor {
    let mut logits = lm_head.forward(hidden_states);
    if let Some(scaling) = config.logits_scaling {
        logits = (&logits).div_number(scaling);
    }
    if let Some(cap) = config.softcap {
        logits = (&logits).div_number(cap);
        logits = (&logits).tanh();
        logits = (&logits).mul_number(cap);
    }
    logits
}

/// The embedding of words.
fn words(at: &Frame, config: &Decoder) -> Embedding {
    let words = at.embedding(
        "model.embed_tokens",
        [config.shape.vocabulary, config.shape.width],
    );
    let words = words.padding(config.shape.padding);
    match config.embedding {
        Scaled::Buffer => words.scaled(at.tracer(), at.class("TextScaledWordEmbedding")),
        Scaled::Not | Scaled::Number(_) => words,
    }
}

/// `LlamaModel`.
fn model(at: &Frame, config: &Decoder, words: &Embedding, ids: &Tensor, past: Past<'_>) -> Tensor {
    let class = match config.folder {
        "gemma3" => "TextModel",
        _ => "Model",
    };
    at.call("model", class, |at| {
        at.made(&["layers", config.final_norm]);
        let mut inputs_embeds = words.forward(ids);
        if let Scaled::Number(multiplier) = config.embedding {
            inputs_embeds = (&inputs_embeds).mul_number(multiplier);
        }
        let position_ids = positions(past, at.tracer(), ids.length(1));
        let [full, near] = masks(&config.windows, &position_ids, ids, past);
        if let Some(p) = config.embedding_dropout {
            inputs_embeds = at.dropout("embed_dropout", p, inputs_embeds);
        }
        let mut hidden_states = inputs_embeds.clone();
        // Cosines and sines for layers without and with a window, or for all.
        let rotary_emb = match config.rotations.as_slice() {
            [] => Rotary::new(at, "rotary_emb", &[("", config.rotation)]),
            several => Rotary::new(at, "rotary_emb", several),
        };
        let rotations: Vec<Rotations> = (0..rotary_emb.kinds())
            .map(|kind| rotary_emb.forward(&hidden_states, &position_ids, kind))
            .collect();
        for index in 0..config.shape.layers {
            let mask = if config.has_window(index) {
                &near
            } else {
                &full
            };
            let around = (&rotations[config.rotation_of(index)], mask.as_ref(), past);
            hidden_states = at.call(&format!("layers.{index}"), "DecoderLayer", |at| {
                layer(at, config, index, &hidden_states, around)
            });
        }
        hidden_states = config.norm(at, config.final_norm, config.shape.width, hidden_states);
        // Where masks are told apart by the kinds of layers, a list of arguments keeps what they are made from.
        let hidden_states = match config.windows {
            Windows::Some { .. } => {
                hidden_states.and_drop((full, near, inputs_embeds, position_ids))
            }
            Windows::None | Windows::All(_) => {
                hidden_states.and_drop((position_ids, inputs_embeds, full, near))
            }
        };
        rotations.into_iter().for_each(Rotations::let_go);
        hidden_states
    })
}

/// Masks of layers without and with a window.
fn masks(
    windows: &Windows,
    position_ids: &Tensor,
    ids: &Tensor,
    past: Past<'_>,
) -> [Option<Tensor>; 2] {
    let batch = ids.size(0);
    let mask = |window: Option<u64>| match (past, window) {
        (Some(past), window) => past.mask(batch, ids.length(1), window),
        (None, None) => create_causal_mask(position_ids, batch),
        (None, Some(window)) => masks::sliding(position_ids, batch, window),
    };
    match windows {
        Windows::None => [mask(None), None],
        Windows::All(window) => [None, mask(Some(*window))],
        Windows::Some {
            window,
            layers,
            always,
        } => {
            let full = mask(None);
            let window = window.filter(|_| *always || layers.contains(&true));
            [full, window.and_then(|window| mask(Some(window)))]
        }
    }
}
