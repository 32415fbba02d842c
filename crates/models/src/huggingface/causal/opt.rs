//! OPT: `modeling_opt.py`.

use crate::huggingface::attention::{causal_mask_of, joined, sdpa};
use crate::huggingface::generation::{GenerationInputs, GenerationTraits, generated, positions};
use crate::huggingface::prelude::*;
use crate::huggingface::text;
use crate::tracing::functional::Attention as Settings;

/// The first rows of the embedding of positions, which stand for no position.
const OFFSET: u64 = 2;

/// What `torch.nn.LayerNorm` adds to variances by default.
const EPS: f64 = 1e-5;

const CODE: Code = Code::new("opt.modeling_opt", "OPT");

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
    let tracer = task.tracer(CODE.module);
    let (decoder, words) = new_decoder(&tracer, &shape);
    if task.class == "OPTForSequenceClassification" {
        let labels = Labels::of(&task.config, 2)?;
        let score = Linear::new(&tracer, "score", [shape.word_width, labels.count], false);
        let model = CODE.place("model", "Model");
        let forward = |ids: &Tensor| ids.tracer().in_module(&model, || decoder(ids, None));
        let padding = shape.padding;
        return text::classes_of_last_token(
            (task, seq_len, padding),
            tracer,
            forward,
            (&score, labels),
        );
    }
    let lm_head = text::lm_head(task, &words, true)?;
    if let Some(generation) = &task.sizes.generation {
        let forward = |ids: &Tensor, past: &GenerationInputs<'_>| decoder(ids, Some(past));
        let traits = GenerationTraits {
            tokens: [true; 3],
            ..GenerationTraits::plain(shape.layers)
        };
        let how = (generation, &traits);
        return generated(task, tracer, how, forward, |x| lm_head.forward(x));
    }
    let forward = |ids: &Tensor| decoder(ids, None);
    let head = (&lm_head, shape.vocabulary);
    text::next_token(task, tracer, seq_len, forward, head)
}

/// What a layer is given besides its states: a mask, and what is kept of earlier tokens.
type Around<'a> = (Option<&'a Tensor>, Option<&'a GenerationInputs<'a>>);

/// `OPTAttention`.
fn new_attention(
    tracer: &Tracer,
    path: String,
    shape: &Shape,
    layer: u64,
) -> impl Fn(&Tensor, Around<'_>) -> Tensor + use<> {
    let place = CODE.place(path, "Attention");
    let sizes = [shape.width, shape.width];
    let linear = |name: &str| Linear::new(tracer, place.path(name), sizes, shape.has_bias);
    let k_proj = linear("k_proj");
    let v_proj = linear("v_proj");
    let q_proj = linear("q_proj");
    let out_proj = linear("out_proj");
    let heads = shape.heads;
    let head_dim = shape.head_dim;
    let dropout = shape.attention_dropout;
    let layer = usize::try_from(layer).unwrap_or(usize::MAX);
    move |x: &Tensor, (mask, past): Around<'_>| {
        x.tracer().in_module(&place, || {
            let heads = [x.size(0).into(), Size::REST, heads.into(), head_dim.into()];
            let scaling = (head_dim as f64).powf(-0.5);
            let mut query = q_proj.forward(x).mul_number(scaling);
            query = (&query).view(&heads).transpose(1, 2);
            let mut key = k_proj.forward(x);
            let mut value = v_proj.forward(x);
            key = (&key).view(&heads).transpose(1, 2);
            value = (&value).view(&heads).transpose(1, 2);
            if let Some(past) = past {
                [key, value] = past.cache.update(layer, [&key, &value]);
            }
            let settings = Settings::of_decoder(x, mask, [dropout, 1.0]);
            let mut output = joined(sdpa(&query, &key, &value, settings));
            output = out_proj.forward(&output);
            output.and_drop((query, key, value))
        })
    }
}

