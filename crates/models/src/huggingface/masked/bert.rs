//! BERT: `modeling_bert.py`.

use super::embeddings::{Embeddings, Numbering};
use super::encoder::{Code, Defaults, Encoder, Pooler, Shape};
use crate::graph::Graph;
use crate::huggingface::Task;
use crate::huggingface::heads::Labels;
use crate::huggingface::text::{self, Answered, Classified};
use crate::request_error::RequestError;
use crate::tracing::{Activation, Dropout, LayerNorm, Linear, ModulePath, Tensor, Tracer};

/// The classes that are built here.
pub(in crate::huggingface) const CLASSES: &[&str] = &[
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
];

const CODE: Code = Code {
    module: "bert.modeling_bert",
    prefix: "Bert",
};

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
    let model = Model::new(&tracer, &shape, is_classifier);
    let linear =
        |name: &str, outputs: u64| Linear::new(&tracer, name, [shape.width, outputs], true);
    let dropout = Dropout::new("dropout".into(), shape.classifier_dropout(&task.config)?);
    let forward = |ids: &Tensor| model.forward(ids).sequence;
    match task.class {
        "BertForSequenceClassification" => {
            let classifier = linear("classifier", labels.count);
            text::classes(task, tracer, seq_len, labels, |ids| {
                let outputs = model.forward(ids);
                let mut pooled_output = outputs.pooled.clone().unwrap_or_else(|| ids.clone());
                pooled_output = dropout.forward(&pooled_output);
                let logits = classifier.forward(&pooled_output);
                let held = outputs.pooled.into_iter();
                let held = [outputs.sequence].into_iter().chain(held);
                Classified {
                    logits,
                    held: held.chain([pooled_output]).collect(),
                }
            })
        }
        "BertForTokenClassification" => {
            let classifier = linear("classifier", labels.count);
            let head = (Some(&dropout), &classifier, labels.count);
            text::token_classes(task, tracer, seq_len, forward, head)
        }
        "BertForQuestionAnswering" => {
            labels.must_be_two(&task.config)?;
            let qa_outputs = linear("qa_outputs", 2);
            let forward = |ids: &Tensor| Answered::from(forward(ids));
            text::answer(task, tracer, seq_len, forward, &qa_outputs)
        }
        _ => {
            let is_tied = task.config.flag("tie_word_embeddings", true)?;
            let words = is_tied.then_some(&model.embeddings.words.weight);
            let cls = MaskedHead::new(&tracer, CODE, &shape, words);
            let scores = |ids: &Tensor| {
                let outputs = forward(ids);
                let scores = cls.forward(&outputs);
                (outputs, scores)
            };
            text::masked_token(task, tracer, seq_len, scores, shape.vocabulary)
        }
    }
}

/// `BertModel`.
struct Model {
    place: ModulePath,
    embeddings: Embeddings,
    encoder: Encoder,
    pooler: Option<Pooler>,
}

/// `BaseModelOutputWithPoolingAndCrossAttentions`.
struct Outputs {
    sequence: Tensor,
    pooled: Option<Tensor>,
}

impl Model {
    fn new(tracer: &Tracer, shape: &Shape, has_pooler: bool) -> Model {
        let place = CODE.place("bert", "Model");
        let embeddings = place.path("embeddings");
        Model {
            embeddings: Embeddings::new(tracer, embeddings, shape, Numbering::Plain, None),
            encoder: Encoder::new(tracer, place.path("encoder"), shape),
            pooler: has_pooler.then(|| Pooler::new(tracer, place.path("pooler"), shape)),
            place,
        }
    }

    fn forward(&self, ids: &Tensor) -> Outputs {
        ids.tracer().in_module(&self.place, || {
            let embedding_output = self.embeddings.forward(ids);
            let sequence = self.encoder.forward(&embedding_output);
            let pooled = self.pooler.as_ref();
            let pooled = pooled.map(|pooler| pooler.forward(&sequence));
            drop(embedding_output);
            Outputs { sequence, pooled }
        })
    }
}

/// `BertOnlyMLMHead` with its `BertLMPredictionHead` and `BertPredictionHeadTransform`.
pub(super) struct MaskedHead {
    place: ModulePath,
    predictions: ModulePath,
    transform: ModulePath,
    dense: Linear,
    act: Activation,
    layer_norm: LayerNorm,
    decoder: Linear,
}

impl MaskedHead {
    pub(super) fn new(
        tracer: &Tracer,
        code: Code,
        shape: &Shape,
        words: Option<&Tensor>,
    ) -> MaskedHead {
        let place = code.place("cls", "OnlyMLMHead");
        let predictions = code.place(place.path("predictions"), "LMPredictionHead");
        let transform = code.place(predictions.path("transform"), "PredictionHeadTransform");
        let bias = tracer.parameter(&predictions.path("bias"), &[shape.vocabulary]);
        let width = shape.width;
        let act = transform.path("transform_act_fn");
        let norm = transform.path("LayerNorm");
        let decoder = predictions.path("decoder");
        MaskedHead {
            dense: Linear::new(tracer, transform.path("dense"), [width, width], true),
            act: Activation::named(tracer, act, &shape.activation),
            layer_norm: LayerNorm::new(tracer, norm, width, shape.eps),
            decoder: match words {
                Some(words) => Linear::tied(decoder, words, Some(bias)),
                None => Linear::new(tracer, decoder, [width, shape.vocabulary], true),
            },
            place,
            predictions,
            transform,
        }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        let tracer = x.tracer();
        tracer.in_module(&self.place, || {
            tracer.in_module(&self.predictions, || {
                let mut hidden_states = tracer.in_module(&self.transform, || {
                    let mut hidden_states = self.dense.forward(x);
                    hidden_states = self.act.forward(&hidden_states);
                    hidden_states = self.layer_norm.forward(&hidden_states);
                    hidden_states
                });
                hidden_states = self.decoder.forward(&hidden_states);
                hidden_states
            })
        })
    }
}
