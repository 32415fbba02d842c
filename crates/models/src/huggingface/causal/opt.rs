//! OPT: `modeling_opt.py`.

use crate::huggingface::attention::{causal_mask_of, joined, sdpa};
use crate::huggingface::generation::{GenerationTraits, Past, positions};
use crate::huggingface::prelude::*;
use crate::huggingface::text;
use crate::tracing::functional::Attention as Settings;

/// The first rows of the embedding of positions, which stand for no position.
const OFFSET: u64 = 2;

/// What `torch.nn.LayerNorm` adds to variances by default.
const EPS: f64 = 1e-5;

const CODE: Code = Code::new("opt.modeling_opt", "OPT");

/// What a config says of such a model.
struct Decoder {
    shape: Shape,
    has_bias: bool,
    has_norm_weights: bool,
    norms: Norms,
}

/// Where states are normalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Norms {
    /// Before each part of a layer.
    Before,
    /// Before each part of a layer, and after the last.
    BeforeAndAtTheEnd,
    /// After each part of a layer.
    After,
}

impl Decoder {
    fn read(config: &Config<'_>) -> Result<Decoder, RequestError> {
        let shape = Shape::of(config)?;
        let norms = match (
            config.flag("do_layer_norm_before", true)?,
            config.flag("_remove_final_layer_norm", false)?,
        ) {
            (true, false) => Norms::BeforeAndAtTheEnd,
            (true, true) => Norms::Before,
            (false, _) => Norms::After,
        };
        Ok(Decoder {
            shape,
            has_bias: config.flag("enable_bias", true)?,
            has_norm_weights: config.flag("layer_norm_elementwise_affine", true)?,
            norms,
        })
    }

