//! `modeling_clip.py`: the part that sees with a classifier, or with the part that reads and the loss over all pairs of a batch.

use super::mlp::mlp;
use super::{Images, grid};
use crate::huggingface::attention::{causal_biases_of, joined, sdpa};
use crate::huggingface::prelude::*;
use crate::huggingface::text;
use crate::tracing::Attending;
use crate::tracing::functional::{Attention as Settings, cross_entropy};

const CODE: Code = Code::new("clip.modeling_clip", "CLIP");

/// A part of the config, of this class: configs of old have its values under another name, which count.
fn part<'a>(config: &Config<'a>, name: &str, class: &'a str) -> Result<Config<'a>, RequestError> {
    let older = format!("{name}_dict");
    config.part_or_empty(if config.has(&older) { &older } else { name }, class)
}

/// What a config says of the part that sees.
struct Vision {
    images: Images,
    patch: u64,
    patches: u64,
    shape: Shape,
}

impl Vision {
    fn of(task: &Task<'_>) -> Result<Vision, RequestError> {
        let config = &part(&task.config, "vision_config", "CLIPVision")?;
        let images = Images::of_one_size(task, config)?;
        let patch = config.size("patch_size", 32)?;
        let [side, width_in_patches] = grid(config, images.size, [patch, patch])?;
        if side != width_in_patches {
            return Err(config.wrong("image_size", "the model takes square images"));
        }
        Ok(Vision {
            images,
            patch,
            patches: side.saturating_mul(side),
            shape: Shape::of(config)?,
        })
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Vision::of(task)?;
    if task.class == "CLIPModel" {
        return build_pairs(task, &config);
    }
    let labels = Labels::of(&task.config, 2)?;
    let at = task.frame(CODE, "vision_model");
    let head = (labels, config.shape.width);
    let images = config.images;
    images.classify(task, at.tracer().clone(), head, |pixel_values| {
        let outputs = vision_model(&at, &config, pixel_values);
        let [last_hidden_state, _] = &outputs;
        let sequence_output = last_hidden_state.slice_from(1, 1).mean(&[1], false);
        (sequence_output, outputs)
    })
}

/// `CLIPModel` with the loss over all pairs of a batch (`return_loss=True`).
fn build_pairs(task: &Task<'_>, config: &Vision) -> Result<Graph, RequestError> {
    let read = part(&task.config, "text_config", "CLIPText")?;
    let shape = Shape::of(&read)?;
    let seq_len = task.tokens_of("text_config/max_position_embeddings", shape.positions)?;
    let end = read.token("eos_token_id", Some(49407))?.unwrap_or(2);
    let width = task.config.size("projection_dim", 512)?;
    let at = task.frame(CODE, "text_model");
    let tracer = at.tracer().clone();
    let logit_scale = at.parameter("logit_scale", &[]);

    let input_ids = text::ids(&tracer, "input_ids", seq_len);
    let pixel_values = config.images.input(&tracer);
    let [seen, pooled] = vision_model(&at, config, &pixel_values);
    let projection = |name: &str, from, x: Tensor| at.linear(name, [from, width], false, x);
    let mut image_embeds = projection("visual_projection", config.shape.width, pooled);
    let vision_outputs = (seen, image_embeds.clone());
    let [read, pooled] = text_model(&at, end, &shape, &input_ids);
    let mut text_embeds = projection("text_projection", shape.width, pooled);
    let text_outputs = (read, text_embeds.clone());
    let get_vector_norm = |tensor: &Tensor| {
        let square_tensor = tensor.pow(2);
        let sum_tensor = (&square_tensor).sum(&[-1], true);
        let normed_tensor = (&sum_tensor).pow(0.5);
        normed_tensor.and_drop((square_tensor, sum_tensor))
    };
    image_embeds = (&image_embeds).div(get_vector_norm(&image_embeds));
    text_embeds = (&text_embeds).div(get_vector_norm(&text_embeds));
    let mut logits_per_text = (&text_embeds).matmul((&image_embeds).transpose(0, 1));
    logits_per_text = (&logits_per_text).mul((&logit_scale).exp());
    let logits_per_image = (&logits_per_text).transpose(0, 1);
    let contrastive_loss = |logits: &Tensor| {
        let each = tracer.arange_of(logits.size(0), DType::Int64);
        cross_entropy(logits, each)
    };
    let caption_loss = contrastive_loss(&logits_per_text);
    let similarity = (&logits_per_text).transposed();
    let image_loss = contrastive_loss(&similarity);
    drop(similarity);
    let loss = (&caption_loss).add(&image_loss).div_number(2.0);
    drop((caption_loss, image_loss));
    // The fields of `CLIPOutput`.
    drop((logits_per_image, logits_per_text, text_embeds, image_embeds));
    drop((text_outputs, vision_outputs));
    task.finish(tracer, &loss)
}

/// `CLIPTextModel`: the states of all tokens, and that of the token that ends the text.
fn text_model(at: &Frame, end: u64, shape: &Shape, ids: &Tensor) -> [Tensor; 2] {
    at.call("text_model", "TextModel", |at| {
        let tracer = at.tracer();
        let input_ids = ids.view(&[Size::REST, ids.length(1).into()]);
        let hidden_states = at.call("embeddings", "TextEmbeddings", |at| {
            let position_ids = at.buffer("position_ids", &[1, shape.positions], DType::Int64);
            let position_ids = (&position_ids).slice(1, 0, input_ids.length(1).cast_signed());
            let embedding = |name: &str, rows| at.embedding(name, [rows, shape.width]);
            let inputs_embeds = embedding("token_embedding", shape.vocabulary).forward(&input_ids);
            let position_embeddings =
                embedding("position_embedding", shape.positions).forward(&position_ids);
            let embeddings = (&inputs_embeds).add(&position_embeddings);
            embeddings.and_drop((position_ids, inputs_embeds, position_embeddings))
        });
        let before = tracer.attending();
        let mask = before.eager.map(|_| causal_biases_of(&hidden_states));
        tracer.attend(Attending {
            mask: mask.clone(),
            ..before.clone()
        });
        let encoder_outputs = encoder(at, shape, &hidden_states);
        tracer.attend(before);
        let last_hidden_state =
            at.layer_norm("final_layer_norm", shape.width, shape.eps, &encoder_outputs);
        let texts = tracer.arange_of(last_hidden_state.size(0), DType::Int64);
        let as_int = (&input_ids).to(DType::Int32);
        let end = i64::try_from(end).unwrap_or(i64::MAX);
        // The id of old configs, whose tokenizers have no such token: the last word has the highest id.
        let ends = if end == 2 {
            as_int.argmax(-1)
        } else {
            as_int.equal_to_number(end).to(DType::Int32).argmax(-1)
        };
        let pooled_output = (&last_hidden_state).index(&[Some(&texts), Some(&ends)]);
        drop((texts, ends, input_ids, mask, hidden_states, encoder_outputs));
        [last_hidden_state, pooled_output]
    })
}

/// `CLIPEncoder`.
fn encoder(at: &Frame, shape: &Shape, inputs_embeds: &Tensor) -> Tensor {
    at.call("encoder", "Encoder", |at| {
        let layers = ("layers", shape.layers);
        at.call_each(layers, "EncoderLayer", inputs_embeds, |at, x| {
            layer(at, shape, x)
        })
    })
}

/// `CLIPVisionEmbeddings`.
fn embeddings(at: &Frame, config: &Vision, pixel_values: &Tensor) -> Tensor {
    let (width, patch) = (config.shape.width, config.patch);
    let positions = config.patches.saturating_add(1);
    let channels = [config.images.channels, width];
    let patch_embedding = at.conv("patch_embedding", channels, &[patch; 2], false);
    let target_dtype = patch_embedding.weight.dtype();
    let patch_embedding = patch_embedding.stride(patch);
    let mut patch_embeds = patch_embedding.forward(pixel_values.to_dtype_of(target_dtype));
    patch_embeds = (&patch_embeds).flatten(2, -1).transpose(1, 2);
    let batch = pixel_values.size(0);
    let class_embedding = at.parameter("class_embedding", &[width]);
    let class_embeds = (&class_embedding).expand(&[batch.into(), 1.into(), Size::REST]);
    let mut embeddings = at.tracer().cat_of(&[&class_embeds, &patch_embeds], 1);
    let position_embedding = at.embedding("position_embedding", [positions, width]);
    let position_ids = at.buffer("position_ids", &[1, positions], DType::Int64);
    embeddings = (&embeddings).add(position_embedding.forward(&position_ids));
    embeddings.and_drop((patch_embeds, class_embeds))
}

/// `CLIPAttention`.
fn attention(at: &Frame, shape: &Shape, x: &Tensor) -> Tensor {
    at.made(&["k_proj", "v_proj"]);
    let head_dim = shape.head_dim;
    let linear = |name: &str, x: &Tensor| at.linear(name, [shape.width, shape.width], true, x);
    let (batch, tokens) = (x.size(0), x.size(1));
    let heads = [batch.into(), tokens.into(), Size::REST, head_dim.into()];
    let states = ["q_proj", "k_proj", "v_proj"].map(|name| linear(name, x));
    let [queries, keys, values] = states.map(|x| (&x).view(&heads).transpose(1, 2));
    let settings = Settings {
        dropout: shape.attention_dropout,
        // The part that reads has words, and each attends to those before it alone.
        causal: shape.vocabulary > 0,
        scale: Some((head_dim as f64).powf(-0.5)),
        ..Settings::default()
    };
    let mut output = joined(sdpa(&queries, &keys, &values, settings));
    output = linear("out_proj", &output);
    output.and_drop((queries, keys, values))
}

/// `CLIPEncoderLayer`.
fn layer(at: &Frame, shape: &Shape, x: &Tensor) -> Tensor {
    at.made(&["self_attn"]);
    let norm = |name, x: &Tensor| at.layer_norm(name, shape.width, shape.eps, x);
    let sizes = [shape.width, shape.intermediate];
    let mut hidden_states = norm("layer_norm1", x);
    hidden_states = at.call("self_attn", "Attention", |at| {
        attention(at, shape, &hidden_states)
    });
    hidden_states = x.add(&hidden_states);
    let residual = hidden_states.clone();
    at.made(&["mlp"]);
    hidden_states = norm("layer_norm2", &hidden_states);
    hidden_states = at.call("mlp", "MLP", |at| {
        mlp(at, sizes, &shape.activation, &hidden_states)
    });
    hidden_states = (&residual).add(&hidden_states);
    hidden_states.and_drop(residual)
}

/// `CLIPVisionModel`.
fn vision_model(at: &Frame, config: &Vision, pixel_values: &Tensor) -> [Tensor; 2] {
    let shape = &config.shape;
    at.call("vision_model", "VisionModel", |at| {
        let norm = |name, x: &Tensor| at.layer_norm(name, shape.width, shape.eps, x);
        let mut hidden_states = at.call("embeddings", "VisionEmbeddings", |at| {
            embeddings(at, config, pixel_values)
        });
        hidden_states = norm("pre_layrnorm", &hidden_states);
        let last_hidden_state = encoder(at, shape, &hidden_states);
        let first = (&last_hidden_state).select(1, 0);
        let pooled_output = norm("post_layernorm", &first);
        drop(hidden_states);
        [last_hidden_state, pooled_output]
    })
}
