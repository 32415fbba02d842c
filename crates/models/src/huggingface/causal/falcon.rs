//! Falcon: `modeling_falcon.py`.

use super::alibi::{Kind, alibi};
use super::plain_rotation;
use crate::huggingface::attention::{causal_mask, smallest};
use crate::huggingface::prelude::*;
use crate::huggingface::rotary::rotation::{
    Part, Rotary, Rotation, Rotations, Update, apply_rotary,
};
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
    vocabulary: u64,
    width: u64,
    layers: u64,
    heads: u64,
    head_dim: u64,
    kind: Heads,
    layout: Layout,
    intermediate: u64,
    activation: String,
    eps: f64,
    dropout: f64,
    attention_dropout: f64,
    has_bias: bool,
    has_alibi: bool,
}

impl Decoder {
    fn read(config: &Config<'_>) -> Result<Decoder, RequestError> {
        let width = config.size("hidden_size", 4544)?;
        let heads = config.size("num_attention_heads", 71)?;
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
            vocabulary: config.size("vocab_size", 65024)?,
            width,
            layers: config.layers("num_hidden_layers", 32)?,
            heads,
            head_dim: config.quotient([("hidden_size", width), ("num_attention_heads", heads)])?,
            kind,
            layout,
            intermediate: config.size("ffn_hidden_size", width.saturating_mul(4))?,
            activation: config.text("activation", "gelu")?.to_owned(),
            eps: config.number("layer_norm_epsilon", 1e-5)?,
            dropout: config.number("hidden_dropout", 0.0)?,
            attention_dropout: config.number("attention_dropout", 0.0)?,
            has_bias: config.flag("bias", false)?,
            has_alibi: config.flag("alibi", false)?,
        })
    }

    /// The width of queries, keys and values together.
    fn fused(&self) -> u64 {
        let heads = match self.kind {
            Heads::All => self.heads.saturating_mul(3),
            Heads::One => self.heads.saturating_add(2),
            Heads::Groups(kv_heads) => kv_heads.saturating_mul(2).saturating_add(self.heads),
        };
        heads.saturating_mul(self.head_dim)
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Decoder::read(&task.config)?;
    let seq_len = task.seq_len()?;
    let tracer = task.tracer(CODE.module);
    let (model, words) = new_model(&tracer, &config);
    let lm_head = text::lm_head(task, &words, true)?;
    let forward = |ids: &Tensor| model.forward(ids);
    let head = (&lm_head, config.vocabulary);
    text::next_token(task, tracer, seq_len, forward, head)
}

/// `FalconLinear`.
struct FalconLinear {
    place: ModulePath,
    weight: Tensor,
    bias: Option<Tensor>,
    adapter: Option<Box<Adapter>>,
}

impl FalconLinear {
    #[expect(
        clippy::needless_pass_by_value,
        reason = "as every module takes its path"
    )]
    fn new(tracer: &Tracer, path: String, [inputs, outputs]: [u64; 2], bias: bool) -> FalconLinear {
        let own = Adapter::path_of_layer(tracer, &path);
        FalconLinear {
            weight: tracer.parameter(&format!("{own}.weight"), &[outputs, inputs]),
            bias: bias.then(|| tracer.parameter(&format!("{own}.bias"), &[outputs])),
            adapter: Adapter::of_layer(tracer, &path, [inputs, outputs]),
            place: CODE.place(own, "Linear"),
        }
    }

    fn forward(&self, input: impl Tensors) -> Tensor {
        Adapter::forward(self.adapter.as_deref(), input, |input| {
            input.tracer().in_module(&self.place, || {
                let hidden_states = input.matmul((&self.weight).transposed());
                match &self.bias {
                    Some(bias) => hidden_states.add(bias),
                    None => hidden_states,
                }
            })
        })
    }
}

/// `dropout_add`.
fn dropout_add(x: &Tensor, residual: &Tensor, p: f64) -> Tensor {
    let mut out = functional::dropout(x, p);
    out = residual.add(&out);
    out
}

/// `FalconAttention`.
struct Attention {
    place: ModulePath,
    query_key_value: FalconLinear,
    dense: FalconLinear,
    heads: u64,
    head_dim: u64,
    kind: Heads,
    dropout: f64,
}

/// What all layers read besides their states: a mask, and biases that are in it already or rotations.
struct Positions {
    mask: Tensor,
    has_alibi: bool,
    rotations: Rotations,
}