    fn norm(&self, at: &Frame, name: &str, x: &Tensor) -> Tensor {
        if self.has_norm_weights {
            at.layer_norm(name, self.shape.width, EPS, x)
        } else {
            LayerNorm::plain(at.path(name), self.shape.width, EPS).forward(x)
        }
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Decoder::read(&task.config)?;
    let seq_len = task.tokens_of("max_position_embeddings", config.shape.positions)?;
    let at = task.frame(CODE, "model");
    let tracer = at.tracer().clone();
    let sizes = [config.shape.vocabulary, config.shape.embedding_width];
    let words = at.embedding("model.decoder.embed_tokens", sizes);
    let words = words.padding(config.shape.padding);
    let decoder = |ids: &Tensor, past: Past<'_>| decoder(&at, &config, &words, ids, past);
    if task.class == "OPTForSequenceClassification" {
        let forward = |ids: &Tensor| at.call("model", "Model", |_| decoder(ids, None));
        let of_tokens = (seq_len, config.shape.embedding_width, Some(1));
        return text::classes_of_decoder(task, tracer, of_tokens, forward);
    }
    let traits = GenerationTraits {
        tokens: [true; 3],
        ..GenerationTraits::plain(config.shape.layers)
    };
    text::tied_language_model(task, (&words, true), (seq_len, traits), decoder)
}

/// What a layer is given besides its states: a mask, and what is kept of earlier tokens.
type Around<'a> = (Option<&'a Tensor>, Past<'a>);

/// `OPTAttention`.
fn attention(
    at: &Frame,
    config: &Decoder,
    layer: u64,
    x: &Tensor,
    (mask, past): Around<'_>,
) -> Tensor {
    at.made(&["k_proj", "v_proj"]);
    let head_dim = config.shape.head_dim;
    let linear = |name, x: &Tensor| at.linear(name, [config.shape.width; 2], config.has_bias, x);
    let heads = [
        x.size(0).into(),
        Size::REST,
        config.shape.heads.into(),
        head_dim.into(),
    ];
    let scaling = (head_dim as f64).powf(-0.5);
    let mut query = linear("q_proj", x).mul_number(scaling);
    query = (&query).view(&heads).transpose(1, 2);
    let [mut key, mut value] = ["k_proj", "v_proj"].map(|name| linear(name, x));
    key = (&key).view(&heads).transpose(1, 2);
    value = (&value).view(&heads).transpose(1, 2);
    if let Some(past) = past {
        [key, value] = past.cache.update(layer, [&key, &value]);
    }
    let settings = Settings::of_decoder(x, mask, [config.shape.attention_dropout, 1.0]);
    let mut output = joined(sdpa(&query, &key, &value, settings));
    output = linear("out_proj", &output);
    output.and_drop((query, key, value))
}

/// `OPTDecoderLayer`.
fn layer(at: &Frame, config: &Decoder, layer: u64, x: &Tensor, around: Around<'_>) -> Tensor {
    let (outer, inner, bias) = (
        config.shape.width,
        config.shape.intermediate,
        config.has_bias,
    );
    let p = config.shape.dropout;
    let normalizes_before = config.norms != Norms::After;
    at.made(&["self_attn", "self_attn_layer_norm", "fc1", "fc2"]);
    let mut residual = x.clone();
    let mut hidden_states = x.clone();
    if normalizes_before {
        hidden_states = config.norm(at, "self_attn_layer_norm", &hidden_states);
    }
    hidden_states = at.call("self_attn", "Attention", |at| {
        attention(at, config, layer, &hidden_states, around)
    });
    hidden_states = functional::dropout(&hidden_states, p);
    hidden_states = (&residual).add(&hidden_states);
    if !normalizes_before {
        hidden_states = config.norm(at, "self_attn_layer_norm", &hidden_states);
    }
    let sizes = [0, 1, 2].map(|dim| Size::from(hidden_states.size(dim)));
    hidden_states = (&hidden_states).reshape(&[Size::REST, sizes[2]]);
    residual = hidden_states.clone();
    if normalizes_before {
        hidden_states = config.norm(at, "final_layer_norm", &hidden_states);
    }
    hidden_states = at.linear("fc1", [outer, inner], bias, hidden_states);
    hidden_states = at.activation("activation_fn", &config.shape.activation, hidden_states);
    hidden_states = at.linear("fc2", [inner, outer], bias, hidden_states);
    hidden_states = functional::dropout(&hidden_states, p);
    hidden_states = (&residual).add(&hidden_states).view(&sizes);
    if !normalizes_before {
        hidden_states = config.norm(at, "final_layer_norm", &hidden_states);
    }
    hidden_states.and_drop(residual)
}

/// `position_ids` by default.
fn positions_of(attention_mask: &Tensor) -> Tensor {
    let mut position_ids = attention_mask.cumsum(1);
    position_ids = (&position_ids)
        .mul(attention_mask)
        .sub_number(1)
        .to(DType::Int64);
    position_ids = (&position_ids).alias();
    position_ids
}

/// `OPTDecoder`.
fn decoder(
    at: &Frame,
    config: &Decoder,
    words: &Embedding,
    ids: &Tensor,
    past: Past<'_>,
) -> Tensor {
    at.call("model.decoder", "Decoder", |at| {
        at.made(&[
            "embed_tokens",
            "embed_positions",
            "project_out",
            "project_in",
            "final_layer_norm",
        ]);
        let tracer = at.tracer();
        let (batch, seq_len): (Size, Size) = (ids.size(0).into(), ids.size(1).into());
        let input_ids = ids.view(&[Size::REST, seq_len]);
        let mut inputs_embeds = words.forward(&input_ids);
        let ones = || tracer.ones(&[batch, seq_len], DType::Float32);
        let (position_ids, mask, made) = if let Some(past) = past {
            let position_ids = positions(Some(past), tracer, ids.length(1));
            // Where it is given none, it makes one.
            let made = past.mask_is_missing().then(ones);
            let mask = match &made {
                Some(tokens) => past.mask_of(tokens, ids),
                None => past.mask(ids.size(0), ids.length(1), None),
            };
            (position_ids, mask, made)
        } else {
            let attention_mask = tracer.attending().padding.unwrap_or_else(ones);
            let position_ids = positions_of(&attention_mask);
            let mask = causal_mask_of(&attention_mask);
            (position_ids, mask, Some(attention_mask))
        };
        let pos_embeds = at.call("embed_positions", "LearnedPositionalEmbedding", |at| {
            let rows = config.shape.positions.saturating_add(OFFSET);
            let table = at.parameter("weight", &[rows, config.shape.width]);
            let shifted = (&position_ids).add_number(OFFSET.cast_signed());
            functional::embedding(shifted, &table, None)
        });
        let (inner, outer) = (config.shape.width, config.shape.embedding_width);
        if inner != outer {
            inputs_embeds = at.linear("project_in", [outer, inner], false, inputs_embeds);
        }
        let mut hidden_states = (&inputs_embeds).add((&pos_embeds).to_device());
        for index in 0..config.shape.layers {
            hidden_states = at.call(&format!("layers.{index}"), "DecoderLayer", |at| {
                layer(at, config, index, &hidden_states, (mask.as_ref(), past))
            });
        }
        if config.norms == Norms::BeforeAndAtTheEnd {
            hidden_states = config.norm(at, "final_layer_norm", &hidden_states);
        }
        if inner != outer {
            hidden_states = at.linear("project_out", [inner, outer], false, hidden_states);
        }
        drop((input_ids, made, inputs_embeds));
        hidden_states.and_drop((position_ids, mask, pos_embeds))
    })
}
