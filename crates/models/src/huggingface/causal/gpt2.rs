//! GPT-2: `modeling_gpt2.py`.

use crate::huggingface::attention::{joined, sdpa};
use crate::huggingface::generation::{GenerationTraits, Past, masked, positions};
use crate::huggingface::prelude::*;
use crate::huggingface::text;
use crate::tracing::Adapter;
use crate::tracing::functional::Attention as Settings;

const CODE: Code = Code::new("gpt2.modeling_gpt2", "GPT2");

/// What a config says of such a model.
struct Decoder {
    shape: Shape,
    embedding_dropout: f64,
    scales_attention: bool,
    scales_by_layer: bool,
}

impl Decoder {
    fn read(config: &Config<'_>) -> Result<Decoder, RequestError> {
        if config.flag("add_cross_attention", false)? {
            return Err(config.not_built("add_cross_attention"));
        }
        let shape = Shape::of(config)?;
        Ok(Decoder {
            shape,
            embedding_dropout: config.number("embd_pdrop", 0.1)?,
            scales_attention: config.flag("scale_attn_weights", true)?,
            scales_by_layer: config.flag("scale_attn_by_inverse_layer_idx", false)?,
        })
    }

    /// What attention multiplies its scores by in a layer.
    fn scale(&self, layer: u64) -> f64 {
        let mut scale = 1.0;
        if self.scales_attention {
            scale = (self.shape.head_dim as f64).powf(-0.5);
        }
        if self.scales_by_layer {
            scale /= (layer + 1) as f64;
        }
        scale
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Decoder::read(&task.config)?;
    let positions = task.config.spelled("n_positions");
    let seq_len = task.tokens_of(positions, config.shape.positions)?;
    let at = task.frame(CODE, "transformer");
    let tracer = at.tracer().clone();
    let words = at.embedding(
        "transformer.wte",
        [config.shape.vocabulary, config.shape.width],
    );
    let model = |ids: &Tensor, past: Past<'_>| model(&at, &config, &words, ids, past);
    let forward = |ids: &Tensor| model(ids, None);
    match task.class {
        "GPT2ForSequenceClassification" => {
            let of_tokens = (seq_len, config.shape.width, None);
            text::classes_of_decoder(task, tracer, of_tokens, forward)
        }
        "GPT2ForTokenClassification" => {
            let labels = Labels::of(&task.config, 2)?;
            let p = task.config.number("hidden_dropout", 0.1)?;
            let p = task.config.number("classifier_dropout", p)?;
            let head = (labels, config.shape.width, p);
            text::of_tokens(task, tracer, seq_len, forward, head)
        }
        "GPT2ForQuestionAnswering" => {
            let qa_outputs = Linear::new(&tracer, "qa_outputs", [config.shape.width, 2], true);
            text::answer(task, tracer, seq_len, forward, (None, &qa_outputs))
        }
        _ => {
            let traits = GenerationTraits::plain(config.shape.layers);
            text::tied_language_model(task, (&words, true), (seq_len, traits), model)
        }
    }
}

/// `Conv1D`: a linear layer whose weight is transposed.
fn conv1d(at: &Frame, name: &str, [inputs, outputs]: [u64; 2], x: &Tensor) -> Tensor {
    let (tracer, path) = (at.tracer(), at.path(name));
    let own = Adapter::path_of_layer(tracer, &path);
    let weight = tracer.parameter(&format!("{own}.weight"), &[inputs, outputs]);
    let bias = tracer.parameter(&format!("{own}.bias"), &[outputs]);
    let adapter = Adapter::of_layer(tracer, &path, [inputs, outputs]);
    let place = ModulePath::new(own, "transformers.pytorch_utils.Conv1D");
    Adapter::forward(adapter.as_deref(), x, |x| {
        tracer.in_module(&place, || {
            let rows = x.view(&[Size::REST, x.size(-1).into()]);
            let y = functional::addmm(&bias, rows, &weight);
            y.view(&[x.size(0).into(), x.size(1).into(), outputs.into()])
        })
    })
}

/// What a layer is given besides its states: what is kept of earlier tokens, and a mask.
type Around<'a> = (Past<'a>, Option<&'a Tensor>);

/// `GPT2Attention`.
fn attention(
    at: &Frame,
    config: &Decoder,
    layer: u64,
    x: &Tensor,
    (past, mask): Around<'_>,
) -> Tensor {
    let (width, head_dim) = (config.shape.width, config.shape.head_dim);
    let (batch, seq_len) = (x.size(0), x.size(1));
    let heads = [batch.into(), seq_len.into(), Size::REST, head_dim.into()];
    let states = conv1d(at, "c_attn", [width, width.saturating_mul(3)], x);
    let mut states = states.split(width, 2).into_iter();
    let mut next = || states.next().unwrap_or_else(|| x.clone());
    let (mut query, mut key, mut value) = (next(), next(), next());
    key = (&key).view(&heads).transpose(1, 2);
    value = (&value).view(&heads).transpose(1, 2);
    query = (&query).view(&heads).transpose(1, 2);
    if let Some(past) = past {
        [key, value] = past.cache.update(layer, [&key, &value]);
    }
    let scales = [config.shape.attention_dropout, config.scale(layer)];
    let settings = Settings::of_decoder(x, mask, scales);
    let mut output = joined(sdpa(&query, &key, &value, settings));
    output = conv1d(at, "c_proj", [width, width], &output);
    output = at.dropout("resid_dropout", config.shape.dropout, output);
    output.and_drop((query, key, value))
}

/// `GPT2MLP`.
fn mlp(at: &Frame, config: &Decoder, x: &Tensor) -> Tensor {
    let (outer, inner) = (config.shape.width, config.shape.intermediate);
    let mut hidden_states = conv1d(at, "c_fc", [outer, inner], x);
    hidden_states = at.activation("act", &config.shape.activation, hidden_states);
    hidden_states = conv1d(at, "c_proj", [inner, outer], &hidden_states);
    at.dropout("dropout", config.shape.dropout, hidden_states)
}

/// `GPT2Block`.
fn block(at: &Frame, config: &Decoder, layer: u64, x: &Tensor, around: Around<'_>) -> Tensor {
    let norm = |name, x: &Tensor| at.layer_norm(name, config.shape.width, config.shape.eps, x);
    let mut hidden_states = norm("ln_1", x);
    let attn_output = at.call("attn", "Attention", |at| {
        attention(at, config, layer, &hidden_states, around)
    });
    hidden_states = (&attn_output).add(x);
    let residual = hidden_states.clone();
    hidden_states = norm("ln_2", &hidden_states);
    let feed_forward = at.call("mlp", "MLP", |at| mlp(at, config, &hidden_states));
    hidden_states = (&residual).add(&feed_forward);
    hidden_states.and_drop((residual, attn_output, feed_forward))
}

/// `GPT2Model`.
fn model(at: &Frame, config: &Decoder, words: &Embedding, ids: &Tensor, past: Past<'_>) -> Tensor {
    at.call("transformer", "Model", |at| {
        let seq_len = ids.length(1);
        let input_ids = ids.view(&[Size::REST, seq_len.into()]);
        let inputs_embeds = words.forward(&input_ids);
        let position_ids = positions(past, at.tracer(), seq_len);
        let wpe = at.embedding("wpe", [config.shape.positions, config.shape.width]);
        let position_embeds = wpe.forward(&position_ids);
        let mut hidden_states = (&inputs_embeds).add((&position_embeds).to_device());
        let mask = masked(past, &position_ids, ids);
        hidden_states = at.dropout("drop", config.embedding_dropout, hidden_states);
        for layer in 0..config.shape.layers {
            hidden_states = at.call(&format!("h.{layer}"), "Block", |at| {
                block(at, config, layer, &hidden_states, (past, mask.as_ref()))
            });
        }
        hidden_states = at.layer_norm("ln_f", config.shape.width, config.shape.eps, hidden_states);
        let width = hidden_states.size(-1).into();
        hidden_states = (&hidden_states).view(&[Size::REST, seq_len.into(), width]);
        let names = (position_ids, inputs_embeds, position_embeds, mask);
        hidden_states.and_drop((input_ids, names))
    })
}
