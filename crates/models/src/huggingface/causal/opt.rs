//! OPT: `modeling_opt.py`.

use crate::graph::Graph;
use crate::huggingface::attention::{causal_mask_of, sdpa};
use crate::huggingface::config::Config;
use crate::huggingface::generation::{GenerationInputs, GenerationTraits, generated, positions};
use crate::huggingface::heads::Labels;
use crate::huggingface::{Task, text};
use crate::request_error::RequestError;
use crate::shape::{DType, Extent};
use crate::tracing::functional::{self, Attention as Settings};
use crate::tracing::{
    Activation, Embedding, LayerNorm, Linear, ModulePath, Pointwise as _, Reductions as _, Size,
    Tensor, Tracer, Views as _,
};

/// The classes that are built here.
pub(in crate::huggingface) const CLASSES: &[&str] =
    &["OPTForCausalLM", "OPTForSequenceClassification"];

/// The first rows of the embedding of positions, which stand for no position.
const OFFSET: u64 = 2;

/// What `torch.nn.LayerNorm` adds to variances by default.
const EPS: f64 = 1e-5;

fn place(path: impl Into<String>, class: &str) -> ModulePath {
    ModulePath::new(
        path,
        format!("transformers.models.opt.modeling_opt.{class}"),
    )
}

/// What a config says of such a model.
struct Shape {
    vocabulary: u64,
    positions: u64,
    width: u64,
    word_width: u64,
    layers: u64,
    heads: u64,
    head_dim: u64,
    intermediate: u64,
    activation: String,
    dropout: f64,
    attention_dropout: f64,
    padding: Option<u64>,
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

impl Shape {
    fn read(config: &Config<'_>) -> Result<Shape, RequestError> {
        let width = config.size("hidden_size", 768)?;
        let heads = config.size("num_attention_heads", 12)?;
        let norms = match (
            config.flag("do_layer_norm_before", true)?,
            config.flag("_remove_final_layer_norm", false)?,
        ) {
            (true, false) => Norms::BeforeAndAtTheEnd,
            (true, true) => Norms::Before,
            (false, _) => Norms::After,
        };
        Ok(Shape {
            vocabulary: config.size("vocab_size", 50272)?,
            positions: config.size("max_position_embeddings", 2048)?,
            width,
            word_width: config.size("word_embed_proj_dim", width)?,
            layers: config.layers("num_hidden_layers", 12)?,
            heads,
            head_dim: config.quotient([("hidden_size", width), ("num_attention_heads", heads)])?,
            intermediate: config.size("ffn_dim", 3072)?,
            activation: config.text("activation_function", "relu")?.to_owned(),
            dropout: config.number("dropout", 0.1)?,
            attention_dropout: config.number("attention_dropout", 0.0)?,
            padding: config.token("pad_token_id", Some(1))?,
            has_bias: config.flag("enable_bias", true)?,
            has_norm_weights: config.flag("layer_norm_elementwise_affine", true)?,
            norms,
        })
    }

    fn norm(&self, tracer: &Tracer, path: String) -> LayerNorm {
        if self.has_norm_weights {
            LayerNorm::new(tracer, path, self.width, EPS)
        } else {
            LayerNorm::plain(path, self.width, EPS)
        }
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let shape = Shape::read(&task.config)?;
    let seq_len = task.tokens_of("max_position_embeddings", shape.positions)?;
    let tracer = task.tracer("opt.modeling_opt");
    let decoder = Decoder::new(&tracer, &shape);
    let linear =
        |name: &str, outputs: u64| Linear::new(&tracer, name, [shape.word_width, outputs], false);
    if task.class == "OPTForSequenceClassification" {
        let labels = Labels::of(&task.config, 2)?;
        let score = linear("score", labels.count);
        let model = place("model", "OPTModel");
        let forward = |ids: &Tensor| {
            ids.tracer()
                .in_module(&model, || decoder.forward(ids, None))
        };
        let padding = shape.padding;
        return text::classes_of_last_token(
            (task, seq_len, padding),
            tracer,
            forward,
            (&score, labels),
        );
    }
    let lm_head = if task.config.flag("tie_word_embeddings", true)? {
        Linear::tied("lm_head".into(), &decoder.embed_tokens.weight, None)
    } else {
        linear("lm_head", shape.vocabulary)
    };
    if let Some(generation) = &task.sizes.generation {
        let forward = |ids: &Tensor, past: &GenerationInputs<'_>| decoder.forward(ids, Some(past));
        let traits = GenerationTraits {
            tokens: [true; 3],
            ..GenerationTraits::plain(shape.layers)
        };
        let how = (generation, &traits);
        return generated(task, tracer, how, forward, |x| lm_head.forward(x));
    }
    let forward = |ids: &Tensor| decoder.forward(ids, None);
    let head = (&lm_head, shape.vocabulary);
    text::next_token(task, tracer, seq_len, forward, head)
}

/// What a layer is given besides its states: a mask, and what is kept of earlier tokens.
type Around<'a> = (Option<&'a Tensor>, Option<&'a GenerationInputs<'a>>);

/// `OPTAttention`.
struct Attention {
    place: ModulePath,
    k_proj: Linear,
    v_proj: Linear,
    q_proj: Linear,
    out_proj: Linear,
    heads: u64,
    head_dim: u64,
    dropout: f64,
    layer: usize,
}

impl Attention {
    fn new(tracer: &Tracer, path: String, shape: &Shape, layer: u64) -> Attention {
        let place = place(path, "OPTAttention");
        let sizes = [shape.width, shape.width];
        let linear = |name: &str| Linear::new(tracer, place.path(name), sizes, shape.has_bias);
        Attention {
            k_proj: linear("k_proj"),
            v_proj: linear("v_proj"),
            q_proj: linear("q_proj"),
            out_proj: linear("out_proj"),
            heads: shape.heads,
            head_dim: shape.head_dim,
            dropout: shape.attention_dropout,
            layer: usize::try_from(layer).unwrap_or(usize::MAX),
            place,
        }
    }

