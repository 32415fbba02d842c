//! BLOOM: `modeling_bloom.py`.

use super::alibi::{Kind, alibi};
use crate::huggingface::attention::causal_biases;
use crate::huggingface::generation::GenerationTraits;
use crate::huggingface::prelude::*;
use crate::huggingface::text;

const CODE: Code = Code::new("bloom.modeling_bloom", "Bloom");

/// What a config says of such a model.
struct Decoder {
    shape: Shape,
    /// Whether what goes past a layer is normalized.
    normalizes_residual: bool,
}

impl Decoder {
    fn read(config: &Config<'_>) -> Result<Decoder, RequestError> {
        if config.flag("slow_but_exact", false)? && config.size("pretraining_tp", 1)? > 1 {
            return Err(config.not_built("slow_but_exact"));
        }
        let shape = Shape::of(config)?;
        Ok(Decoder {
            shape,
            normalizes_residual: config.flag("apply_residual_connection_post_layernorm", false)?,
        })
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Decoder::read(&task.config)?;
    let seq_len = task.seq_len()?;
    let at = task.frame(CODE, "transformer");
    let tracer = at.tracer().clone();
    let sizes = [config.shape.vocabulary, config.shape.width];
    let words = at.embedding("transformer.word_embeddings", sizes);
    let forward = |ids: &Tensor| model(&at, &config, &words, ids);
    if task.class == "BloomForSequenceClassification" {
        let of_tokens = (seq_len, config.shape.width, None);
        return text::classes_of_decoder(task, tracer, of_tokens, forward);
    }
    let traits = GenerationTraits::plain(config.shape.layers);
    text::tied_language_model(task, (&words, true), (seq_len, traits), |ids, _| {
        forward(ids)
    })
}

/// `dropout_add`.
fn dropout_add(x: &Tensor, residual: &Tensor, p: f64) -> Tensor {
    let mut out = functional::dropout(x, p);
    out = residual.add(&out);
    out
}

/// The factor of the approximation of GELU.
const ROOT: f64 = 0.797_884_56;

/// `bloom_gelu_forward`.
fn gelu(x: &Tensor) -> Tensor {
    let half = x.mul_number(0.5);
    let scaled = x.mul_number(ROOT);
    let square = x.mul_number(0.044_715).mul(x).add_number(1);
    half.mul(scaled.mul(square).tanh().add_number(1.0))
}

/// `bloom_gelu_back`.
fn gelu_back(x: &Tensor, gradient: &Tensor) -> Tensor {
    let tanh_out = {
        let scaled = x.mul_number(ROOT);
        let square = x.mul_number(0.044_715).mul(x).add_number(1);
        scaled.mul(square).tanh()
    };
    let ff = {
        let half = x.mul_number(0.5);
        let rest = (&tanh_out).mul(&tanh_out).subtracted_from(1);
        let slope = x.mul_number(0.107_032_224_3).mul(x).add_number(ROOT);
        let first = half.mul(rest.mul(slope));
        first.add((&tanh_out).add_number(1).mul_number(0.5))
    };
    (&ff).mul(gradient).and_drop((tanh_out, ff))
}

/// `BloomAttention`: the states, and the weights that the attention gave.
fn attention(
    at: &Frame,
    config: &Decoder,
    [x, residual]: [&Tensor; 2],
    [alibi, mask]: [&Tensor; 2],
) -> [Tensor; 2] {
    let (width, heads, head_dim) = (
        config.shape.width,
        config.shape.heads,
        config.shape.head_dim,
    );
    let (batch, length): (Size, Size) = (x.size(0).into(), x.size(1).into());
    let dim: Size = head_dim.into();
    let rows = x.size(0).checked_mul(Extent::fixed(heads));
    let rows: Size = rows.unwrap_or(Extent::ONE).into();
    let fused_qkv = at.linear("query_key_value", [width, width.saturating_mul(3)], true, x);
    let [mut query, mut key, mut value] = {
        let fused = (&fused_qkv).view(&[batch, length, heads.into(), 3.into(), dim]);
        [0, 1, 2].map(|index| (&fused).select(3, index).transpose(1, 2))
    };
    let flat = [rows, Size::REST, dim];
    query = (&query).reshape(&flat);
    key = (&key).reshape(&flat).transpose(-1, -2);
    value = (&value).reshape(&flat);
    let scale = 1.0 / (head_dim as f64).sqrt();
    let scores = alibi.baddbmm(&query, &key, [1.0, scale]);
    let mut weights = (&scores).view(&[batch, heads.into(), length, Size::REST]);
    weights = (&weights).add(mask);
    let mut probs = {
        let softmax = (&weights).softmax(-1, Some(DType::Float32));
        softmax.to_dtype_of(query.dtype())
    };
    probs = at.dropout("attention_dropout", config.shape.attention_dropout, probs);
    let reshaped = (&probs).view(&[rows, length, Size::REST]);
    let mut context = (&reshaped).bmm(&value);
    context = merge_heads(&context, [batch, length], heads, head_dim);
    let mut output = at.linear("dense", [width, width], true, &context);
    output = dropout_add(&output, residual, config.shape.dropout);
    drop((fused_qkv, query, key, value, scores, weights));
    drop((reshaped, context));
    [output, probs]
}

/// `_merge_heads`.
fn merge_heads(x: &Tensor, [batch, length]: [Size; 2], heads: u64, head_dim: u64) -> Tensor {
    let width = heads.saturating_mul(head_dim).into();
    let split = x.view(&[batch, heads.into(), length, head_dim.into()]);
    let permuted = split.permute(&[0, 2, 1, 3]);
    permuted.reshape(&[batch, length, width])
}

/// `BloomMLP`.
fn mlp(at: &Frame, config: &Decoder, x: &Tensor, residual: &Tensor) -> Tensor {
    let (outer, inner) = (config.shape.width, config.shape.width.saturating_mul(4));
    let wide = at.linear("dense_h_to_4h", [outer, inner], true, x);
    let hidden_states = at.call("gelu_impl", "Gelu", |at| {
        let name = "transformers.models.bloom.modeling_bloom.GeLUFunction";
        at.tracer().function(name, &wide, gelu, gelu_back)
    });
    drop(wide);
    let intermediate_output = at.linear("dense_4h_to_h", [inner, outer], true, &hidden_states);
    let output = dropout_add(&intermediate_output, residual, config.shape.dropout);
    output.and_drop((hidden_states, intermediate_output))
}

/// `BloomBlock`: the states, and the weights of the attention.
fn block(at: &Frame, config: &Decoder, x: &Tensor, biases: [&Tensor; 2]) -> [Tensor; 2] {
    let norm = |name, x: &Tensor| at.layer_norm(name, config.shape.width, config.shape.eps, x);
    let past = |normed: &Tensor, states: &Tensor| {
        let past = if config.normalizes_residual {
            normed
        } else {
            states
        };
        past.clone()
    };
    let mut layernorm_output = norm("input_layernorm", x);
    let mut residual = past(&layernorm_output, x);
    let [attention_output, weights] = at.call("self_attention", "Attention", |at| {
        attention(at, config, [&layernorm_output, &residual], biases)
    });
    layernorm_output = norm("post_attention_layernorm", &attention_output);
    residual = past(&layernorm_output, &attention_output);
    let output = at.call("mlp", "MLP", |at| {
        mlp(at, config, &layernorm_output, &residual)
    });
    drop((layernorm_output, residual, attention_output));
    [output, weights]
}

/// `BloomModel`.
fn model(at: &Frame, config: &Decoder, words: &Embedding, ids: &Tensor) -> Tensor {
    at.call("transformer", "Model", |at| {
        let norm = |name, x: &Tensor| at.layer_norm(name, config.shape.width, config.shape.eps, x);
        let inputs_embeds = words.forward(ids);
        let mut hidden_states = norm("word_embeddings_layernorm", &inputs_embeds);
        let sizes = [ids.size(0).into(), ids.size(1).into()];
        let attention_mask = at.tracer().ones(&sizes, DType::Float32);
        let alibi = alibi(
            &attention_mask,
            config.shape.heads,
            &hidden_states,
            Kind::Bloom,
        );
        let causal_mask = causal_biases(&attention_mask, inputs_embeds.dtype().dtype);
        let mut outputs = None;
        for index in 0..config.shape.layers {
            let [states, weights] = at.call(&format!("h.{index}"), "Block", |at| {
                block(at, config, &hidden_states, [&alibi, &causal_mask])
            });
            // A tuple lets go of its last item first.
            outputs = Some((weights, states.clone()));
            hidden_states = states;
        }
        hidden_states = norm("ln_f", &hidden_states);
        drop((attention_mask, inputs_embeds));
        hidden_states.and_drop((alibi, causal_mask, outputs))
    })
}
