//! BERT: `modeling_bert.py`.

use super::embeddings::{Numbering, new_embeddings};
use super::encoder::{Defaults, Shape, new_encoder, new_pooler};
use crate::huggingface::prelude::*;
use crate::huggingface::text;

const CODE: Code = Code::new("bert.modeling_bert", "Bert");

const DEFAULTS: Defaults = Defaults {
    vocabulary: 30522,
    width: 768,
    heads: 12,
    intermediate: 3072,
    types: 2,
    activation: "gelu",
    dropout: 0.1,
    eps: 1e-12,
    padding: 0,
};

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let shape = Shape::read(&task.config, CODE, &DEFAULTS)?;
    let seq_len = task.tokens_of("max_position_embeddings", shape.positions)?;
    let labels = Labels::of(&task.config, 2)?;
    let tracer = task.tracer(CODE.module);
    let is_classifier = task.class == "BertForSequenceClassification";
    let (model, words) = new_model(&tracer, &shape, is_classifier);
    let p = shape.classifier_dropout(&task.config)?;
    let forward = |ids: &Tensor| model.forward(ids).0;
    match task.class {
        "BertForSequenceClassification" => {
            let head = (labels, shape.width, p);
            text::classes_of_pooled(task, tracer, seq_len, &model, head)
        }
        "BertForTokenClassification" | "BertForQuestionAnswering" => {
            let head = (labels, shape.width, p);
            text::of_tokens(task, tracer, seq_len, forward, head)
        }
        _ => {
            let is_tied = task.config.flag("tie_word_embeddings", true)?;
            let words = is_tied.then_some(&words);
            let cls = new_masked_head(&tracer, CODE, &shape, words);
            let head = |x: &Tensor| cls.forward(x);
            text::masked_token(task, tracer, seq_len, forward, head, shape.vocabulary)
        }
    }
}

/// `BertModel`, and the weight of its words.
fn new_model(
    tracer: &Tracer,
    shape: &Shape,
    has_pooler: bool,
) -> (FnModule<(Tensor, Option<Tensor>)>, Tensor) {
    let place = CODE.place("bert", "Model");
    let embeddings = place.path("embeddings");
    let (embeddings, words) = new_embeddings(tracer, embeddings, shape, Numbering::Plain, None);
    let encoder = new_encoder(tracer, place.path("encoder"), shape);
    let pool = has_pooler.then(|| new_pooler(tracer, place.path("pooler"), shape));
    let model = FnModule::new(place, move |ids| {
        let embedding_output = embeddings.forward(ids);
        let sequence = encoder.forward(&embedding_output);
        let pooled = pool.as_ref().map(|pool| pool.forward(&sequence));
        drop(embedding_output);
        (sequence, pooled)
    });
    (model, words)
}

/// `BertOnlyMLMHead` with its `BertLMPredictionHead` and `BertPredictionHeadTransform`.
pub(super) fn new_masked_head(
    tracer: &Tracer,
    code: Code,
    shape: &Shape,
    words: Option<&Tensor>,
) -> FnModule {
    let place = code.place("cls", "OnlyMLMHead");
    let predictions = code.place(place.path("predictions"), "LMPredictionHead");
    let transform_place = code.place(predictions.path("transform"), "PredictionHeadTransform");
    let bias = tracer.parameter(&predictions.path("bias"), &[shape.vocabulary]);
    let width = shape.width;
    let act = transform_place.path("transform_act_fn");
    let norm = transform_place.path("LayerNorm");
    let decoder = predictions.path("decoder");
    let dense = Linear::new(tracer, transform_place.path("dense"), [width, width], true);
    let act = Activation::named(tracer, act, &shape.activation);
    let layer_norm = LayerNorm::new(tracer, norm, width, shape.eps);
    let decoder = match words {
        Some(words) => Linear::tied(decoder, words, Some(bias)),
        None => Linear::new(tracer, decoder, [width, shape.vocabulary], true),
    };
    FnModule::new(place, move |x| {
        let tracer = x.tracer();
        tracer.in_module(&predictions, || {
            let transform = || chain(&[&dense, &act, &layer_norm], x);
            decoder.on(tracer.in_module(&transform_place, transform))
        })
    })
}
