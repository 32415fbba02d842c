//! RoBERTa, and XLM-RoBERTa and CamemBERT, which are its code with the modules of a model in another order:
//! `modeling_roberta.py`, `modeling_xlm_roberta.py` and `modeling_camembert.py`.

use super::embeddings::{Embeddings, Numbering};
use super::encoder::{Code, Defaults, Encoder, Shape};
use crate::graph::Graph;
use crate::huggingface::Task;
use crate::huggingface::heads::Labels;
use crate::huggingface::text::{self, Answered, Classified};
use crate::request_error::RequestError;
use crate::tracing::{
    Dropout, LayerNorm, Linear, ModulePath, Pointwise as _, Tensor, Tracer, Views as _,
};

/// The classes that are built here.
pub(in crate::huggingface) const CLASSES: &[&str] = &[
    "RobertaForMaskedLM",
    "RobertaForSequenceClassification",
    "RobertaForTokenClassification",
    "RobertaForQuestionAnswering",
    "XLMRobertaForMaskedLM",
    "XLMRobertaForSequenceClassification",
    "XLMRobertaForTokenClassification",
    "XLMRobertaForQuestionAnswering",
    "CamembertForMaskedLM",
    "CamembertForSequenceClassification",
    "CamembertForTokenClassification",
    "CamembertForQuestionAnswering",
];

const ROBERTA: Code = Code {
    module: "roberta.modeling_roberta",
    prefix: "Roberta",
};

const XLM_ROBERTA: Code = Code {
    module: "xlm_roberta.modeling_xlm_roberta",
    prefix: "XLMRoberta",
};

const CAMEMBERT: Code = Code {
    module: "camembert.modeling_camembert",
    prefix: "Camembert",
};

/// XLM-RoBERTa and CamemBERT have BERT's vocabulary as a default, though no model of theirs has.
const DEFAULTS: Defaults = Defaults {
    vocabulary: 30522,
    width: 768,
    heads: 12,
    intermediate: 3072,
    types: 2,
    activation: "gelu",
    dropout: 0.1,
    eps: 1e-12,
    padding: 1,
};

/// What a model is trained on, the class name after the family's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Head {
    MaskedLM,
    SequenceClassification,
    TokenClassification,
    QuestionAnswering,
}

fn head(class: &str) -> (Code, Head) {
    let code = [ROBERTA, XLM_ROBERTA, CAMEMBERT]
        .into_iter()
        .find(|code| class.starts_with(code.prefix));
    let head = match class.rsplit_once("For").map(|(_, head)| head) {
        Some("SequenceClassification") => Head::SequenceClassification,
        Some("TokenClassification") => Head::TokenClassification,
        Some("QuestionAnswering") => Head::QuestionAnswering,
        _ => Head::MaskedLM,
    };
    (code.unwrap_or(ROBERTA), head)
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let (code, head) = head(task.class);
    let is_roberta = code.prefix == ROBERTA.prefix;
    let defaults = Defaults {
        vocabulary: if is_roberta {
            50265
        } else {
            DEFAULTS.vocabulary
        },
        ..DEFAULTS
    };
    let config = &task.config;
    let shape = Shape::read(config, code, &defaults)?;
    let padding = shape.padding.ok_or_else(|| {
        let problem = "pad_token_id must be a token: positions are counted from the one after it";
        RequestError::at(config.at("pad_token_id"), problem)
    })?;
    let room = shape.positions.saturating_sub(padding.saturating_add(1));
    let seq_len = task.tokens_of("max_position_embeddings, less pad_token_id + 1,", room)?;
    let labels = Labels::of(config, 2)?;
    let is_tied = config.flag("tie_word_embeddings", true)?;
    let p = shape.classifier_dropout(config)?;

    let tracer = task.tracer(code.module);
    let dropout = Dropout::new("dropout".into(), p);
    // RoBERTa makes the model first, the others the head; a head that is tied makes the embedding of words, too.
    let mut model = is_roberta.then(|| Model::new(&tracer, &shape, padding, None));
    let linear =
        |name: &str, outputs: u64| Linear::new(&tracer, name, [shape.width, outputs], true);
    match head {
        Head::SequenceClassification => {
            let classifier = ClassificationHead::new(&tracer, &shape, p, labels.count);
            let model = model.unwrap_or_else(|| Model::new(&tracer, &shape, padding, None));
            text::classes(task, tracer, seq_len, labels, |ids| {
                let sequence_output = model.forward(ids);
                Classified {
                    logits: classifier.forward(&sequence_output),
                    held: vec![sequence_output],
                }
            })
        }
        Head::TokenClassification => {
            let classifier = linear("classifier", labels.count);
            let model = model.unwrap_or_else(|| Model::new(&tracer, &shape, padding, None));
            let forward = |ids: &Tensor| model.forward(ids);
            let head = (Some(&dropout), &classifier, labels.count);
            text::token_classes(task, tracer, seq_len, forward, head)
        }
        Head::QuestionAnswering => {
            labels.must_be_two(config)?;
            let qa_outputs = linear("qa_outputs", 2);
            let model = model.unwrap_or_else(|| Model::new(&tracer, &shape, padding, None));
            let forward = |ids: &Tensor| Answered::from(model.forward(ids));
            text::answer(task, tracer, seq_len, forward, &qa_outputs)
        }
        Head::MaskedLM => {
            let words = model.as_ref().map(|model| &model.embeddings.words.weight);
            let lm_head = MaskedHead::new(&tracer, &shape, words.filter(|_| is_tied), is_tied);
            let words = is_tied.then_some(&lm_head.decoder.weight);
            let model = model.take();
            let model = model.unwrap_or_else(|| Model::new(&tracer, &shape, padding, words));
            let scores = |ids: &Tensor| {
                let outputs = model.forward(ids);
                let scores = lm_head.forward(&outputs);
                (outputs, scores)
            };
            text::masked_token(task, tracer, seq_len, scores, shape.vocabulary)
        }
    }
}

