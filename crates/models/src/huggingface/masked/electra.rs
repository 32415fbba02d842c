//! ELECTRA: `modeling_electra.py`.

use super::embeddings::{Numbering, embeddings, words};
use super::encoder::{self, classification_head, encoder};
use crate::huggingface::prelude::*;
use crate::huggingface::text;

const CODE: Code = Code::new("electra.modeling_electra", "Electra");

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = &task.config;
    let shape = encoder::shape(config)?;
    let seq_len = task.tokens_of("max_position_embeddings", shape.positions)?;
    let labels = Labels::of(config, 2)?;
    let p = shape.classifier_dropout(config)?;
    let at = task.frame(CODE, "electra");
    let tracer = at.tracer().clone();
    let words = words(&at.below("electra"), &shape);
    let model = |ids: &Tensor| model(&at, &shape, &words, ids);
    match task.class {
        "ElectraForSequenceClassification" => text::classes(task, tracer, seq_len, labels, |ids| {
            let sequence_output = model(ids);
            let logits =
                classification_head(&at, &shape, (p, labels.count), &sequence_output, |at, x| {
                    at.activation("activation", "gelu", x)
                });
            (logits, sequence_output)
        }),
        "ElectraForTokenClassification" | "ElectraForQuestionAnswering" => {
            let head = (labels, shape.width, p);
            text::of_tokens(task, tracer, seq_len, model, head)
        }
        _ => {
            let name = "generator_lm_head";
            let is_tied = config.flag("tie_word_embeddings", true)?;
            let head = |x: &Tensor| {
                let predicted = predictions(&at, &shape, x);
                if is_tied {
                    let bias = at.below(name).parameter("bias", &[shape.vocabulary]);
                    return Linear::tied(name.into(), &words.weight, Some(bias)).forward(predicted);
                }
                at.linear(
                    name,
                    [shape.embedding_width, shape.vocabulary],
                    true,
                    predicted,
                )
            };
            text::masked_token(task, tracer, seq_len, model, head, shape.vocabulary)
        }
    }
}

/// `ElectraModel`.
fn model(at: &Frame, shape: &Shape, words: &Embedding, ids: &Tensor) -> Tensor {
    at.call("electra", "Model", |at| {
        let mut embedding_output = at.call("embeddings", "Embeddings", |at| {
            embeddings(at, shape, Numbering::Plain, words, ids)
        });
        let (narrow, wide) = (shape.embedding_width, shape.width);
        if narrow != wide {
            embedding_output =
                at.linear("embeddings_project", [narrow, wide], true, embedding_output);
        }
        encoder(at, shape, &embedding_output).and_drop(embedding_output)
    })
}

/// `ElectraGeneratorPredictions`.
fn predictions(at: &Frame, shape: &Shape, x: &Tensor) -> Tensor {
    let (wide, narrow) = (shape.width, shape.embedding_width);
    at.call("generator_predictions", "GeneratorPredictions", |at| {
        at.made(&["LayerNorm"]);
        let mut hidden_states = at.linear("dense", [wide, narrow], true, x);
        hidden_states = at.activation("activation", "gelu", hidden_states);
        at.layer_norm("LayerNorm", narrow, shape.eps, hidden_states)
    })
}
