//! `MPNet`: `modeling_mpnet.py`, whose heads are RoBERTa's.

use super::embeddings::position_ids_after;
use super::encoder::feed_forward;
use crate::huggingface::attention::distance_buckets;
use crate::huggingface::prelude::*;

/// The token that fills the ends of texts, whatever a config says.
pub(super) const PADDING: u64 = 1;

/// `num_buckets` and `max_distance` of `compute_position_bias`.
const BUCKETS: i64 = 32;
const FARTHEST: f64 = 128.0;

/// `MPNetModel` without a pooler, whose bias of positions has so many rows.
pub(super) fn model(
    at: &Frame,
    shape: &Shape,
    rows: u64,
    words: &Embedding,
    ids: &Tensor,
) -> Tensor {
    at.call("mpnet", "Model", |at| {
        let embedding_output = at.call("embeddings", "Embeddings", |at| {
            embeddings(at, shape, words, ids)
        });
        let output = at.call("encoder", "Encoder", |at| {
            at.made(&["layer"]);
            let table = at.embedding("relative_attention_bias", [rows, shape.heads]);
            let position_bias = compute_position_bias(&embedding_output, &table);
            let states = at.call_each(
                ("layer", shape.layers),
                "Layer",
                &embedding_output,
                |at, x| layer(at, shape, x, &position_bias),
            );
            states.and_drop(position_bias)
        });
        output.and_drop(embedding_output)
    })
}

/// `MPNetEmbeddings`.
fn embeddings(at: &Frame, shape: &Shape, words: &Embedding, ids: &Tensor) -> Tensor {
    let position_ids = position_ids_after(ids, PADDING, false);
    let inputs_embeds = words.forward(ids);
    let positions = at.embedding("position_embeddings", [shape.positions, shape.width]);
    let position_embeddings = positions.padding(Some(PADDING)).forward(&position_ids);
    let mut embeddings = (&inputs_embeds).add(&position_embeddings);
    embeddings = at.layer_norm("LayerNorm", shape.width, shape.eps, embeddings);
    embeddings = at.dropout("dropout", shape.dropout, embeddings);
    at.buffer("position_ids", &[1, shape.positions], DType::Int64);
    embeddings.and_drop((position_ids, inputs_embeds, position_embeddings))
}

/// `MPNetSelfAttention`.
fn self_attention(at: &Frame, shape: &Shape, x: &Tensor, position_bias: &Tensor) -> Tensor {
    let (width, head_dim) = (shape.width, shape.head_dim);
    let (batch, seq_len): (Size, Size) = (x.size(0).into(), x.size(1).into());
    let heads = [batch, seq_len, Size::REST, head_dim.into()];
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        at.linear(name, [width, width], true, x)
            .view(&heads)
            .transpose(1, 2)
    });
    let mut attention_scores = (&q).matmul((&k).transpose(-1, -2));
    attention_scores = (&attention_scores).div_number((head_dim as f64).sqrt());
    attention_scores.add_in_place(position_bias);
    let mut attention_probs = (&attention_scores).softmax(-1, None);
    attention_probs = at.dropout("dropout", shape.attention_dropout, attention_probs);
    let mut context = (&attention_probs).matmul(&v);
    context = (&context).permute(&[0, 2, 1, 3]).contiguous();
    context = (&context).view(&[batch, seq_len, width.into()]);
    let output = at.linear("o", [width, width], true, &context);
    output.and_drop((q, k, v, attention_scores, attention_probs, context))
}

/// `MPNetLayer`, with its `MPNetAttention`.
fn layer(at: &Frame, shape: &Shape, x: &Tensor, position_bias: &Tensor) -> Tensor {
    let attention_output = at.call("attention", "Attention", |at| {
        let self_outputs = at.call("attn", "SelfAttention", |at| {
            self_attention(at, shape, x, position_bias)
        });
        let sum = at.dropout("dropout", shape.dropout, &self_outputs).add(x);
        let output = at.layer_norm("LayerNorm", shape.width, shape.eps, sum);
        output.and_drop(self_outputs)
    });
    let [layer_output, intermediate_output] = feed_forward(at, shape, &attention_output);
    layer_output.and_drop((attention_output, intermediate_output))
}

/// `MPNetEncoder.compute_position_bias`.
fn compute_position_bias(x: &Tensor, table: &Embedding) -> Tensor {
    let (tracer, tokens) = (x.tracer(), x.length(1));
    let context_position = tracer.arange(tokens).unsqueeze(1);
    let memory_position = tracer.arange(tokens).unsqueeze(0);
    let relative_position = (&memory_position).sub(&context_position);
    let rp_bucket = relative_position_bucket(&relative_position);
    let mut values = table.forward(&rp_bucket);
    values = (&values).permute(&[2, 0, 1]).unsqueeze(0);
    let sizes = [x.size(0).into(), Size::REST, tokens.into(), tokens.into()];
    values = (&values).expand(&sizes).contiguous();
    values.and_drop((
        context_position,
        memory_position,
        relative_position,
        rp_bucket,
    ))
}

/// `MPNetEncoder.relative_position_bucket`.
fn relative_position_bucket(relative_position: &Tensor) -> Tensor {
    let buckets = BUCKETS / 2;
    let mut n = relative_position.neg();
    let is_after = (&n).less_than_number(0).to(DType::Int64);
    let ret = is_after.mul_number(buckets).add_number(0);
    n = (&n).abs();
    let (near_or_far, named) = distance_buckets(&n, buckets, FARTHEST);
    ret.add_in_place(near_or_far);
    ret.and_drop((n, named))
}