/// `RobertaModel` without a pooler.
struct Model {
    place: ModulePath,
    embeddings: Embeddings,
    encoder: Encoder,
}

impl Model {
    fn new(tracer: &Tracer, shape: &Shape, padding: u64, words: Option<&Tensor>) -> Model {
        let place = shape.code.place("roberta", "Model");
        let path = place.path("embeddings");
        Model {
            embeddings: Embeddings::new(tracer, path, shape, Numbering::After(padding), words),
            encoder: Encoder::new(tracer, place.path("encoder"), shape),
            place,
        }
    }

    fn forward(&self, ids: &Tensor) -> Tensor {
        ids.tracer().in_module(&self.place, || {
            let embedding_output = self.embeddings.forward(ids);
            let output = self.encoder.forward(&embedding_output);
            output.and_drop(embedding_output)
        })
    }
}

/// `RobertaLMHead`.
struct MaskedHead {
    place: ModulePath,
    dense: Linear,
    layer_norm: LayerNorm,
    decoder: Linear,
}

impl MaskedHead {
    /// `words` is the embedding of words if that is made already, and the same weight.
    fn new(tracer: &Tracer, shape: &Shape, words: Option<&Tensor>, is_tied: bool) -> MaskedHead {
        let place = shape.code.place("lm_head", "LMHead");
        let width = shape.width;
        let bias = tracer.parameter(&place.path("bias"), &[shape.vocabulary]);
        let dense = Linear::new(tracer, place.path("dense"), [width, width], true);
        let layer_norm = LayerNorm::new(tracer, place.path("layer_norm"), width, shape.eps);
        let decoder = place.path("decoder");
        let decoder = match words {
            Some(words) => Linear::tied(decoder, words, Some(bias)),
            None if is_tied => {
                let sizes = [shape.vocabulary, width];
                let words = tracer.parameter(&format!("{decoder}.weight"), &sizes);
                Linear::tied(decoder, &words, Some(bias))
            }
            None => Linear::new(tracer, decoder, [width, shape.vocabulary], true),
        };
        MaskedHead {
            place,
            dense,
            layer_norm,
            decoder,
        }
    }

    fn forward(&self, features: &Tensor) -> Tensor {
        features.tracer().in_module(&self.place, || {
            let mut x = self.dense.forward(features);
            x = (&x).gelu("none");
            x = self.layer_norm.forward(&x);
            x = self.decoder.forward(&x);
            x
        })
    }
}

/// `RobertaClassificationHead`.
struct ClassificationHead {
    place: ModulePath,
    dense: Linear,
    dropout: Dropout,
    out_proj: Linear,
}

impl ClassificationHead {
    fn new(tracer: &Tracer, shape: &Shape, p: f64, labels: u64) -> ClassificationHead {
        let place = shape.code.place("classifier", "ClassificationHead");
        let width = shape.width;
        ClassificationHead {
            dense: Linear::new(tracer, place.path("dense"), [width, width], true),
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
            x = (&x).tanh();
            x = self.dropout.forward(&x);
            x = self.out_proj.forward(&x);
            x
        })
    }
}