impl Attention {
    fn new(tracer: &Tracer, path: String, config: &Decoder) -> Attention {
        let place = CODE.place(path, "Attention");
        let (width, bias) = (config.width, config.has_bias);
        let linear =
            |name, outputs| FalconLinear::new(tracer, place.path(name), [width, outputs], bias);
        Attention {
            query_key_value: linear("query_key_value", config.fused()),
            dense: linear("dense", width),
            heads: config.heads,
            head_dim: config.head_dim,
            kind: config.kind,
            dropout: config.attention_dropout,
            place,
        }
    }

    /// `_split_heads`.
    fn split_heads(&self, fused: &Tensor) -> [Tensor; 3] {
        let (batch, seq_len): (Size, Size) = (fused.size(0).into(), fused.size(1).into());
        let tracer = fused.tracer();
        let dim = self.head_dim.into();
        match self.kind {
            Heads::All => {
                let split = fused.view(&[batch, seq_len, self.heads.into(), 3.into(), dim]);
                [0, 1, 2].map(|index| (&split).select(3, index))
            }
            Heads::One => {
                let heads = self.heads.saturating_add(2).into();
                let split = fused.view(&[batch, seq_len, heads, dim]);
                let query = (&split).slice(2, 0, -2);
                let one = || {
                    let index = tracer.constant(&[1], DType::Int64);
                    (&split).index(&[None, None, Some(&index)])
                };
                [query, one(), one()]
            }
            Heads::Groups(kv_heads) => {
                let group = (self.heads / kv_heads.max(1)).saturating_add(2).into();
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

    fn forward(&self, x: &Tensor, positions: &Positions) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let fused_qkv = self.query_key_value.forward(x);
            let [mut query, mut key, mut value] = self.split_heads(&fused_qkv);
            let (batch, length): (Size, Size) = (query.size(0).into(), query.size(1).into());
            let kv_heads = match self.kind {
                Heads::One => 1,
                Heads::All | Heads::Groups(_) => self.heads,
            };
            let by_head = |x: &Tensor, heads: u64| {
                let sizes = [batch, heads.into(), length, self.head_dim.into()];
                x.transpose(1, 2).reshape(&sizes)
            };
            query = by_head(&query, self.heads);
            key = by_head(&key, kv_heads);
            value = by_head(&value, kv_heads);
            let width = self.heads.saturating_mul(self.head_dim).into();
            let mut settings = Settings {
                mask: Some(&positions.mask),
                ..Settings::default()
            };
            let mut output;
            if positions.has_alibi {
                settings.dropout = self.dropout;
                output = functional::attention(&query, &key, &value, settings);
                output = (&output).transpose(1, 2);
            } else {
                [query, key] = apply_rotary(&query, &key, &positions.rotations, Part::Whole);
                output = functional::attention(&query, &key, &value, settings);
                let sizes = [batch, self.heads.into(), length, self.head_dim.into()];
                output = (&output).view(&sizes);
                output = (&output).permute(&[0, 2, 1, 3]);
            }
            output = (&output).reshape(&[batch, length, width]);
            output = self.dense.forward(&output);
            output.and_drop((fused_qkv, query, key, value))
        })
    }
}

/// `FalconMLP`.
fn new_mlp(tracer: &Tracer, path: String, config: &Decoder) -> FnModule {
    let place = CODE.place(path, "MLP");
    let (outer, inner) = (config.width, config.intermediate);
    let linear = |name, sizes| FalconLinear::new(tracer, place.path(name), sizes, config.has_bias);
    let dense_h_to_4h = linear("dense_h_to_4h", [outer, inner]);
    let act = Activation::named(tracer, place.path("act"), &config.activation);
    let dense_4h_to_h = linear("dense_4h_to_h", [inner, outer]);
    FnModule::new(place, move |x| {
        let mut x = act.forward(dense_h_to_4h.forward(x));
        x = dense_4h_to_h.forward(&x);
        x
    })
}