/// `OPTDecoderLayer`.
fn new_layer(
    tracer: &Tracer,
    path: String,
    shape: &Shape,
    layer: u64,
) -> impl Fn(&Tensor, Around<'_>) -> Tensor + use<> {
    let place = CODE.place(path, "DecoderLayer");
    let (outer, inner, bias) = (shape.width, shape.intermediate, shape.has_bias);
    let act = place.path("activation_fn");
    let self_attn = new_attention(tracer, place.path("self_attn"), shape, layer);
    let activation_fn = Activation::named(tracer, act, &shape.activation);
    let self_attn_layer_norm = shape.norm(tracer, place.path("self_attn_layer_norm"));
    let fc1 = Linear::new(tracer, place.path("fc1"), [outer, inner], bias);
    let fc2 = Linear::new(tracer, place.path("fc2"), [inner, outer], bias);
    let final_layer_norm = shape.norm(tracer, place.path("final_layer_norm"));
    let p = shape.dropout;
    let normalizes_before = shape.norms != Norms::After;
    move |x: &Tensor, around: Around<'_>| {
        x.tracer().in_module(&place, || {
            let mut residual = x.clone();
            let mut hidden_states = x.clone();
            if normalizes_before {
                hidden_states = self_attn_layer_norm.forward(&hidden_states);
            }
            hidden_states = self_attn(&hidden_states, around);
            hidden_states = functional::dropout(&hidden_states, p);
            hidden_states = (&residual).add(&hidden_states);
            if !normalizes_before {
                hidden_states = self_attn_layer_norm.forward(&hidden_states);
            }
            let sizes = [0, 1, 2].map(|dim| Size::from(hidden_states.size(dim)));
            hidden_states = (&hidden_states).reshape(&[Size::REST, sizes[2]]);
            residual = hidden_states.clone();
            if normalizes_before {
                hidden_states = final_layer_norm.forward(&hidden_states);
            }
            hidden_states = chain(&[&fc1, &activation_fn, &fc2], hidden_states);
            hidden_states = functional::dropout(&hidden_states, p);
            hidden_states = (&residual).add(&hidden_states).view(&sizes);
            if !normalizes_before {
                hidden_states = final_layer_norm.forward(&hidden_states);
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
fn new_decoder(
    tracer: &Tracer,
    shape: &Shape,
) -> (
    impl Fn(&Tensor, Option<&GenerationInputs<'_>>) -> Tensor + use<>,
    Tensor,
) {
    let at = CODE.place("model.decoder", "Decoder");
    let embed_positions = CODE.place(at.path("embed_positions"), "LearnedPositionalEmbedding");
    let words = [shape.vocabulary, shape.word_width];
    let rows = shape.positions.saturating_add(OFFSET);
    let projects = shape.word_width != shape.width;
    let project = |name: &str, sizes: [u64; 2]| {
        projects.then(|| Linear::new(tracer, at.path(name), sizes, false))
    };
    let norm = at.path("final_layer_norm");
    let layer = |layer| new_layer(tracer, at.path(&format!("layers.{layer}")), shape, layer);
    let embed_tokens =
        Embedding::new(tracer, at.path("embed_tokens"), words).padding(shape.padding);
    let positions_layer = tracer.parameter(&embed_positions.path("weight"), &[rows, shape.width]);
    let project_out = project("project_out", [shape.width, shape.word_width]);
    let project_in = project("project_in", [shape.word_width, shape.width]);
    let final_layer_norm =
        (shape.norms == Norms::BeforeAndAtTheEnd).then(|| shape.norm(tracer, norm));
    let layers: Vec<_> = (0..shape.layers).map(layer).collect();
    let place = at;

    let weight = embed_tokens.weight.clone();
    let module = move |ids: &Tensor, past: Option<&GenerationInputs<'_>>| {
        let tracer = ids.tracer();
        tracer.in_module(&place, || {
            let (batch, seq_len): (Size, Size) = (ids.size(0).into(), ids.size(1).into());
            let input_ids = ids.view(&[Size::REST, seq_len]);
            let mut inputs_embeds = embed_tokens.forward(&input_ids);
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
            let pos_embeds = tracer.in_module(&embed_positions, || {
                let shifted = (&position_ids).add_number(OFFSET.cast_signed());
                functional::embedding(shifted, &positions_layer, None)
            });
            if let Some(project_in) = &project_in {
                inputs_embeds = project_in.forward(&inputs_embeds);
            }
            let mut hidden_states = (&inputs_embeds).add((&pos_embeds).to_device());
            for layer in &layers {
                hidden_states = layer(&hidden_states, (mask.as_ref(), past));
            }
            if let Some(norm) = &final_layer_norm {
                hidden_states = norm.forward(&hidden_states);
            }
            if let Some(project_out) = &project_out {
                hidden_states = project_out.forward(&hidden_states);
            }
            drop((input_ids, made, inputs_embeds));
            hidden_states.and_drop((position_ids, mask, pos_embeds))
        })
    };
    (module, weight)
}
