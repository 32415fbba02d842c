//! ELECTRA: `modeling_electra.py`.

use super::embeddings::{Embeddings, Numbering};
use super::encoder::{Code, Defaults, Encoder, Shape};
use crate::graph::Graph;
use crate::huggingface::Task;
use crate::huggingface::heads::Labels;
use crate::huggingface::text::{self, Answered, Classified};
use crate::request_error::RequestError;
use crate::tracing::{
    Activation, Dropout, LayerNorm, Linear, ModulePath, Tensor, Tracer, Views as _,
};

/// The classes that are built here.
pub(in crate::huggingface) const CLASSES: &[&str] = &[
    "ElectraForMaskedLM",
    "ElectraForSequenceClassification",
    "ElectraForTokenClassification",
    "ElectraForQuestionAnswering",
];

const CODE: Code = Code {
    module: "electra.modeling_electra",
    prefix: "Electra",
};

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
    let linear =
        |name: &str, outputs: u64| Linear::new(&tracer, name, [shape.width, outputs], true);
    let model = Model::new(&tracer, &shape);
    match task.class {
        "ElectraForSequenceClassification" => {
            let classifier = ClassificationHead::new(&tracer, &shape, p, labels.count);
            text::classes(task, tracer, seq_len, labels, |ids| {
                let sequence_output = model.forward(ids);
                Classified {
                    logits: classifier.forward(&sequence_output),
                    held: vec![sequence_output],
                }
            })
        }
        "ElectraForTokenClassification" => {
            let dropout = Dropout::new("dropout".into(), p);
            let classifier = linear("classifier", labels.count);
            let forward = |ids: &Tensor| model.forward(ids);
            let head = (Some(&dropout), &classifier, labels.count);
            text::token_classes(task, tracer, seq_len, forward, head)
        }
        "ElectraForQuestionAnswering" => {
            labels.must_be_two(config)?;
            let qa_outputs = linear("qa_outputs", 2);
            let forward = |ids: &Tensor| Answered::from(model.forward(ids));
            text::answer(task, tracer, seq_len, forward, &qa_outputs)
        }
        _ => {
            let predictions = Predictions::new(&tracer, &shape);
            let head = "generator_lm_head";
            let lm_head = if config.flag("tie_word_embeddings", true)? {
                let bias = tracer.parameter(&format!("{head}.bias"), &[shape.vocabulary]);
                Linear::tied(head.into(), &model.embeddings.words.weight, Some(bias))
            } else {
                let sizes = [shape.embedding_width, shape.vocabulary];
                Linear::new(&tracer, head, sizes, true)
            };
            let scores = |ids: &Tensor| {
                let sequence_output = model.forward(ids);
                let mut scores = predictions.forward(&sequence_output);
                scores = lm_head.forward(&scores);
                (sequence_output, scores)
            };
            text::masked_token(task, tracer, seq_len, scores, shape.vocabulary)
        }
    }
}

/// `ElectraModel`.
struct Model {
    place: ModulePath,
    embeddings: Embeddings,
    project: Option<Linear>,
    encoder: Encoder,
}

impl Model {
    fn new(tracer: &Tracer, shape: &Shape) -> Model {
        let place = CODE.place("electra", "Model");
        let path = place.path("embeddings");
        let (narrow, wide) = (shape.embedding_width, shape.width);
        let project = place.path("embeddings_project");
        Model {
            embeddings: Embeddings::new(tracer, path, shape, Numbering::Plain, None),
            project: (narrow != wide).then(|| Linear::new(tracer, project, [narrow, wide], true)),
            encoder: Encoder::new(tracer, place.path("encoder"), shape),
            place,
        }
    }

    fn forward(&self, ids: &Tensor) -> Tensor {
        ids.tracer().in_module(&self.place, || {
            let mut embedding_output = self.embeddings.forward(ids);
            if let Some(project) = &self.project {
                embedding_output = project.forward(&embedding_output);
            }
            let output = self.encoder.forward(&embedding_output);
            output.and_drop(embedding_output)
        })
    }
}

/// `ElectraGeneratorPredictions`.
struct Predictions {
    place: ModulePath,
    activation: Activation,
    layer_norm: LayerNorm,
    dense: Linear,
}

impl Predictions {
    fn new(tracer: &Tracer, shape: &Shape) -> Predictions {
        let place = CODE.place("generator_predictions", "GeneratorPredictions");
        let (wide, narrow) = (shape.width, shape.embedding_width);
        let norm = place.path("LayerNorm");
        Predictions {
            activation: Activation::named(tracer, place.path("activation"), "gelu"),
            layer_norm: LayerNorm::new(tracer, norm, narrow, shape.eps),
            dense: Linear::new(tracer, place.path("dense"), [wide, narrow], true),
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut hidden_states = self.dense.forward(x);
            hidden_states = self.activation.forward(&hidden_states);
            hidden_states = self.layer_norm.forward(&hidden_states);
            hidden_states
        })
    }
}

/// `ElectraClassificationHead`.
struct ClassificationHead {
    place: ModulePath,
    dense: Linear,
    activation: Activation,
    dropout: Dropout,
    out_proj: Linear,
}

impl ClassificationHead {
    fn new(tracer: &Tracer, shape: &Shape, p: f64, labels: u64) -> ClassificationHead {
        let place = CODE.place("classifier", "ClassificationHead");
        let width = shape.width;
        ClassificationHead {
            dense: Linear::new(tracer, place.path("dense"), [width, width], true),
            activation: Activation::named(tracer, place.path("activation"), "gelu"),
            dropout: Dropout::new(place.path("dropout"), p),
            out_proj: Linear::new(tracer, place.path("out_proj"), [width, labels], true),
            place,
        }
    }

    fn forward(&self, features: &Tensor) -> Tensor {
        features.tracer().in_module(&self.place, || {
            let mut x = features.select(1, 0);
            x = self.dropout.forward(&x);
            x = self.dense.forward(&x);
            x = self.activation.forward(&x);
            x = self.dropout.forward(&x);
            x = self.out_proj.forward(&x);
            x
        })
    }
}