/// `FalconDecoderLayer`.
fn new_layer(
    tracer: &Tracer,
    path: String,
    config: &Decoder,
) -> impl Fn(&Tensor, &Positions) -> Tensor + use<> {
    let place = CODE.place(path, "DecoderLayer");
    let norm = |name| {
        Some(LayerNorm::new(
            tracer,
            place.path(name),
            config.width,
            config.eps,
        ))
    };
    let self_attention = Attention::new(tracer, place.path("self_attention"), config);
    let mlp = new_mlp(tracer, place.path("mlp"), config);
    let norms = match config.layout {
        Layout::Consecutive => {
            let after = norm("post_attention_layernorm");
            [norm("input_layernorm"), after]
        }
        Layout::Parallel => [norm("input_layernorm"), None],
        Layout::ParallelOfTwoNorms => [norm("ln_attn"), norm("ln_mlp")],
    };
    let layout = config.layout;
    let dropout = config.dropout;
    let attention_dropout = config.attention_dropout;

    move |x: &Tensor, positions: &Positions| {
        x.tracer().in_module(&place, || {
            let norm = |index: usize, x: &Tensor| match &norms[index] {
                Some(norm) => norm.forward(x),
                None => x.clone(),
            };
            let mut residual = x.clone();
            let attention_normed = norm(0, x);
            let mut mlp_normed = match layout {
                Layout::ParallelOfTwoNorms => norm(1, x),
                Layout::Consecutive | Layout::Parallel => attention_normed.clone(),
            };
            let attention_output = self_attention.forward(&attention_normed, positions);
            if layout == Layout::Consecutive {
                residual = dropout_add(&attention_output, &residual, attention_dropout);
                mlp_normed = norm(1, &residual);
            }
            let mlp_output = mlp.forward(&mlp_normed);
            if layout != Layout::Consecutive {
                mlp_output.add_in_place(&attention_output);
            }
            let output = dropout_add(&mlp_output, &residual, dropout);
            drop((residual, attention_normed, mlp_normed));
            output.and_drop((attention_output, mlp_output))
        })
    }
}

/// `FalconModel`, and the weight of its words.
fn new_model(tracer: &Tracer, config: &Decoder) -> (FnModule, Tensor) {
    let place = CODE.place("transformer", "Model");
    let rotation = Rotation {
        dims: config.head_dim,
        scaling: 1.0,
        is_sure_of_float32: false,
        part: Part::Whole,
        update: Update::None,
    };
    let rotary = CODE.place(place.path("rotary_emb"), "RotaryEmbedding");
    let words = [config.vocabulary, config.width];
    let layer = |layer| new_layer(tracer, place.path(&format!("h.{layer}")), config);
    let (heads, head_dim, has_alibi) = (config.heads, config.head_dim, config.has_alibi);
    let word_embeddings = Embedding::new(tracer, place.path("word_embeddings"), words);
    let h: Vec<_> = (0..config.layers).map(layer).collect();
    let ln_f = LayerNorm::new(tracer, place.path("ln_f"), config.width, config.eps);
    let rotary_emb = Rotary::new(tracer, rotary, &[("", rotation)]);
    let weight = word_embeddings.weight.clone();
    let model = FnModule::new(place, move |ids| {
        let tracer = ids.tracer();
        let (batch, seq_len) = (ids.size(0), ids.length(1));
        let inputs_embeds = word_embeddings.forward(ids);
        let mut biases = has_alibi.then(|| {
            let mask = tracer.ones(&[batch.into(), seq_len.into()], DType::Int64);
            let alibi = alibi(&mask, heads, &inputs_embeds, Kind::Falcon);
            (mask, alibi)
        });
        let mut position_ids = tracer.arange(seq_len).add_number(0);
        position_ids = (&position_ids).unsqueeze(0);
        let mut mask = causal_mask(&tracer, batch, seq_len);
        if let Some((_, alibi)) = &mut biases {
            mask = mask_with(head_dim, alibi, mask, inputs_embeds.dtype().dtype);
        }
        let mut hidden_states = inputs_embeds.clone();
        let rotations = rotary_emb.forward(&hidden_states, &position_ids, 0);
        let positions = Positions {
            mask,
            has_alibi,
            rotations,
        };
        let mut outputs = None;
        for layer in &h {
            let made = layer(&hidden_states, &positions);
            outputs = Some(made.clone());
            hidden_states = made;
        }
        hidden_states = ln_f.forward(&hidden_states);
        drop((position_ids, inputs_embeds));
        let (ones, alibi) = biases.unzip();
        drop((alibi, ones));
        let Positions {
            mask, rotations, ..
        } = positions;
        drop(mask);
        rotations.let_go();
        hidden_states.and_drop(outputs)
    });
    (model, weight)
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
