//! `MPNet`: `modeling_mpnet.py`, whose heads are RoBERTa's.

use super::embeddings::position_ids_after;
use super::encoder::{Shape, new_intermediate, new_output};
use crate::huggingface::attention::distance_buckets;
use crate::huggingface::prelude::*;

/// The token that fills the ends of texts, whatever a config says.
pub(super) const PADDING: u64 = 1;

/// `num_buckets` and `max_distance` of `compute_position_bias`.
const BUCKETS: i64 = 32;
const FARTHEST: f64 = 128.0;

/// `MPNetModel` without a pooler, and the weight of its words.
pub(super) fn new_model(tracer: &Tracer, shape: &Shape, rows: u64) -> (FnModule, Tensor) {
    let place = shape.code.place("mpnet", "Model");
    let (embeddings, words) = new_embeddings(tracer, place.path("embeddings"), shape);
    let encoder = shape.code.place(place.path("encoder"), "Encoder");
    let layers: Vec<_> = (0..shape.layers)
        .map(|layer| new_layer(tracer, encoder.path(&format!("layer.{layer}")), shape))
        .collect();
    let bias = encoder.path("relative_attention_bias");
    let bias = Embedding::new(tracer, bias, [rows, shape.heads]);
    let model = FnModule::new(place, move |ids| {
        let embedding_output = embeddings.forward(ids);
        let output = ids.tracer().in_module(&encoder, || {
            let position_bias = compute_position_bias(&embedding_output, &bias);
            let mut hidden_states = embedding_output.clone();
            for layer in &layers {
                hidden_states = layer(&hidden_states, &position_bias);
            }
            hidden_states.and_drop(position_bias)
        });
        output.and_drop(embedding_output)
    });
    (model, words)
}

/// `MPNetEmbeddings`.
fn new_embeddings(tracer: &Tracer, path: String, shape: &Shape) -> (FnModule, Tensor) {
    let place = shape.code.place(path, "Embeddings");
    let table = |name, rows| {
        let table = Embedding::new(tracer, place.path(name), [rows, shape.width]);
        table.padding(Some(PADDING))
    };
    let words = table("word_embeddings", shape.vocabulary);
    let positions = table("position_embeddings", shape.positions);
    let layer_norm = LayerNorm::new(tracer, place.path("LayerNorm"), shape.width, shape.eps);
    let dropout = Dropout::new(place.path("dropout"), shape.dropout);
    let ids = place.path("position_ids");
    tracer.buffer(&ids, &[1, shape.positions], DType::Int64);
    let weight = words.weight.clone();
    let module = FnModule::new(place, move |ids| {
        let position_ids = position_ids_after(ids, PADDING, false);
        let inputs_embeds = words.forward(ids);
        let position_embeddings = positions.forward(&position_ids);
        let mut embeddings = (&inputs_embeds).add(&position_embeddings);
        embeddings = chain(&[&layer_norm, &dropout], embeddings);
        embeddings.and_drop((position_ids, inputs_embeds, position_embeddings))
    });
    (module, weight)
}

/// `MPNetSelfAttention`.
fn new_self_attention(
    tracer: &Tracer,
    path: String,
    shape: &Shape,
) -> impl Fn(&Tensor, &Tensor) -> Tensor + use<> {
    let place = shape.code.place(path, "SelfAttention");
    let sizes = [shape.width, shape.width];
    let [q, k, v, o] =
        ["q", "k", "v", "o"].map(|name| Linear::new(tracer, place.path(name), sizes, true));
    let dropout = Dropout::new(place.path("dropout"), shape.attention_dropout);
    let (width, head_dim) = (shape.width, shape.head_dim);
    move |x: &Tensor, position_bias: &Tensor| {
        x.tracer().in_module(&place, || {
            let (batch, seq_len): (Size, Size) = (x.size(0).into(), x.size(1).into());
            let heads = [batch, seq_len, Size::REST, head_dim.into()];
            let [q, k, v] = [&q, &k, &v].map(|of| of.forward(x).view(&heads).transpose(1, 2));
            let mut attention_scores = (&q).matmul((&k).transpose(-1, -2));
            attention_scores = (&attention_scores).div_number((head_dim as f64).sqrt());
            attention_scores.add_in_place(position_bias);
            let mut attention_probs = (&attention_scores).softmax(-1, None);
            attention_probs = dropout.forward(&attention_probs);
            let mut context = (&attention_probs).matmul(&v);
            context = (&context).permute(&[0, 2, 1, 3]).contiguous();
            context = (&context).view(&[batch, seq_len, width.into()]);
            let o = o.forward(&context);
            o.and_drop((q, k, v, attention_scores, attention_probs, context))
        })
    }
}

/// `MPNetLayer`, with its `MPNetAttention`.
fn new_layer(
    tracer: &Tracer,
    path: String,
    shape: &Shape,
) -> impl Fn(&Tensor, &Tensor) -> Tensor + use<> {
    let place = shape.code.place(path, "Layer");
    let attention = shape.code.place(place.path("attention"), "Attention");
    let norm = attention.path("LayerNorm");
    let attn = new_self_attention(tracer, attention.path("attn"), shape);
    let layer_norm = LayerNorm::new(tracer, norm, shape.width, shape.eps);
    let dropout = Dropout::new(attention.path("dropout"), shape.dropout);
    let intermediate = new_intermediate(tracer, place.path("intermediate"), shape);
    let output = shape.code.place(place.path("output"), "Output");
    let output = new_output(tracer, output, shape.intermediate, shape);
    move |x: &Tensor, position_bias: &Tensor| {
        let tracer = x.tracer();
        tracer.in_module(&place, || {
            let attention_output = tracer.in_module(&attention, || {
                let self_outputs = attn(x, position_bias);
                let output = layer_norm.forward(dropout.forward(&self_outputs).add(x));
                output.and_drop(self_outputs)
            });
            let intermediate_output = intermediate.forward(&attention_output);
            let layer_output = output(&intermediate_output, &attention_output);
            layer_output.and_drop((attention_output, intermediate_output))
        })
    }
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
