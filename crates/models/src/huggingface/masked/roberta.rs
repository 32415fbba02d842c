//! RoBERTa, and XLM-RoBERTa and CamemBERT, which are its code with the modules of a model in another order:
//! `modeling_roberta.py`, `modeling_xlm_roberta.py` and `modeling_camembert.py`. `MPNet` has its heads.
//! XLM-RoBERTa and CamemBERT have BERT's vocabulary as a default, though no model of theirs has.

use super::bert::decoder;
use super::embeddings::{Numbering, embeddings};
use super::encoder::{self, classification_head, encoder};
use super::mpnet;
use crate::huggingface::prelude::*;
use crate::huggingface::text;

const ROBERTA: Code = Code::new("roberta.modeling_roberta", "Roberta");

const XLM_ROBERTA: Code = Code::new("xlm_roberta.modeling_xlm_roberta", "XLMRoberta");

const CAMEMBERT: Code = Code::new("camembert.modeling_camembert", "Camembert");

const MPNET: Code = Code::new("mpnet.modeling_mpnet", "MPNet");

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let mut codes = [XLM_ROBERTA, CAMEMBERT, MPNET].into_iter();
    let code = codes.find(|code| task.class.starts_with(code.prefix));
    let code = code.unwrap_or(ROBERTA);
    let is_roberta = code.prefix == ROBERTA.prefix;
    let is_mpnet = code.prefix == MPNET.prefix;
    let config = &task.config;
    let shape = encoder::shape(config)?;
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

    // RoBERTa and MPNet make the model first, the others the head; a head that is tied makes the embedding of words, too.
    let (base, is_first) = match () {
        () if is_mpnet => ("mpnet", true),
        () => ("roberta", is_roberta),
    };
    let at = task.frame(code, if is_first { base } else { "lm_head" });
    at.made(&["classifier", "qa_outputs"]);
    let tracer = at.tracer().clone();
    let sizes = [shape.vocabulary, shape.width];
    let is_masked = task.class.ends_with("ForMaskedLM");
    let words = if is_masked && is_tied && !is_first {
        at.made(&["lm_head.dense", "lm_head.layer_norm"]);
        let weight = at.parameter("lm_head.decoder.weight", &sizes);
        Embedding::tied(at.path("roberta.embeddings.word_embeddings"), &weight)
    } else {
        at.embedding(&format!("{base}.embeddings.word_embeddings"), sizes)
    };
    let words = words.padding(if is_mpnet {
        Some(padding)
    } else {
        shape.padding
    });
    let model = |ids: &Tensor| {
        if is_mpnet {
            mpnet::model(&at, &shape, buckets, &words, ids)
        } else {
            model(&at, &shape, padding, &words, ids)
        }
    };
    if is_masked {
        let words = is_tied.then_some(&words.weight);
        let head = |x: &Tensor| masked_head(&at, &shape, words, x);
        return text::masked_token(task, tracer, seq_len, model, head, shape.vocabulary);
    }
    if !task.class.ends_with("ForSequenceClassification") {
        return text::of_tokens(task, tracer, seq_len, model, (labels, shape.width, p));
    }
    text::classes(task, tracer, seq_len, labels, |ids| {
        let sequence_output = model(ids);
        let logits =
            classification_head(&at, &shape, (p, labels.count), &sequence_output, |_, x| {
                (&x).tanh()
            });
        (logits, sequence_output)
    })
}

/// `RobertaModel` without a pooler.
fn model(at: &Frame, shape: &Shape, padding: u64, words: &Embedding, ids: &Tensor) -> Tensor {
    at.call("roberta", "Model", |at| {
        let embedding_output = at.call("embeddings", "Embeddings", |at| {
            embeddings(at, shape, Numbering::After(padding), words, ids)
        });
        encoder(at, shape, &embedding_output).and_drop(embedding_output)
    })
}

/// `RobertaLMHead`, whose decoder has the weight of the words where they are tied.
fn masked_head(at: &Frame, shape: &Shape, words: Option<&Tensor>, features: &Tensor) -> Tensor {
    let width = shape.width;
    at.call("lm_head", "LMHead", |at| {
        let mut x = at.linear("dense", [width, width], true, features);
        x = (&x).gelu("none");
        x = at.layer_norm("layer_norm", width, shape.eps, x);
        decoder(at, [width, shape.vocabulary], words, x)
    })
}
