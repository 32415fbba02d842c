//! `modeling_clip.py`: the part that sees, with a classifier.

use super::mlp::new_mlp;
use super::{Images, grid};
use crate::huggingface::attention::sdpa;
use crate::huggingface::prelude::*;
use crate::tracing::Conv;
use crate::tracing::functional::Attention as Settings;

/// The classes that are built here.
pub(in crate::huggingface) const CLASSES: &[&str] = &["CLIPForImageClassification"];

const CODE: Code = Code::new("clip.modeling_clip", "CLIP");

/// What a config says of the part that sees.
struct Vision {
    images: Images,
    patch: u64,
    patches: u64,
    width: u64,
    intermediate: u64,
    layers: u64,
    heads: u64,
    activation: String,
    dropout: f64,
    eps: f64,
}

impl Vision {
    fn of(task: &Task<'_>) -> Result<Vision, RequestError> {
        // Configs of old have the values under another name, which count.
        let older = "vision_config_dict";
        let part = if task.config.has(older) {
            older
        } else {
            "vision_config"
        };
        let config: &Config<'_> = &task.config.part_or_empty(part)?;
        let images = Images::of_one_size(task, config)?;
        let patch = config.size("patch_size", 32)?;
        let [side, width_in_patches] = grid(config, images.size, [patch, patch])?;
        if side != width_in_patches {
            return Err(RequestError::at(
                config.at("image_size"),
                "the model takes square images",
            ));
        }
        let width = config.size("hidden_size", 768)?;
        let heads = config.size("num_attention_heads", 12)?;
        config.quotient([("hidden_size", width), ("num_attention_heads", heads)])?;
        Ok(Vision {
            images,
            patch,
            patches: side.saturating_mul(side),
            width,
            intermediate: config.size("intermediate_size", 3072)?,
            layers: config.layers("num_hidden_layers", 12)?,
            heads,
            activation: config.text("hidden_act", "quick_gelu")?.to_owned(),
            dropout: config.number("attention_dropout", 0.0)?,
            eps: config.number("layer_norm_eps", 1e-5)?,
        })
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Vision::of(task)?;
    let labels = Labels::of(&task.config, 2)?;
    let tracer = task.tracer(CODE.module);
    let model = new_model(&tracer, &config);
    let head = (labels, config.width);
    let images = config.images;
    images.classify(task, tracer, head, |pixel_values| {
        let outputs = model.forward(pixel_values);
        let [last_hidden_state, _] = &outputs;
        let sequence_output = last_hidden_state.slice_from(1, 1).mean(&[1], false);
        (sequence_output, outputs)
    })
}

/// `CLIPVisionEmbeddings`.
fn new_embeddings(tracer: &Tracer, path: String, config: &Vision) -> FnModule {
    let place = CODE.place(path, "VisionEmbeddings");
    let class_embedding = tracer.parameter(&place.path("class_embedding"), &[config.width]);
    let positions = config.patches.saturating_add(1);
    let sizes = [config.images.channels, config.width];
    let kernel = [config.patch, config.patch];
    let patch_embedding = place.path("patch_embedding");
    let position_embedding = place.path("position_embedding");
    let patch_embedding =
        Conv::new(tracer, patch_embedding, sizes, &kernel, 1, false).stride(config.patch);
    let position_embedding = Embedding::new(tracer, position_embedding, [positions, config.width]);
    let position_ids = tracer.buffer(&place.path("position_ids"), &[1, positions], DType::Int64);
    FnModule::new(place, move |pixel_values| {
        let tracer = pixel_values.tracer();
        let target_dtype = patch_embedding.weight.dtype();
        let mut patch_embeds = patch_embedding.forward(pixel_values.to_dtype_of(target_dtype));
        patch_embeds = (&patch_embeds).flatten(2, -1).transpose(1, 2);
        let batch = pixel_values.size(0);
        let class_embeds = (&class_embedding).expand(&[batch.into(), 1.into(), Size::REST]);
        let mut embeddings = tracer.cat_of(&[&class_embeds, &patch_embeds], 1);
        embeddings = (&embeddings).add(position_embedding.forward(&position_ids));
        embeddings.and_drop((patch_embeds, class_embeds))
    })
}

/// `CLIPAttention`.
fn new_attention(tracer: &Tracer, path: String, config: &Vision) -> FnModule {
    let place = CODE.place(path, "Attention");
    let linear = |name: &str| {
        let sizes = [config.width, config.width];
        Linear::new(tracer, place.path(name), sizes, true)
    };
    let k_proj = linear("k_proj");
    let v_proj = linear("v_proj");
    let q_proj = linear("q_proj");
    let out_proj = linear("out_proj");
    let head_dim = config.width / config.heads;
    let dropout = config.dropout;
    FnModule::new(place, move |x| {
        let (batch, tokens) = (x.size(0), x.size(1));
        let heads = [batch.into(), tokens.into(), Size::REST, head_dim.into()];
        let mut queries = q_proj.forward(x);
        let mut keys = k_proj.forward(x);
        let mut values = v_proj.forward(x);
        queries = (&queries).view(&heads).transpose(1, 2);
        keys = (&keys).view(&heads).transpose(1, 2);
        values = (&values).view(&heads).transpose(1, 2);
        let settings = Settings {
            dropout,
            scale: Some((head_dim as f64).powf(-0.5)),
            ..Settings::default()
        };
        let mut output = sdpa(&queries, &keys, &values, settings);
        output = (&output)
            .reshape(&[batch.into(), tokens.into(), Size::REST])
            .contiguous();
        output = out_proj.forward(&output);
        output.and_drop((queries, keys, values))
    })
}

/// `CLIPEncoderLayer`.
fn new_layer(tracer: &Tracer, path: String, config: &Vision) -> FnModule {
    let place = CODE.place(path, "EncoderLayer");
    let norm = |name| LayerNorm::new(tracer, place.path(name), config.width, config.eps);
    let mlp = CODE.place(place.path("mlp"), "MLP");
    let self_attn = new_attention(tracer, place.path("self_attn"), config);
    let norm1 = norm("layer_norm1");
    let mlp = new_mlp(
        tracer,
        mlp,
        [config.width, config.intermediate],
        &config.activation,
    );
    let norm2 = norm("layer_norm2");
    FnModule::new(place, move |x| {
        let mut hidden_states = norm1.forward(x);
        hidden_states = self_attn.forward(&hidden_states);
        hidden_states = x.add(&hidden_states);
        let residual = hidden_states.clone();
        hidden_states = norm2.forward(&hidden_states);
        hidden_states = mlp.forward(&hidden_states);
        hidden_states = (&residual).add(&hidden_states);
        hidden_states.and_drop(residual)
    })
}

/// `CLIPVisionModel` with its `CLIPEncoder`.
fn new_model(tracer: &Tracer, config: &Vision) -> FnModule<[Tensor; 2]> {
    let place = CODE.place("vision_model", "VisionModel");
    let encoder = CODE.place(place.path("encoder"), "Encoder");
    let norm = |name| LayerNorm::new(tracer, place.path(name), config.width, config.eps);
    let embeddings = new_embeddings(tracer, place.path("embeddings"), config);
    let pre_layrnorm = norm("pre_layrnorm");
    let layers: Vec<FnModule> = (0..config.layers)
        .map(|layer| new_layer(tracer, encoder.path(&format!("layers.{layer}")), config))
        .collect();
    let post_layernorm = norm("post_layernorm");
    FnModule::new(place, move |pixel_values| {
        let tracer = pixel_values.tracer();
        let mut hidden_states = embeddings.forward(pixel_values);
        hidden_states = pre_layrnorm.forward(&hidden_states);
        let last_hidden_state = tracer.in_module(&encoder, || {
            let mut inner = hidden_states.clone();
            for layer in &layers {
                inner = layer.forward(&inner);
            }
            inner
        });
        let pooled_output = (&last_hidden_state).select(1, 0);
        let pooled_output = post_layernorm.forward(&pooled_output);
        drop(hidden_states);
        [last_hidden_state, pooled_output]
    })
}
