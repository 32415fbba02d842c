//! `modeling_clip.py`: the part that sees with a classifier, or with the part that reads and the loss over all pairs of a batch.

use super::mlp::new_mlp;
use super::{Images, grid};
use crate::huggingface::attention::{causal_biases_of, joined, sdpa};
use crate::huggingface::prelude::*;
use crate::huggingface::text;
use crate::tracing::functional::{Attention as Settings, cross_entropy};
use crate::tracing::{Attending, Conv};

const CODE: Code = Code::new("clip.modeling_clip", "CLIP");

/// What a config says of the layers of a part.
struct Shape {
    width: u64,
    intermediate: u64,
    layers: u64,
    heads: u64,
    activation: String,
    dropout: f64,
    eps: f64,
    is_causal: bool,
}

impl Shape {
    fn of(config: &Config<'_>, width: u64, is_causal: bool) -> Result<Shape, RequestError> {
        let width = config.size("hidden_size", width)?;
        let heads = config.size("num_attention_heads", if is_causal { 8 } else { 12 })?;
        config.quotient([("hidden_size", width), ("num_attention_heads", heads)])?;
        Ok(Shape {
            width,
            intermediate: config.size("intermediate_size", if is_causal { 2048 } else { 3072 })?,
            layers: config.layers("num_hidden_layers", 12)?,
            heads,
            activation: config.text("hidden_act", "quick_gelu")?.to_owned(),
            dropout: config.number("attention_dropout", 0.0)?,
            eps: config.number("layer_norm_eps", 1e-5)?,
            is_causal,
        })
    }
}

/// A part of the config: configs of old have its values under another name, which count.
fn part<'a>(config: &Config<'a>, name: &str) -> Result<Config<'a>, RequestError> {
    let older = format!("{name}_dict");
    config.part_or_empty(if config.has(&older) { &older } else { name })
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
        let config = &part(&task.config, "vision_config")?;
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
            shape: Shape::of(config, 768, false)?,
        })
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Vision::of(task)?;
    if task.class == "CLIPModel" {
        return build_pairs(task, &config);
    }
    let labels = Labels::of(&task.config, 2)?;
    let tracer = task.tracer(CODE.module);
    let model = new_vision_model(&tracer, &config);
    let head = (labels, config.shape.width);
    let images = config.images;
    images.classify(task, tracer, head, |pixel_values| {
        let outputs = model.forward(pixel_values);
        let [last_hidden_state, _] = &outputs;
        let sequence_output = last_hidden_state.slice_from(1, 1).mean(&[1], false);
        (sequence_output, outputs)
    })
}

