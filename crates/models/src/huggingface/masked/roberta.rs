//! RoBERTa, and XLM-RoBERTa and CamemBERT, which are its code with the modules of a model in another order:
//! `modeling_roberta.py`, `modeling_xlm_roberta.py` and `modeling_camembert.py`. `MPNet` has its heads.

use super::embeddings::{Numbering, new_embeddings};
use super::encoder::{Defaults, Shape, new_encoder};
use super::mpnet;
use crate::huggingface::prelude::*;
use crate::huggingface::text::{self, Answered, Classified};

const ROBERTA: Code = Code::new("roberta.modeling_roberta", "Roberta");

const XLM_ROBERTA: Code = Code::new("xlm_roberta.modeling_xlm_roberta", "XLMRoberta");

const CAMEMBERT: Code = Code::new("camembert.modeling_camembert", "Camembert");

const MPNET: Code = Code::new("mpnet.modeling_mpnet", "MPNet");

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
    let code = [ROBERTA, XLM_ROBERTA, CAMEMBERT, MPNET]
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
    let is_mpnet = code.prefix == MPNET.prefix;
    let defaults = Defaults {
        vocabulary: match () {
            () if is_roberta => 50265,
            () if is_mpnet => 30527,
            () => DEFAULTS.vocabulary,
        },
        ..DEFAULTS
    };
    let config = &task.config;
    let shape = Shape::read(config, code, &defaults)?;
    let padding = if is_mpnet {
        Some(mpnet::PADDING)
    } else {
        shape.padding
    };
    let padding = padding.ok_or_else(|| {
        let problem = "pad_token_id must be a token: positions are counted from the one after it";
        config.wrong("pad_token_id", problem)
    })?;
    let room = shape.positions.saturating_sub(padding.saturating_add(1));
    let seq_len = task.tokens_of("max_position_embeddings, less pad_token_id + 1,", room)?;
    let labels = Labels::of(config, 2)?;
    let is_tied = config.flag("tie_word_embeddings", true)?;
    let p = if is_mpnet {
        shape.dropout
    } else {
        shape.classifier_dropout(config)?
    };
    let buckets = config.size("relative_attention_num_buckets", 32)?;

    let tracer = task.tracer(code.module);
    let dropout = Dropout::new("dropout".into(), p);
    // RoBERTa and MPNet make the model first, the others the head; a head that is tied makes the embedding of words, too.
    let model = match () {
        () if is_mpnet => Some(mpnet::new_model(&tracer, &shape, buckets)),
        () => is_roberta.then(|| new_model(&tracer, &shape, padding, None)),
    };
    let linear =
        |name: &str, outputs: u64| Linear::new(&tracer, name, [shape.width, outputs], true);
    match head {
        Head::SequenceClassification => {
            let classifier = new_classification_head(&tracer, &shape, p, labels.count);
            let (model, _) = model.unwrap_or_else(|| new_model(&tracer, &shape, padding, None));
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
            let (model, _) = model.unwrap_or_else(|| new_model(&tracer, &shape, padding, None));
            let forward = |ids: &Tensor| model.forward(ids);
            let head = (Some(&dropout), &classifier, labels.count);
            text::token_classes(task, tracer, seq_len, forward, head)
        }
        Head::QuestionAnswering => {
            labels.must_be_two(config)?;
            let qa_outputs = linear("qa_outputs", 2);
            let (model, _) = model.unwrap_or_else(|| new_model(&tracer, &shape, padding, None));
            let forward = |ids: &Tensor| Answered::from(model.forward(ids));
            text::answer(task, tracer, seq_len, forward, &qa_outputs)
        }
        Head::MaskedLM => {
            let words = model.as_ref().map(|(_, words)| words);
            let words = words.filter(|_| is_tied);
            let (lm_head, words) = new_masked_head(&tracer, &shape, words, is_tied);
            let words = is_tied.then_some(&words);
            let (model, _) = model.unwrap_or_else(|| new_model(&tracer, &shape, padding, words));
            let forward = |ids: &Tensor| model.forward(ids);
            let head = |x: &Tensor| lm_head.forward(x);
            text::masked_token(task, tracer, seq_len, forward, head, shape.vocabulary)
        }
    }
}

/// `RobertaModel` without a pooler, and the weight of its words.
fn new_model(
    tracer: &Tracer,
    shape: &Shape,
    padding: u64,
    words: Option<&Tensor>,
) -> (FnModule, Tensor) {
    let place = shape.code.place("roberta", "Model");
    let path = place.path("embeddings");
    let (embeddings, words) = new_embeddings(tracer, path, shape, Numbering::After(padding), words);
    let encoder = new_encoder(tracer, place.path("encoder"), shape);
    let model = FnModule::new(place, move |ids| {
        let embedding_output = embeddings.forward(ids);
        let output = encoder.forward(&embedding_output);
        output.and_drop(embedding_output)
    });
    (model, words)
}

/// `RobertaLMHead`.
/// `words` is the embedding of words if that is made already, and the same weight. Also gives the weight of its decoder.
fn new_masked_head(
    tracer: &Tracer,
    shape: &Shape,
    words: Option<&Tensor>,
    is_tied: bool,
) -> (FnModule, Tensor) {
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

    let weight = decoder.weight.clone();
    let head = FnModule::new(place, move |features| {
        let mut x = dense.forward(features);
        x = (&x).gelu("none");
        x = layer_norm.forward(&x);
        x = decoder.forward(&x);
        x
    });
    (head, weight)
}

/// `RobertaClassificationHead`.
fn new_classification_head(tracer: &Tracer, shape: &Shape, p: f64, labels: u64) -> FnModule {
    let place = shape.code.place("classifier", "ClassificationHead");
    let width = shape.width;
    let dense = Linear::new(tracer, place.path("dense"), [width, width], true);
    let dropout = Dropout::new(place.path("dropout"), p);
    let out_proj = Linear::new(tracer, place.path("out_proj"), [width, labels], true);
    FnModule::new(place, move |features| {
        let mut x = features.select(1, 0);
        x = dropout.forward(&x);
        x = dense.forward(&x);
        x = (&x).tanh();
        x = dropout.forward(&x);
        x = out_proj.forward(&x);
        x
    })
}
