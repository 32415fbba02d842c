//! BERT: `modeling_bert.py`.

use super::embeddings::{Numbering, embeddings, words};
use super::encoder::{self, encoder, pooler};
use crate::huggingface::prelude::*;
use crate::huggingface::text;

const CODE: Code = Code::new("bert.modeling_bert", "Bert");

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let shape = encoder::shape(&task.config)?;
    let seq_len = task.tokens_of("max_position_embeddings", shape.positions)?;
    let labels = Labels::of(&task.config, 2)?;
    let at = task.frame(CODE, "bert");
    let tracer = at.tracer().clone();
    let has_pooler = task.class == "BertForSequenceClassification";
    let words = words(&at.below("bert"), &shape);
    let model = |ids: &Tensor| model(&at, &shape, &words, has_pooler, ids);
    let head = (labels, shape.width, shape.classifier_dropout(&task.config)?);
    match task.class {
        "BertForSequenceClassification" => {
            text::classes_of_pooled(task, tracer, seq_len, model, head)
        }
        "BertForTokenClassification" | "BertForQuestionAnswering" => {
            text::of_tokens(task, tracer, seq_len, |ids| model(ids).0, head)
        }
        _ => {
            let is_tied = task.config.flag("tie_word_embeddings", true)?;
            let words = is_tied.then_some(&words.weight);
            let head = |x: &Tensor| masked_head(&at, "OnlyMLMHead", &shape, words, x);
            let forward = |ids: &Tensor| model(ids).0;
            text::masked_token(task, tracer, seq_len, forward, head, shape.vocabulary)
        }
    }
}

/// `BertModel`: the states of all tokens, and what stands for the whole text.
fn model(
    at: &Frame,
    shape: &Shape,
    words: &Embedding,
    has_pooler: bool,
    ids: &Tensor,
) -> (Tensor, Option<Tensor>) {
    at.call("bert", "Model", |at| {
        let embedding_output = at.call("embeddings", "Embeddings", |at| {
            embeddings(at, shape, Numbering::Plain, words, ids)
        });
        let sequence = encoder(at, shape, &embedding_output);
        let pooled =
            has_pooler.then(|| at.call("pooler", "Pooler", |at| pooler(at, shape, &sequence)));
        drop(embedding_output);
        (sequence, pooled)
    })
}

/// `BertOnlyMLMHead`, or what else its class is, with its `BertLMPredictionHead` and `BertPredictionHeadTransform`.
pub(super) fn masked_head(
    at: &Frame,
    class: &str,
    shape: &Shape,
    words: Option<&Tensor>,
    x: &Tensor,
) -> Tensor {
    let width = shape.width;
    at.call("cls", class, |at| {
        at.call("predictions", "LMPredictionHead", |at| {
            let transformed = at.call("transform", "PredictionHeadTransform", |at| {
                let dense = at.linear("dense", [width, width], true, x);
                let active = at.activation("transform_act_fn", &shape.activation, dense);
                at.layer_norm("LayerNorm", width, shape.eps, active)
            });
            decoder(at, [width, shape.vocabulary], words, transformed)
        })
    })
}

/// The `decoder` of a head that tells tokens, whose weight is that of the words where they are tied.
pub(super) fn decoder(at: &Frame, sizes: [u64; 2], words: Option<&Tensor>, x: Tensor) -> Tensor {
    let bias = at.parameter("bias", &[sizes[1]]);
    match words {
        Some(words) => Linear::tied(at.path("decoder"), words, Some(bias)).forward(x),
        None => at.linear("decoder", sizes, true, x),
    }
}
