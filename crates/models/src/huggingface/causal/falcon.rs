//! Falcon: `modeling_falcon.py`.

use super::alibi::{Kind, alibi};
use super::plain_rotation;
use crate::huggingface::attention::{causal_mask, smallest};
use crate::huggingface::generation::GenerationTraits;
use crate::huggingface::prelude::*;
use crate::huggingface::rotary::rotation::{Part, Rotary, Rotation, Rotations, apply_rotary};
use crate::huggingface::text;
use crate::tracing::Adapter;
use crate::tracing::functional::Attention as Settings;

const CODE: Code = Code::new("falcon.modeling_falcon", "Falcon");

/// How a layer is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Attention, then the MLP.
    Consecutive,
    /// Both read the same normalized states.
    Parallel,
    /// Both read normalized states of their own.
    ParallelOfTwoNorms,
}

/// How many keys and values there are for the queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heads {
    /// As many.
    All,
    /// One of each.
    One,
    /// One of each for a group of queries, repeated: `new_decoder_architecture`.
    Groups(u64),
}

/// What a config says of such a model.
struct Decoder {
    shape: Shape,
    kind: Heads,
    layout: Layout,
    has_bias: bool,
    has_alibi: bool,
}

impl Decoder {
    fn read(config: &Config<'_>) -> Result<Decoder, RequestError> {
        let shape = Shape::of(config)?;
        let heads = shape.heads;
        let kv_heads = config.size("num_kv_heads", heads)?;
        let is_new = config.flag("new_decoder_architecture", false)?;
        let is_parallel = config.flag("parallel_attn", true)?;
        let norms = config.size("num_ln_in_parallel_attn", if is_new { 2 } else { 1 })?;
        let layout = match (is_new, is_parallel, norms) {
            (false, false, _) => Layout::Consecutive,
            (_, true, 1) => Layout::Parallel,
            (true, true, 2) => Layout::ParallelOfTwoNorms,
            (true, false, _) => return Err(config.not_built("parallel_attn")),
            (_, true, _) => return Err(config.not_built("num_ln_in_parallel_attn")),
        };
        let kind = if is_new {
            config.quotient([("num_attention_heads", heads), ("num_kv_heads", kv_heads)])?;
            Heads::Groups(kv_heads)
        } else if config.flag("multi_query", true)? {
            Heads::One
        } else {
            Heads::All
        };
        plain_rotation(config)?;
        Ok(Decoder {
            shape,
            kind,
            layout,
            has_bias: config.flag("bias", false)?,
            has_alibi: config.flag("alibi", false)?,
        })
    }