    fn forward(&self, x: &Tensor, (mask, past): Around<'_>) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let (batch, seq_len): (Size, Size) = (x.size(0).into(), x.size(1).into());
            let heads = [batch, Size::REST, self.heads.into(), self.head_dim.into()];
            let scaling = (self.head_dim as f64).powf(-0.5);
            let mut query = self.q_proj.forward(x).mul_number(scaling);
            query = (&query).view(&heads).transpose(1, 2);
            let mut key = self.k_proj.forward(x);
            let mut value = self.v_proj.forward(x);
            key = (&key).view(&heads).transpose(1, 2);
            value = (&value).view(&heads).transpose(1, 2);
            if let Some(past) = past {
                [key, value] = past.cache.update(self.layer, [&key, &value]);
            }
            let settings = Settings {
                mask,
                dropout: self.dropout,
                causal: mask.is_none() && x.size(1) != Extent::ONE,
                scale: Some(1.0),
                ..Settings::default()
            };
            let mut output = sdpa(&query, &key, &value, settings);
            output = (&output)
                .reshape(&[batch, seq_len, Size::REST])
                .contiguous();
            output = self.out_proj.forward(&output);
            output.and_drop((query, key, value))
        })
    }
}

/// `OPTDecoderLayer`.
struct Layer {
    place: ModulePath,
    self_attn: Attention,
    activation_fn: Activation,
    self_attn_layer_norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    final_layer_norm: LayerNorm,
    dropout: f64,
    normalizes_before: bool,
}

impl Layer {
    fn new(tracer: &Tracer, path: String, shape: &Shape, layer: u64) -> Layer {
        let place = place(path, "OPTDecoderLayer");
        let (outer, inner, bias) = (shape.width, shape.intermediate, shape.has_bias);
        let act = place.path("activation_fn");
        Layer {
            self_attn: Attention::new(tracer, place.path("self_attn"), shape, layer),
            activation_fn: Activation::named(tracer, act, &shape.activation),
            self_attn_layer_norm: shape.norm(tracer, place.path("self_attn_layer_norm")),
            fc1: Linear::new(tracer, place.path("fc1"), [outer, inner], bias),
            fc2: Linear::new(tracer, place.path("fc2"), [inner, outer], bias),
            final_layer_norm: shape.norm(tracer, place.path("final_layer_norm")),
            dropout: shape.dropout,
            normalizes_before: shape.norms != Norms::After,
            place,
        }
    }