/// `CLIPModel` with the loss over all pairs of a batch (`return_loss=True`).
fn build_pairs(task: &Task<'_>, config: &Vision) -> Result<Graph, RequestError> {
    let read = part(&task.config, "text_config")?;
    let words = read.size("vocab_size", 49408)?;
    let positions = read.size("max_position_embeddings", 77)?;
    let seq_len = task.tokens_of("text_config/max_position_embeddings", positions)?;
    let end = read.token("eos_token_id", Some(49407))?.unwrap_or(2);
    let shape = Shape::of(&read, 512, true)?;
    let width = task.config.size("projection_dim", 512)?;
    let tracer = task.tracer(CODE.module);
    let logit_scale = tracer.parameter("logit_scale", &[]);
    let text_model = new_text_model(&tracer, [words, positions], end, &shape);
    let vision_model = new_vision_model(&tracer, config);
    let projection = |name: &str, from: u64| Linear::new(&tracer, name, [from, width], false);
    let visual_projection = projection("visual_projection", config.shape.width);
    let text_projection = projection("text_projection", shape.width);

    let input_ids = text::ids(&tracer, "input_ids", seq_len);
    let pixel_values = config.images.input(&tracer);
    let [seen, pooled] = vision_model.forward(&pixel_values);
    let mut image_embeds = visual_projection.forward(pooled);
    let vision_outputs = (seen, image_embeds.clone());
    let [read, pooled] = text_model.forward(&input_ids);
    let mut text_embeds = text_projection.forward(pooled);
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
fn new_text_model(
    tracer: &Tracer,
    [words, positions]: [u64; 2],
    end: u64,
    shape: &Shape,
) -> FnModule<[Tensor; 2]> {
    let place = CODE.place("text_model", "TextModel");
    let inner = CODE.place(place.path("embeddings"), "TextEmbeddings");
    let embedding =
        |name: &str, rows| Embedding::new(tracer, inner.path(name), [rows, shape.width]);
    let token_embedding = embedding("token_embedding", words);
    let position_embedding = embedding("position_embedding", positions);
    let position_ids = tracer.buffer(&inner.path("position_ids"), &[1, positions], DType::Int64);
    let embeddings = FnModule::new(inner, move |input_ids: &Tensor| {
        let position_ids = (&position_ids).slice(1, 0, input_ids.length(1).cast_signed());
        let inputs_embeds = token_embedding.forward(input_ids);
        let position_embeddings = position_embedding.forward(&position_ids);
        let embeddings = (&inputs_embeds).add(&position_embeddings);
        embeddings.and_drop((position_ids, inputs_embeds, position_embeddings))
    });
    let encoder = new_encoder(tracer, place.path("encoder"), shape);
    let norm = place.path("final_layer_norm");
    let final_layer_norm = LayerNorm::new(tracer, norm, shape.width, shape.eps);
    let end = i64::try_from(end).unwrap_or(i64::MAX);
    FnModule::new(place, move |ids: &Tensor| {
        let tracer = ids.tracer();
        let input_ids = ids.view(&[Size::REST, ids.length(1).into()]);
        let hidden_states = embeddings.forward(&input_ids);
        let before = tracer.attending();
        let mask = before.eager.map(|_| causal_biases_of(&hidden_states));
        tracer.attend(Attending {
            mask: mask.clone(),
            ..before.clone()
        });
        let encoder_outputs = encoder.forward(&hidden_states);
        tracer.attend(before);
        let last_hidden_state = final_layer_norm.forward(&encoder_outputs);
        let texts = tracer.arange_of(last_hidden_state.size(0), DType::Int64);
        let as_int = (&input_ids).to(DType::Int32);
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
fn new_encoder(tracer: &Tracer, path: String, shape: &Shape) -> FnModule {
    let place = CODE.place(path, "Encoder");
    let layers: Vec<FnModule> = (0..shape.layers)
        .map(|layer| new_layer(tracer, place.path(&format!("layers.{layer}")), shape))
        .collect();
    FnModule::new(place, move |inputs_embeds: &Tensor| {
        layers.forward(inputs_embeds)
    })
}

/// `CLIPVisionEmbeddings`.
fn new_embeddings(tracer: &Tracer, path: String, config: &Vision) -> FnModule {
    let place = CODE.place(path, "VisionEmbeddings");
    let class_embedding = tracer.parameter(&place.path("class_embedding"), &[config.shape.width]);
    let positions = config.patches.saturating_add(1);
    let sizes = [config.images.channels, config.shape.width];
    let kernel = [config.patch, config.patch];
    let patch_embedding = place.path("patch_embedding");
    let position_embedding = place.path("position_embedding");
    let patch_embedding =
        Conv::new(tracer, patch_embedding, sizes, &kernel, 1, false).stride(config.patch);
    let position_embedding =
        Embedding::new(tracer, position_embedding, [positions, config.shape.width]);
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
fn new_attention(tracer: &Tracer, path: String, shape: &Shape) -> FnModule {
    let place = CODE.place(path, "Attention");
    let linear = |name: &str| {
        let sizes = [shape.width, shape.width];
        Linear::new(tracer, place.path(name), sizes, true)
    };
    let k_proj = linear("k_proj");
    let v_proj = linear("v_proj");
    let q_proj = linear("q_proj");
    let out_proj = linear("out_proj");
    let head_dim = shape.width / shape.heads;
    let (dropout, causal) = (shape.dropout, shape.is_causal);
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
            causal,
            scale: Some((head_dim as f64).powf(-0.5)),
            ..Settings::default()
        };
        let mut output = joined(sdpa(&queries, &keys, &values, settings));
        output = out_proj.forward(&output);
        output.and_drop((queries, keys, values))
    })
}

/// `CLIPEncoderLayer`.
fn new_layer(tracer: &Tracer, path: String, shape: &Shape) -> FnModule {
    let place = CODE.place(path, "EncoderLayer");
    let norm = |name| LayerNorm::new(tracer, place.path(name), shape.width, shape.eps);
    let mlp = CODE.place(place.path("mlp"), "MLP");
    let self_attn = new_attention(tracer, place.path("self_attn"), shape);
    let norm1 = norm("layer_norm1");
    let mlp = new_mlp(
        tracer,
        mlp,
        [shape.width, shape.intermediate],
        &shape.activation,
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

/// `CLIPVisionModel`.
fn new_vision_model(tracer: &Tracer, config: &Vision) -> FnModule<[Tensor; 2]> {
    let place = CODE.place("vision_model", "VisionModel");
    let norm = |name| {
        LayerNorm::new(
            tracer,
            place.path(name),
            config.shape.width,
            config.shape.eps,
        )
    };
    let embeddings = new_embeddings(tracer, place.path("embeddings"), config);
    let pre_layrnorm = norm("pre_layrnorm");
    let encoder = new_encoder(tracer, place.path("encoder"), &config.shape);
    let post_layernorm = norm("post_layernorm");
    FnModule::new(place, move |pixel_values| {
        let hidden_states = chain(&[&embeddings, &pre_layrnorm], pixel_values);
        let last_hidden_state = encoder.forward(&hidden_states);
        let pooled_output = (&last_hidden_state).select(1, 0);
        let pooled_output = post_layernorm.forward(&pooled_output);
        drop(hidden_states);
        [last_hidden_state, pooled_output]
    })
}