    /// The width of queries, keys and values together.
    fn fused(&self) -> u64 {
        let heads = match self.kind {
            Heads::All => self.shape.heads.saturating_mul(3),
            Heads::One => self.shape.heads.saturating_add(2),
            Heads::Groups(kv_heads) => kv_heads.saturating_mul(2).saturating_add(self.shape.heads),
        };
        heads.saturating_mul(self.shape.head_dim)
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Decoder::read(&task.config)?;
    let seq_len = task.seq_len()?;
    let at = task.frame(CODE, "transformer");
    let sizes = [config.shape.vocabulary, config.shape.width];
    let words = at.embedding("transformer.word_embeddings", sizes);
    let forward = |ids: &Tensor| model(&at, &config, &words, ids);
    let traits = GenerationTraits::plain(config.shape.layers);
    text::tied_language_model(task, (&words, true), (seq_len, traits), |ids, _| {
        forward(ids)
    })
}

/// `FalconLinear`.
fn linear(at: &Frame, name: &str, [inputs, outputs]: [u64; 2], bias: bool, x: &Tensor) -> Tensor {
    let (tracer, path) = (at.tracer(), at.path(name));
    let own = Adapter::path_of_layer(tracer, &path);
    let weight = tracer.parameter(&format!("{own}.weight"), &[outputs, inputs]);
    let bias = bias.then(|| tracer.parameter(&format!("{own}.bias"), &[outputs]));
    let adapter = Adapter::of_layer(tracer, &path, [inputs, outputs]);
    let place = CODE.place(own, "Linear");
    Adapter::forward(adapter.as_deref(), x, |input| {
        tracer.in_module(&place, || {
            let hidden_states = input.matmul((&weight).transposed());
            match &bias {
                Some(bias) => hidden_states.add(bias),
                None => hidden_states,
            }
        })
    })
}

/// `dropout_add`.
fn dropout_add(x: &Tensor, residual: &Tensor, p: f64) -> Tensor {
    let mut out = functional::dropout(x, p);
    out = residual.add(&out);
    out
}

/// What all layers read besides their states: a mask, which has biases in it already or goes with rotations.
struct Positions {
    mask: Tensor,
    rotations: Rotations,
}

/// `_split_heads`.
fn split_heads(config: &Decoder, fused: &Tensor) -> [Tensor; 3] {
    let (batch, seq_len): (Size, Size) = (fused.size(0).into(), fused.size(1).into());
    let tracer = fused.tracer();
    let dim = config.shape.head_dim.into();
    match config.kind {
        Heads::All => {
            let split = fused.view(&[batch, seq_len, config.shape.heads.into(), 3.into(), dim]);
            [0, 1, 2].map(|index| (&split).select(3, index))
        }
        Heads::One => {
            let heads = config.shape.heads.saturating_add(2).into();
            let split = fused.view(&[batch, seq_len, heads, dim]);
            let query = (&split).slice(2, 0, -2);
            let one = || {
                let index = tracer.constant(&[1], DType::Int64);
                (&split).index(&[None, None, Some(&index)])
            };
            [query, one(), one()]
        }
        Heads::Groups(kv_heads) => {
            let group = (config.shape.heads / kv_heads.max(1))
                .saturating_add(2)
                .into();
            let split = fused.view(&[batch, seq_len, Size::REST, group, dim]);
            let query = (&split).slice(3, 0, -2);
            let one = || {
                let index = tracer.constant(&[1], DType::Int64);
                (&split).index(&[None, None, None, Some(&index)])
            };
            let sizes: Vec<Size> = query.shape().into_iter().map(Size::from).collect();
            let (mut key, mut value) = (one(), one());
            key = (&key).expand(&sizes);
            value = (&value).expand(&sizes);
            let flat = [
                (&query).flatten(2, 3),
                (&key).flatten(2, 3),
                (&value).flatten(2, 3),
            ];
            drop((split, query, key, value));
            flat
        }
    }
}

/// `FalconAttention`.
fn attention(at: &Frame, config: &Decoder, x: &Tensor, positions: &Positions) -> Tensor {
    let (width, bias) = (config.shape.width, config.has_bias);
    let fused_qkv = linear(at, "query_key_value", [width, config.fused()], bias, x);
    let [mut query, mut key, mut value] = split_heads(config, &fused_qkv);
    let (batch, length): (Size, Size) = (query.size(0).into(), query.size(1).into());
    let kv_heads = match config.kind {
        Heads::One => 1,
        Heads::All | Heads::Groups(_) => config.shape.heads,
    };
    let by_head = |x: &Tensor, heads: u64| {
        let sizes = [batch, heads.into(), length, config.shape.head_dim.into()];
        x.transpose(1, 2).reshape(&sizes)
    };
    query = by_head(&query, config.shape.heads);
    key = by_head(&key, kv_heads);
    value = by_head(&value, kv_heads);
    let all_heads = config
        .shape
        .heads
        .saturating_mul(config.shape.head_dim)
        .into();
    let mut settings = Settings {
        mask: Some(&positions.mask),
        ..Settings::default()
    };
    let mut output;
    if config.has_alibi {
        settings.dropout = config.shape.attention_dropout;
        output = functional::attention(&query, &key, &value, settings);
        output = (&output).transpose(1, 2);
    } else {
        [query, key] = apply_rotary(&query, &key, &positions.rotations, Part::Whole);
        output = functional::attention(&query, &key, &value, settings);
        let sizes = [
            batch,
            config.shape.heads.into(),
            length,
            config.shape.head_dim.into(),
        ];
        output = (&output).view(&sizes);
        output = (&output).permute(&[0, 2, 1, 3]);
    }
    output = (&output).reshape(&[batch, length, all_heads]);
    output = linear(at, "dense", [width, width], bias, &output);
    output.and_drop((fused_qkv, query, key, value))
}

/// `FalconMLP`.
fn mlp(at: &Frame, config: &Decoder, x: &Tensor) -> Tensor {
    let (outer, inner) = (config.shape.width, config.shape.intermediate);
    let mut x = linear(at, "dense_h_to_4h", [outer, inner], config.has_bias, x);
    x = at.activation("act", &config.shape.activation, x);
    x = linear(at, "dense_4h_to_h", [inner, outer], config.has_bias, &x);
    x
}

/// `FalconDecoderLayer`.
fn layer(at: &Frame, config: &Decoder, x: &Tensor, positions: &Positions) -> Tensor {
    let norm = |name, x: &Tensor| at.layer_norm(name, config.shape.width, config.shape.eps, x);
    at.made(&["self_attention", "mlp", "post_attention_layernorm"]);
    let mut residual = x.clone();
    let (attention_normed, mut mlp_normed) = match config.layout {
        Layout::ParallelOfTwoNorms => (norm("ln_attn", x), norm("ln_mlp", x)),
        Layout::Consecutive | Layout::Parallel => {
            let normed = norm("input_layernorm", x);
            (normed.clone(), normed)
        }
    };
    let attention_output = at.call("self_attention", "Attention", |at| {
        attention(at, config, &attention_normed, positions)
    });
    if config.layout == Layout::Consecutive {
        residual = dropout_add(&attention_output, &residual, config.shape.attention_dropout);
        mlp_normed = norm("post_attention_layernorm", &residual);
    }
    let mlp_output = at.call("mlp", "MLP", |at| mlp(at, config, &mlp_normed));
    if config.layout != Layout::Consecutive {
        mlp_output.add_in_place(&attention_output);
    }
    let output = dropout_add(&mlp_output, &residual, config.shape.dropout);
    drop((residual, attention_normed, mlp_normed));
    output.and_drop((attention_output, mlp_output))
}

/// `FalconModel`.
fn model(at: &Frame, config: &Decoder, words: &Embedding, ids: &Tensor) -> Tensor {
    at.call("transformer", "Model", |at| {
        let tracer = at.tracer();
        let (batch, seq_len) = (ids.size(0), ids.length(1));
        let inputs_embeds = words.forward(ids);
        let mut biases = config.has_alibi.then(|| {
            let mask = tracer.ones(&[batch.into(), seq_len.into()], DType::Int64);
            let alibi = alibi(&mask, config.shape.heads, &inputs_embeds, Kind::Falcon);
            (mask, alibi)
        });
        let mut position_ids = tracer.arange(seq_len).add_number(0);
        position_ids = (&position_ids).unsqueeze(0);
        let mut mask = causal_mask(tracer, batch, seq_len);
        if let Some((_, alibi)) = &mut biases {
            mask = mask_with(
                config.shape.head_dim,
                alibi,
                mask,
                inputs_embeds.dtype().dtype,
            );
        }
        let mut hidden_states = inputs_embeds.clone();
        let rotation = Rotation::plain(config.shape.head_dim);
        let rotary_emb = Rotary::new(at, "rotary_emb", &[("", rotation)]);
        let rotations = rotary_emb.forward(&hidden_states, &position_ids, 0);
        let positions = Positions { mask, rotations };
        let mut outputs = None;
        for index in 0..config.shape.layers {
            let made = at.call(&format!("h.{index}"), "DecoderLayer", |at| {
                layer(at, config, &hidden_states, &positions)
            });
            outputs = Some(made.clone());
            hidden_states = made;
        }
        hidden_states = at.layer_norm("ln_f", config.shape.width, config.shape.eps, hidden_states);
        drop((position_ids, inputs_embeds));
        let (ones, alibi) = biases.unzip();
        drop((alibi, ones));
        let Positions { mask, rotations } = positions;
        drop(mask);
        rotations.let_go();
        hidden_states.and_drop(outputs)
    })
}

/// The mask with the biases in it.
fn mask_with(head_dim: u64, alibi: &mut Tensor, mut mask: Tensor, dtype: DType) -> Tensor {
    let tracer = mask.tracer();
    let [batch, seq_len] = [mask.size(0), mask.size(3)];
    let least = smallest(dtype);
    mask = mask.choose_or_number(tracer.full(&[], 0.0, dtype), least);
    *alibi = (&*alibi).reshape(&[batch.into(), Size::REST, 1.into(), seq_len.into()]);
    let scaled = (&*alibi).div_number((head_dim as f64).sqrt());
    let masked = (&mask).less_than_number(-1);
    scaled.masked_fill(masked, least).and_drop(mask)
}
