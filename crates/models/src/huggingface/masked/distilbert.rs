//! DistilBERT: `modeling_distilbert.py`.

use crate::huggingface::attention::self_attention;
use crate::huggingface::prelude::*;
use crate::huggingface::text;

/// Some of its classes have the family's name, some have not.
const CODE: Code = Code::new("distilbert.modeling_distilbert", "");

/// Of all its layer norms; the config has none.
const EPS: f64 = 1e-12;

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = &task.config;
    let shape = Shape::of(config)?;
    let seq_len = task.tokens_of("max_position_embeddings", shape.positions)?;
    let labels = Labels::of(config, 2)?;
    let at = task.frame(CODE, "distilbert");
    let tracer = at.tracer().clone();
    let linear =
        |name: &str, outputs: u64| Linear::new(&tracer, name, [shape.width, outputs], true);
    let dropout = |p: f64| Dropout::new("dropout".into(), p);
    let words = at.embedding(
        "distilbert.embeddings.word_embeddings",
        [shape.vocabulary, shape.width],
    );
    let words = words.padding(shape.padding);
    let model = |ids: &Tensor| model(&at, &shape, &words, ids);
    match task.class {
        "DistilBertForSequenceClassification" => {
            let pre_classifier = linear("pre_classifier", shape.width);
            let classifier = linear("classifier", labels.count);
            let dropout = dropout(config.number("seq_classif_dropout", 0.2)?);
            text::classes(task, tracer, seq_len, labels, |ids| {
                let hidden_state = model(ids);
                let mut pooled_output = (&hidden_state).select(1, 0);
                pooled_output = pre_classifier.forward(&pooled_output);
                pooled_output = (&pooled_output).relu();
                pooled_output = dropout.forward(&pooled_output);
                let logits = classifier.forward(&pooled_output);
                (logits, (hidden_state, pooled_output))
            })
        }
        "DistilBertForTokenClassification" => {
            let head = (labels, shape.width, shape.dropout);
            text::of_tokens(task, tracer, seq_len, model, head)
        }
        "DistilBertForQuestionAnswering" => {
            labels.must_be_two(config)?;
            let qa_outputs = linear("qa_outputs", 2);
            let dropout = dropout(config.number("qa_dropout", 0.1)?);
            text::answer(task, tracer, seq_len, model, (Some(&dropout), &qa_outputs))
        }
        _ => {
            let is_tied = config.flag("tie_word_embeddings", true)?;
            let head = |x: &Tensor| {
                let mut logits = at.linear("vocab_transform", [shape.width; 2], true, x);
                logits = at.activation("activation", &shape.activation, logits);
                logits = at.layer_norm("vocab_layer_norm", shape.width, EPS, logits);
                if !is_tied {
                    let sizes = [shape.width, shape.vocabulary];
                    return at.linear("vocab_projector", sizes, true, logits);
                }
                let bias = at.parameter("vocab_projector.bias", &[shape.vocabulary]);
                let projector = Linear::tied("vocab_projector".into(), &words.weight, Some(bias));
                projector.forward(logits)
            };
            text::masked_token(task, tracer, seq_len, model, head, shape.vocabulary)
        }
    }
}

/// `DistilBertSelfAttention`.
fn attention(at: &Frame, shape: &Shape, x: &Tensor) -> Tensor {
    let sizes = [shape.width, shape.width];
    let linears = (["q_lin", "k_lin", "v_lin"], sizes, true);
    let (mut output, states) =
        self_attention(at, linears, shape.head_dim, shape.attention_dropout, x);
    output = at.linear("out_lin", sizes, true, output);
    output.and_drop(states)
}

/// `FFN`.
fn feed_forward(at: &Frame, shape: &Shape, input: &Tensor) -> Tensor {
    let (outer, inner) = (shape.width, shape.intermediate);
    let mut x = at.linear("lin1", [outer, inner], true, input);
    x = at.activation("activation", &shape.activation, x);
    x = at.linear("lin2", [inner, outer], true, x);
    at.dropout("dropout", shape.dropout, x)
}

/// `TransformerBlock`.
fn block(at: &Frame, shape: &Shape, x: &Tensor) -> Tensor {
    let norm = |name, x: Tensor| at.layer_norm(name, shape.width, EPS, x);
    let mut attention_output = at.call("attention", "DistilBertSelfAttention", |at| {
        attention(at, shape, x)
    });
    attention_output = norm("sa_layer_norm", (&attention_output).add(x));
    let mut output = at.call("ffn", "FFN", |at| {
        feed_forward(at, shape, &attention_output)
    });
    output = norm("output_layer_norm", (&output).add(&attention_output));
    output.and_drop(attention_output)
}

/// `DistilBertModel`, with its `Embeddings` and `Transformer`.
fn model(at: &Frame, shape: &Shape, words: &Embedding, ids: &Tensor) -> Tensor {
    at.call("distilbert", "DistilBertModel", |at| {
        let embeddings = at.call("embeddings", "Embeddings", |at| {
            let inputs_embeds = words.forward(ids);
            let seq_len = ids.length(1).cast_signed();
            let position_ids = at.buffer("position_ids", &[1, shape.positions], DType::Int64);
            let position_ids = (&position_ids).slice(1, 0, seq_len);
            let positions = at.embedding("position_embeddings", [shape.positions, shape.width]);
            let position_embeddings = positions.forward(&position_ids);
            let mut embeddings = (&inputs_embeds).add(&position_embeddings);
            embeddings = at.layer_norm("LayerNorm", shape.width, EPS, embeddings);
            embeddings = at.dropout("dropout", shape.dropout, embeddings);
            embeddings.and_drop((inputs_embeds, position_ids, position_embeddings))
        });
        at.call("transformer", "Transformer", |at| {
            let layers = ("layer", shape.layers);
            at.call_each(layers, "TransformerBlock", &embeddings, |at, x| {
                block(at, shape, x)
            })
        })
    })
}
