//! DeBERTa v2 and v3: `modeling_deberta_v2.py`.

use super::bert::masked_head;
use super::disentangled::{Attention, Relative, relative_positions};
use super::embeddings::words;
use super::encoder::{self, feed_forward, output};
use crate::huggingface::prelude::*;
use crate::huggingface::text;

const CODE: Code = Code::new("deberta_v2.modeling_deberta_v2", "DebertaV2");

/// The head of models whose config does not say `"legacy": false`.
const LEGACY: Code = Code::new("deberta_v2.modeling_deberta_v2", "LegacyDebertaV2");

/// What a config says besides what encoders have in common.
struct Positions {
    /// Whether words have embeddings of positions added.
    biases_input: bool,
    relative: Option<Relative>,
    normalizes_relative: bool,
}

impl Positions {
    fn read(config: &Config<'_>, shape: &Shape) -> Result<Positions, RequestError> {
        for name in ["conv_kernel_size", "embedding_size", "attention_head_size"] {
            if config.has(name) {
                return Err(config.not_built(name));
            }
        }
        if !config.flag("legacy", true)? {
            return Err(config.not_built("legacy"));
        }
        let norm = config.text("norm_rel_ebd", "none")?.to_lowercase();
        let is_relative = config.flag("relative_attention", false)?;
        Ok(Positions {
            biases_input: config.flag("position_biased_input", true)?,
            relative: is_relative
                .then(|| Relative::read(config, shape))
                .transpose()?,
            normalizes_relative: norm.split('|').any(|word| word.trim() == "layer_norm"),
        })
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = &task.config;
    let shape = encoder::shape(config)?;
    let positions = Positions::read(config, &shape)?;
    let seq_len = task.tokens_of("max_position_embeddings", shape.positions)?;
    let labels = Labels::of(config, 2)?;
    let at = task.frame(CODE, "deberta");
    let tracer = at.tracer().clone();
    let words = words(&at.below("deberta"), &shape);
    let model = |ids: &Tensor| model(&at, &shape, &positions, &words, ids);
    match task.class {
        "DebertaV2ForTokenClassification" | "DebertaV2ForQuestionAnswering" => {
            let head = (labels, shape.width, shape.dropout);
            text::of_tokens(task, tracer, seq_len, model, head)
        }
        _ => {
            let is_tied = config.flag("tie_word_embeddings", true)?;
            let words = is_tied.then_some(&words.weight);
            // The head of models whose config does not say `"legacy": false`.
            let legacy = Frame::new(&tracer, LEGACY);
            let head = |x: &Tensor| masked_head(&legacy, "OnlyMLMHead", &shape, words, x);
            text::masked_token(task, tracer.clone(), seq_len, model, head, shape.vocabulary)
        }
    }
}

/// `DebertaV2Embeddings`.
fn embeddings(
    at: &Frame,
    shape: &Shape,
    (words, biases_input): (&Embedding, bool),
    [ids, token_type_ids, mask]: [&Tensor; 3],
) -> Tensor {
    let width = shape.width;
    let seq_len = ids.length(1).cast_signed();
    let position_ids = at.buffer("position_ids", &[1, shape.positions], DType::Int64);
    let position_ids = (&position_ids).slice(1, 0, seq_len);
    let inputs_embeds = words.forward(ids);
    let position_embeddings = if biases_input {
        at.embedding("position_embeddings", [shape.positions, width])
            .forward(&position_ids)
    } else {
        (&inputs_embeds).zeros_like()
    };
    let mut embeddings = inputs_embeds.clone();
    if biases_input {
        embeddings = (&embeddings).add(&position_embeddings);
    }
    let mut token_type_embeddings = None;
    if shape.types > 0 {
        let types = at.embedding("token_type_embeddings", [shape.types, width]);
        let of_types = types.forward(token_type_ids);
        embeddings = (&embeddings).add(&of_types);
        token_type_embeddings = Some(of_types);
    }
    embeddings = at.layer_norm("LayerNorm", width, shape.eps, embeddings);
    let mut mask = mask.unsqueeze(2);
    mask = (&mask).to_dtype_of(embeddings.dtype());
    embeddings = (&embeddings).mul(&mask);
    embeddings = at.dropout("dropout", shape.dropout, embeddings);
    drop((position_ids, mask, inputs_embeds));
    embeddings.and_drop((position_embeddings, token_type_embeddings))
}

/// `DebertaV2Layer`, with its `DebertaV2Attention`.
fn layer(
    at: &Frame,
    shape: &Shape,
    relative: Option<&Relative>,
    (x, mask, distances): (&Tensor, &Tensor, Option<[&Tensor; 2]>),
) -> Tensor {
    let attention_output = at.call("attention", "Attention", |at| {
        let class = "transformers.models.deberta_v2.modeling_deberta_v2.DisentangledSelfAttention";
        let self_output = at.call_of("self", class, |at| {
            Attention {
                at,
                shape,
                relative,
            }
            .forward(x, mask, distances)
        });
        let states = [&self_output, x];
        let output = at.call("output", "SelfOutput", |at| {
            output(at, shape.width, shape, states)
        });
        output.and_drop(self_output)
    });
    let [output, intermediate_output] = feed_forward(at, shape, &attention_output);
    output.and_drop((attention_output, intermediate_output))
}

/// `DebertaV2Encoder`: the states before the first layer and after each.
fn encode(
    at: &Frame,
    shape: &Shape,
    positions: &Positions,
    [embedding_output, attention_mask]: [&Tensor; 2],
) -> Vec<Tensor> {
    at.made(&["layer"]);
    let mask = {
        let extended = attention_mask.unsqueeze(1).unsqueeze(2);
        let column = (&extended).squeeze(-2).unsqueeze(-1);
        (&extended).mul(column)
    };
    let relative = positions.relative.as_ref();
    let relative_pos = relative.map(|relative| relative_positions(embedding_output, relative));
    let rel_embeddings = relative.map(|relative| {
        let rows = relative.span.saturating_mul(2);
        at.embedding("rel_embeddings", [rows, shape.width]).weight
    });
    // It is there, too, where there is nothing to normalize.
    let norm = || LayerNorm::new(at.tracer(), at.path("LayerNorm"), shape.width, shape.eps);
    let norm = positions.normalizes_relative.then(norm);
    let rel_embeddings = match (rel_embeddings, norm) {
        (Some(weight), Some(norm)) => Some(norm.forward(weight)),
        (weight, _) => weight,
    };
    let mut states = vec![embedding_output.clone()];
    let mut output = embedding_output.clone();
    for index in 0..shape.layers {
        let distances = relative_pos.as_ref().zip(rel_embeddings.as_ref());
        let distances = distances.map(|(positions, embeddings)| [positions, embeddings]);
        output = at.call(&format!("layer.{index}"), "Layer", |at| {
            layer(at, shape, relative, (&output, &mask, distances))
        });
        states.push(output.clone());
    }
    drop((mask, relative_pos, output, rel_embeddings));
    states
}

/// `DebertaV2Model`.
fn model(
    at: &Frame,
    shape: &Shape,
    positions: &Positions,
    words: &Embedding,
    ids: &Tensor,
) -> Tensor {
    at.call("deberta", "Model", |at| {
        let tracer = at.tracer();
        let sizes: [Size; 2] = [ids.size(0).into(), ids.size(1).into()];
        let attention_mask = tracer.ones(&sizes, DType::Float32);
        let token_type_ids = tracer.zeros(&sizes, DType::Int64);
        let embedding_output = at.call("embeddings", "Embeddings", |at| {
            let words = (words, positions.biases_input);
            embeddings(at, shape, words, [ids, &token_type_ids, &attention_mask])
        });
        let mut states = at.call("encoder", "Encoder", |at| {
            encode(at, shape, positions, [&embedding_output, &attention_mask])
        });
        let output = states.last().cloned();
        let output = output.unwrap_or_else(|| embedding_output.clone());
        drop((attention_mask, token_type_ids, embedding_output));
        // A tuple lets go of its last item first.
        while states.pop().is_some() {}
        output
    })
}
