//! ELECTRA: `modeling_electra.py`.

use super::embeddings::{Numbering, new_embeddings};
use super::encoder::{Defaults, Shape, new_encoder};
use crate::huggingface::prelude::*;
use crate::huggingface::text::{self, Classified};

const CODE: Code = Code::new("electra.modeling_electra", "Electra");

const DEFAULTS: Defaults = Defaults {
    vocabulary: 30522,
    width: 256,
    heads: 4,
    intermediate: 1024,
    types: 2,
    activation: "gelu",
    dropout: 0.1,
    eps: 1e-12,
    padding: 0,
};

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = &task.config;
    let shape = Shape {
        embedding_width: config.size("embedding_size", 128)?,
        ..Shape::read(config, CODE, &DEFAULTS)?
    };
    let seq_len = task.tokens_of("max_position_embeddings", shape.positions)?;
    let labels = Labels::of(config, 2)?;
    let p = shape.classifier_dropout(config)?;
    let tracer = task.tracer(CODE.module);
    let (model, words) = new_model(&tracer, &shape);
    match task.class {
        "ElectraForSequenceClassification" => {
            let classifier = new_classification_head(&tracer, &shape, p, labels.count);
            text::classes(task, tracer, seq_len, labels, |ids| {
                let sequence_output = model.forward(ids);
                Classified {
                    logits: classifier.forward(&sequence_output),
                    held: vec![sequence_output],
                }
            })
        }
        "ElectraForTokenClassification" | "ElectraForQuestionAnswering" => {
            let head = (labels, shape.width, p);
            text::of_tokens(task, tracer, seq_len, |ids| model.forward(ids), head)
        }
        _ => {
            let predictions = new_predictions(&tracer, &shape);
            let head = "generator_lm_head";
            let lm_head = if config.flag("tie_word_embeddings", true)? {
                let bias = tracer.parameter(&format!("{head}.bias"), &[shape.vocabulary]);
                Linear::tied(head.into(), &words, Some(bias))
            } else {
                let sizes = [shape.embedding_width, shape.vocabulary];
                Linear::new(&tracer, head, sizes, true)
            };
            let head = |x: &Tensor| chain(&[&predictions, &lm_head], x);
            let forward = |ids: &Tensor| model.forward(ids);
            text::masked_token(task, tracer, seq_len, forward, head, shape.vocabulary)
        }
    }
}

/// `ElectraModel`, and the weight of its words.
fn new_model(tracer: &Tracer, shape: &Shape) -> (FnModule, Tensor) {
    let place = CODE.place("electra", "Model");
    let path = place.path("embeddings");
    let (narrow, wide) = (shape.embedding_width, shape.width);
    let project = place.path("embeddings_project");
    let (embeddings, words) = new_embeddings(tracer, path, shape, Numbering::Plain, None);
    let project = (narrow != wide).then(|| Linear::new(tracer, project, [narrow, wide], true));
    let encoder = new_encoder(tracer, place.path("encoder"), shape);
    let model = FnModule::new(place, move |ids| {
        let mut embedding_output = embeddings.forward(ids);
        if let Some(project) = &project {
            embedding_output = project.forward(&embedding_output);
        }
        let output = encoder.forward(&embedding_output);
        output.and_drop(embedding_output)
    });
    (model, words)
}

/// `ElectraGeneratorPredictions`.
fn new_predictions(tracer: &Tracer, shape: &Shape) -> FnModule {
    let place = CODE.place("generator_predictions", "GeneratorPredictions");
    let (wide, narrow) = (shape.width, shape.embedding_width);
    let norm = place.path("LayerNorm");
    let activation = Activation::named(tracer, place.path("activation"), "gelu");
    let layer_norm = LayerNorm::new(tracer, norm, narrow, shape.eps);
    let dense = Linear::new(tracer, place.path("dense"), [wide, narrow], true);
    FnModule::new(place, move |x| {
        chain(&[&dense, &activation, &layer_norm], x)
    })
}

/// `ElectraClassificationHead`.
fn new_classification_head(tracer: &Tracer, shape: &Shape, p: f64, labels: u64) -> FnModule {
    let place = CODE.place("classifier", "ClassificationHead");
    let width = shape.width;
    let dense = Linear::new(tracer, place.path("dense"), [width, width], true);
    let activation = Activation::named(tracer, place.path("activation"), "gelu");
    let dropout = Dropout::new(place.path("dropout"), p);
    let out_proj = Linear::new(tracer, place.path("out_proj"), [width, labels], true);
    FnModule::new(place, move |features| {
        let x = features.select(1, 0);
        chain(&[&dropout, &dense, &activation, &dropout, &out_proj], x)
    })
}
