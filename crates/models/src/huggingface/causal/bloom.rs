//! BLOOM: `modeling_bloom.py`.

use super::alibi::{Kind, alibi};
use crate::huggingface::attention::causal_biases;
use crate::huggingface::prelude::*;
use crate::huggingface::text;

const CODE: Code = Code::new("bloom.modeling_bloom", "Bloom");

/// What a config says of such a model.
struct Decoder {
    vocabulary: u64,
    width: u64,
    layers: u64,
    heads: u64,
    head_dim: u64,
    eps: f64,
    dropout: f64,
    attention_dropout: f64,
    /// Whether what goes past a layer is normalized.
    normalizes_residual: bool,
}

impl Decoder {
    fn read(config: &Config<'_>) -> Result<Decoder, RequestError> {
        if config.flag("slow_but_exact", false)? && config.size("pretraining_tp", 1)? > 1 {
            return Err(config.not_built("slow_but_exact"));
        }
        let width = config.size("hidden_size", 64)?;
        let heads = config.size("n_head", 8)?;
        Ok(Decoder {
            vocabulary: config.size("vocab_size", 250_880)?,
            width,
            layers: config.layers("n_layer", 2)?,
            heads,
            head_dim: config.quotient([("hidden_size", width), ("n_head", heads)])?,
            eps: config.number("layer_norm_epsilon", 1e-5)?,
            dropout: config.number("hidden_dropout", 0.0)?,
            attention_dropout: config.number("attention_dropout", 0.0)?,
            normalizes_residual: config.flag("apply_residual_connection_post_layernorm", false)?,
        })
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Decoder::read(&task.config)?;
    let seq_len = task.seq_len()?;
    let tracer = task.tracer(CODE.module);
    let (model, words) = new_model(&tracer, &config);
    let forward = |ids: &Tensor| model.forward(ids);
    if task.class == "BloomForSequenceClassification" {
        let labels = Labels::of(&task.config, 2)?;
        let padding = task.config.token("pad_token_id", None)?;
        let score = Linear::new(&tracer, "score", [config.width, labels.count], false);
        let head = (&score, labels);
        return text::classes_of_last_token((task, seq_len, padding), tracer, forward, head);
    }
    let lm_head = text::lm_head(task, &words, true)?;
    let head = (&lm_head, config.vocabulary);
    text::next_token(task, tracer, seq_len, forward, head)
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

/// `BloomAttention`.
fn new_attention(
    tracer: &Tracer,
    path: String,
    config: &Decoder,
) -> impl Fn(&Tensor, &Tensor, [&Tensor; 2]) -> [Tensor; 2] + use<> {
    let place = CODE.place(path, "Attention");
    let width = config.width;
    let linear = |name, outputs| Linear::new(tracer, place.path(name), [width, outputs], true);
    let dropout = place.path("attention_dropout");
    let query_key_value = linear("query_key_value", width.saturating_mul(3));
    let dense = linear("dense", width);
    let weights_dropout = Dropout::new(dropout, config.attention_dropout);
    let heads = config.heads;
    let head_dim = config.head_dim;
    let dropout = config.dropout;

    // The states, and the weights that the attention gave.
    move |x: &Tensor, residual: &Tensor, [alibi, mask]: [&Tensor; 2]| {
        x.tracer().in_module(&place, || {
            let (batch, length): (Size, Size) = (x.size(0).into(), x.size(1).into());
            let dim: Size = head_dim.into();
            let rows = x.size(0).checked_mul(Extent::fixed(heads));
            let rows: Size = rows.unwrap_or(Extent::ONE).into();
            let fused_qkv = query_key_value.forward(x);
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
            probs = weights_dropout.forward(&probs);
            let reshaped = (&probs).view(&[rows, length, Size::REST]);
            let mut context = (&reshaped).bmm(&value);
            context = merge_heads(&context, [batch, length], heads, head_dim);
            let mut output = dense.forward(&context);
            output = dropout_add(&output, residual, dropout);
            drop((fused_qkv, query, key, value, scores, weights));
            drop((reshaped, context));
            [output, probs]
        })
    }
}

/// `_merge_heads`.
fn merge_heads(x: &Tensor, [batch, length]: [Size; 2], heads: u64, head_dim: u64) -> Tensor {
    let width = heads.saturating_mul(head_dim).into();
    let split = x.view(&[batch, heads.into(), length, head_dim.into()]);
    let permuted = split.permute(&[0, 2, 1, 3]);
    permuted.reshape(&[batch, length, width])
}

/// `BloomMLP`.
fn new_mlp(
    tracer: &Tracer,
    path: String,
    config: &Decoder,
) -> impl Fn(&Tensor, &Tensor) -> Tensor + use<> {
    let at = CODE.place(path, "MLP");
    let (outer, inner) = (config.width, config.width.saturating_mul(4));
    let linear = |name, sizes| Linear::new(tracer, at.path(name), sizes, true);
    let dense_h_to_4h = linear("dense_h_to_4h", [outer, inner]);
    let gelu_impl = FnModule::new(CODE.place(at.path("gelu_impl"), "Gelu"), |x| {
        let name = "transformers.models.bloom.modeling_bloom.GeLUFunction";
        x.tracer().function(name, x, gelu, gelu_back)
    });
    let dense_4h_to_h = linear("dense_4h_to_h", [inner, outer]);
    let dropout = config.dropout;
    let place = at;
    move |x: &Tensor, residual: &Tensor| {
        x.tracer().in_module(&place, || {
            let wide = dense_h_to_4h.forward(x);
            let hidden_states = gelu_impl.forward(&wide).and_drop(wide);
            let intermediate_output = dense_4h_to_h.forward(&hidden_states);
            let output = dropout_add(&intermediate_output, residual, dropout);
            output.and_drop((hidden_states, intermediate_output))
        })
    }
}

/// `BloomBlock`.
fn new_block(
    tracer: &Tracer,
    path: String,
    config: &Decoder,
) -> impl Fn(&Tensor, [&Tensor; 2]) -> [Tensor; 2] + use<> {
    let place = CODE.place(path, "Block");
    let norm = |name| LayerNorm::new(tracer, place.path(name), config.width, config.eps);
    let input_layernorm = norm("input_layernorm");
    let self_attention = new_attention(tracer, place.path("self_attention"), config);
    let post_attention_layernorm = norm("post_attention_layernorm");
    let mlp = new_mlp(tracer, place.path("mlp"), config);
    let normalizes_residual = config.normalizes_residual;

    // The states, and the weights of the attention.
    move |x: &Tensor, biases: [&Tensor; 2]| {
        x.tracer().in_module(&place, || {
            let past = |normed: &Tensor, states: &Tensor| {
                let past = if normalizes_residual { normed } else { states };
                past.clone()
            };
            let mut layernorm_output = input_layernorm.forward(x);
            let mut residual = past(&layernorm_output, x);
            let attention = &self_attention;
            let [attention_output, weights] = attention(&layernorm_output, &residual, biases);
            layernorm_output = post_attention_layernorm.forward(&attention_output);
            residual = past(&layernorm_output, &attention_output);
            let output = mlp(&layernorm_output, &residual);
            drop((layernorm_output, residual, attention_output));
            [output, weights]
        })
    }
}

/// `BloomModel`, and the weight of its words.
fn new_model(tracer: &Tracer, config: &Decoder) -> (FnModule, Tensor) {
    let place = CODE.place("transformer", "Model");
    let words = [config.vocabulary, config.width];
    let norm = |name| LayerNorm::new(tracer, place.path(name), config.width, config.eps);
    let block = |block| new_block(tracer, place.path(&format!("h.{block}")), config);
    let heads = config.heads;
    let word_embeddings = Embedding::new(tracer, place.path("word_embeddings"), words);
    let word_embeddings_layernorm = norm("word_embeddings_layernorm");
    let h: Vec<_> = (0..config.layers).map(block).collect();
    let ln_f = norm("ln_f");

    let weight = word_embeddings.weight.clone();
    let model = FnModule::new(place, move |ids| {
        let tracer = ids.tracer();
        let inputs_embeds = word_embeddings.forward(ids);
        let mut hidden_states = word_embeddings_layernorm.forward(&inputs_embeds);
        let sizes = [ids.size(0).into(), ids.size(1).into()];
        let attention_mask = tracer.ones(&sizes, DType::Float32);
        let alibi = alibi(&attention_mask, heads, &hidden_states, Kind::Bloom);
        let causal_mask = causal_biases(&attention_mask, inputs_embeds.dtype().dtype);
        let mut outputs = None;
        for block in &h {
            let [states, weights] = block(&hidden_states, [&alibi, &causal_mask]);
            // A tuple lets go of its last item first.
            outputs = Some((weights, states.clone()));
            hidden_states = states;
        }
        hidden_states = ln_f.forward(&hidden_states);
        drop((attention_mask, inputs_embeds));
        hidden_states.and_drop((alibi, causal_mask, outputs))
    });
    (model, weight)
}