    fn forward(&self, x: &Tensor, around: Around<'_>) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut residual = x.clone();
            let mut hidden_states = x.clone();
            if self.normalizes_before {
                hidden_states = self.self_attn_layer_norm.forward(&hidden_states);
            }
            hidden_states = self.self_attn.forward(&hidden_states, around);
            hidden_states = functional::dropout(&hidden_states, self.dropout);
            hidden_states = (&residual).add(&hidden_states);
            if !self.normalizes_before {
                hidden_states = self.self_attn_layer_norm.forward(&hidden_states);
            }
            let sizes = [0, 1, 2].map(|dim| Size::from(hidden_states.size(dim)));
            hidden_states = (&hidden_states).reshape(&[Size::REST, sizes[2]]);
            residual = hidden_states.clone();
            if self.normalizes_before {
                hidden_states = self.final_layer_norm.forward(&hidden_states);
            }
            hidden_states = self.fc1.forward(&hidden_states);
            hidden_states = self.activation_fn.forward(&hidden_states);
            hidden_states = self.fc2.forward(&hidden_states);
            hidden_states = functional::dropout(&hidden_states, self.dropout);
            hidden_states = (&residual).add(&hidden_states).view(&sizes);
            if !self.normalizes_before {
                hidden_states = self.final_layer_norm.forward(&hidden_states);
            }
            hidden_states.and_drop(residual)
        })
    }
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
struct Decoder {
    place: ModulePath,
    embed_tokens: Embedding,
    embed_positions: ModulePath,
    positions: Tensor,
    project_out: Option<Linear>,
    project_in: Option<Linear>,
    final_layer_norm: Option<LayerNorm>,
    layers: Vec<Layer>,
}

impl Decoder {
    fn new(tracer: &Tracer, shape: &Shape) -> Decoder {
        let at = place("model.decoder", "OPTDecoder");
        let embed_positions = place(at.path("embed_positions"), "OPTLearnedPositionalEmbedding");
        let words = [shape.vocabulary, shape.word_width];
        let rows = shape.positions.saturating_add(OFFSET);
        let projects = shape.word_width != shape.width;
        let project = |name: &str, sizes: [u64; 2]| {
            projects.then(|| Linear::new(tracer, at.path(name), sizes, false))
        };
        let norm = at.path("final_layer_norm");
        let layer = |layer| Layer::new(tracer, at.path(&format!("layers.{layer}")), shape, layer);
        Decoder {
            embed_tokens: Embedding::new(tracer, at.path("embed_tokens"), words)
                .padding(shape.padding),
            positions: tracer.parameter(&embed_positions.path("weight"), &[rows, shape.width]),
            project_out: project("project_out", [shape.width, shape.word_width]),
            project_in: project("project_in", [shape.word_width, shape.width]),
            final_layer_norm: (shape.norms == Norms::BeforeAndAtTheEnd)
                .then(|| shape.norm(tracer, norm)),
            layers: (0..shape.layers).map(layer).collect(),
            place: at,
            embed_positions,
        }
    }

    fn forward(&self, ids: &Tensor, past: Option<&GenerationInputs<'_>>) -> Tensor {
        let tracer = ids.tracer();
        tracer.in_module(&self.place, || {
            let (batch, seq_len): (Size, Size) = (ids.size(0).into(), ids.size(1).into());
            let input_ids = ids.view(&[Size::REST, seq_len]);
            let mut inputs_embeds = self.embed_tokens.forward(&input_ids);
            let (position_ids, mask, made) = if let Some(past) = past {
                let position_ids = positions(Some(past), &tracer, ids.length(1));
                // Where it is given none, it makes one.
                let made = past
                    .mask_is_missing()
                    .then(|| tracer.ones(&[batch, seq_len], DType::Float32));
                let mask = match &made {
                    Some(tokens) => past.mask_of(tokens, ids),
                    None => past.mask(ids.size(0), ids.length(1), None),
                };
                (position_ids, mask, made)
            } else {
                let ones = || tracer.ones(&[batch, seq_len], DType::Float32);
                let attention_mask = tracer.attending().padding.unwrap_or_else(ones);
                let position_ids = positions_of(&attention_mask);
                let mask = causal_mask_of(&attention_mask);
                (position_ids, mask, Some(attention_mask))
            };
            let pos_embeds = tracer.in_module(&self.embed_positions, || {
                let shifted = (&position_ids).add_number(OFFSET.cast_signed());
                functional::embedding(shifted, &self.positions, None)
            });
            if let Some(project_in) = &self.project_in {
                inputs_embeds = project_in.forward(&inputs_embeds);
            }
            let mut hidden_states = (&inputs_embeds).add((&pos_embeds).to_device());
            for layer in &self.layers {
                hidden_states = layer.forward(&hidden_states, (mask.as_ref(), past));
            }
            if let Some(norm) = &self.final_layer_norm {
                hidden_states = norm.forward(&hidden_states);
            }
            if let Some(project_out) = &self.project_out {
                hidden_states = project_out.forward(&hidden_states);
            }
            drop((input_ids, made, inputs_embeds));
            hidden_states.and_drop((position_ids, mask, pos_embeds))
        })
    }
}
