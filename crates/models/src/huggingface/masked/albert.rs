//! ALBERT, whose layers share their weights: `modeling_albert.py`.

use super::bert::decoder;
use super::embeddings::{Numbering, embeddings, words};
use super::encoder;
use crate::huggingface::config::MOST_LAYERS;
use crate::huggingface::prelude::*;
use crate::huggingface::text;

const CODE: Code = Code::new("albert.modeling_albert", "Albert");

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = &task.config;
    let shape = encoder::shape(config)?;
    let groups = config.layers("num_hidden_groups", 1)?;
    let inner = config.layers_within("inner_group_num", 1, MOST_LAYERS / groups)?;
    let groups = [groups, inner];
    let seq_len = task.tokens_of("max_position_embeddings", shape.positions)?;
    let labels = Labels::of(config, 2)?;
    let at = task.frame(CODE, "albert");
    let tracer = at.tracer().clone();
    let has_pooler = task.class == "AlbertForSequenceClassification";
    let words = words(&at.below("albert"), &shape);
    let model = |ids: &Tensor| model(&at, &shape, groups, (&words, has_pooler), ids);
    let head = (
        labels,
        shape.width,
        config.number("classifier_dropout_prob", 0.1)?,
    );
    match task.class {
        "AlbertForSequenceClassification" => {
            text::classes_of_pooled(task, tracer, seq_len, model, head)
        }
        "AlbertForTokenClassification" | "AlbertForQuestionAnswering" => {
            text::of_tokens(task, tracer, seq_len, |ids| model(ids).0, head)
        }
        _ => {
            let is_tied = config.flag("tie_word_embeddings", true)?;
            let words = is_tied.then_some(&words.weight);
            let forward = |ids: &Tensor| model(ids).0;
            let head = |x: &Tensor| masked_head(&at, &shape, words, x);
            text::masked_token(task, tracer, seq_len, forward, head, shape.vocabulary)
        }
    }
}

/// `AlbertAttention`.
fn attention(at: &Frame, shape: &Shape, x: &Tensor) -> Tensor {
    let width = shape.width;
    let (mut output, states) = shape.self_attention(at, ["query", "key", "value"], x);
    output = at.linear("dense", [width, width], true, output);
    output = at.dropout("output_dropout", shape.dropout, output);
    output = at.layer_norm("LayerNorm", width, shape.eps, x.add(&output));
    output.and_drop(states)
}

/// `AlbertLayer`.
fn layer(at: &Frame, shape: &Shape, x: &Tensor) -> Tensor {
    let (outer, inner) = (shape.width, shape.intermediate);
    at.made(&["full_layer_layer_norm"]);
    let attention_output = at.call("attention", "Attention", |at| attention(at, shape, x));
    let mut ffn_output = at.linear("ffn", [outer, inner], true, &attention_output);
    ffn_output = at.activation("activation", &shape.activation, ffn_output);
    ffn_output = at.linear("ffn_output", [inner, outer], true, ffn_output);
    let sum = (&ffn_output).add(&attention_output);
    let hidden_states = at.layer_norm("full_layer_layer_norm", outer, shape.eps, sum);
    hidden_states.and_drop((attention_output, ffn_output))
}

/// `AlbertModel`, with its `AlbertTransformer` of so many groups of layers and layers of a group: the states of all tokens, and what stands
/// for the whole text.
fn model(
    at: &Frame,
    shape: &Shape,
    [groups, inner]: [u64; 2],
    (words, has_pooler): (&Embedding, bool),
    ids: &Tensor,
) -> (Tensor, Option<Tensor>) {
    at.call("albert", "Model", |at| {
        let embedding_output = at.call("embeddings", "Embeddings", |at| {
            embeddings(at, shape, Numbering::Plain, words, ids)
        });
        let sequence_output = at.call("encoder", "Transformer", |at| {
            let sizes = [shape.embedding_width, shape.width];
            let mut hidden_states = at.linear(
                "embedding_hidden_mapping_in",
                sizes,
                true,
                &embedding_output,
            );
            let group = |group: u64, x: &Tensor| {
                at.call(
                    &format!("albert_layer_groups.{group}"),
                    "LayerGroup",
                    |at| {
                        let layers = ("albert_layers", inner);
                        at.call_each(layers, "Layer", x, |at, x| layer(at, shape, x))
                    },
                )
            };
            // There may be more of them than layers.
            at.make(|| (0..groups).for_each(|index| drop(group(index, &hidden_states))));
            for index in 0..shape.layers {
                hidden_states = group(group_of(index, shape.layers, groups), &hidden_states);
            }
            hidden_states
        });
        let pooled_output = has_pooler.then(|| {
            let first = (&sequence_output).select(1, 0);
            let pooled = at.linear("pooler", [shape.width, shape.width], true, first);
            at.activation("pooler_activation", "tanh", pooled)
        });
        drop(embedding_output);
        (sequence_output, pooled_output)
    })
}

/// The group that is called for a layer.
fn group_of(layer: u64, layers: u64, groups: u64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "below the number of groups; as Python's int()"
    )]
    let index = (layer as f64 / (layers as f64 / groups as f64)) as u64;
    index.min(groups - 1)
}

/// `AlbertMLMHead`.
fn masked_head(at: &Frame, shape: &Shape, words: Option<&Tensor>, x: &Tensor) -> Tensor {
    let (wide, narrow) = (shape.width, shape.embedding_width);
    at.call("predictions", "MLMHead", |at| {
        at.made(&["LayerNorm"]);
        let mut hidden_states = at.linear("dense", [wide, narrow], true, x);
        hidden_states = at.activation("activation", &shape.activation, hidden_states);
        hidden_states = at.layer_norm("LayerNorm", narrow, shape.eps, hidden_states);
        decoder(at, [narrow, shape.vocabulary], words, hidden_states)
    })
}
