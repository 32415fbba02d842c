//! `modeling_dinov2.py`.

use super::{Images, USUAL_SIZE, drop_path, grid};
use crate::huggingface::attention::sdpa;
use crate::huggingface::prelude::*;
use crate::tracing::functional::Attention as Settings;

const CODE: Code = Code::new("dinov2.modeling_dinov2", "Dinov2");

/// What a config says of such a model.
struct Dino {
    shape: Shape,
    images: Images,
    patch: [u64; 2],
    /// Patches of an image in height and width.
    patches: [u64; 2],
    /// Patches in height and in width for which there are positions.
    side: u64,
    intermediate: u64,
    drop_path: f64,
    qkv_bias: bool,
    is_gated: bool,
    has_mask_token: bool,
}

impl Dino {
    fn of(task: &Task<'_>) -> Result<Dino, RequestError> {
        let config = &task.config;
        let images = Images::of_any_size(task, config)?;
        let patch = config.pair("patch_size", 14)?;
        let [side, across] = grid(config, config.pair("image_size", USUAL_SIZE)?, patch)?;
        if side != across {
            return Err(config.wrong("image_size", "the model has positions for square images; `--image-size` asks about images of another shape",
            ));
        }
        let shape = Shape::of(config)?;
        let width = shape.width;
        let is_gated = config.flag("use_swiglu_ffn", false)?;
        let inner = truncated(width as f64 * config.mlp_ratio(width)?);
        Ok(Dino {
            shape,
            images,
            patches: grid(config, images.size, patch)?,
            patch,
            side,
            intermediate: if is_gated {
                truncated(inner.saturating_mul(2) as f64 / 3.0).saturating_add(7) / 8 * 8
            } else {
                inner
            },
            drop_path: config.number("drop_path_rate", 0.0)?,
            qkv_bias: config.flag("qkv_bias", true)?,
            is_gated,
            has_mask_token: config.flag("use_mask_token", true)?,
        })
    }
}

/// `int(x)`
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`int()` truncates, and what does not fit is too large for any device"
)]
fn truncated(number: f64) -> u64 {
    number as u64
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Dino::of(task)?;
    let labels = Labels::of(&task.config, 2)?;
    let at = task.frame(CODE, "dinov2");
    let head = (labels, config.shape.width.saturating_mul(2));
    let images = config.images;
    images.classify(task, at.tracer().clone(), head, |pixel_values| {
        let outputs = model(&at, &config, pixel_values);
        let sequence_output = outputs.clone();
        let cls_token = (&sequence_output).select(1, 0);
        let patch_tokens = (&sequence_output).slice_from(1, 1);
        let mean = (&patch_tokens).mean(&[1], false);
        let linear_input = outputs.tracer().cat_of(&[&cls_token, &mean], 1);
        drop(mean);
        (
            linear_input,
            (outputs, sequence_output, cls_token, patch_tokens),
        )
    })
}

/// `Dinov2Embeddings`.
fn embeddings(at: &Frame, config: &Dino, pixel_values: &Tensor) -> Tensor {
    let (width, side) = (config.shape.width, config.side);
    let cls_token = at.parameter("cls_token", &[1, 1, width]);
    if config.has_mask_token {
        at.parameter("mask_token", &[1, width]);
    }
    let positions = side.saturating_mul(side).saturating_add(1);
    let positions = at.parameter("position_embeddings", &[1, positions, width]);
    let channels = [config.images.channels, width];
    let patches = at.below("patch_embeddings");
    let projection = patches.conv("projection", channels, &config.patch, true);
    let projection = projection.strides(&config.patch);
    let batch = pixel_values.size(0);
    let pixel_values = pixel_values.to_dtype_of(projection.weight.dtype());
    let mut embeddings = at.call("patch_embeddings", "PatchEmbeddings", |_| {
        let patches = projection.forward(&pixel_values);
        patches.flatten(2, -1).transpose(1, 2)
    });
    drop(pixel_values);
    let cls_tokens = (&cls_token).expand(&[batch.into(), Size::REST, Size::REST]);
    embeddings = at.tracer().cat_of(&[&cls_tokens, &embeddings], 1);
    embeddings = if config.patches == [side; 2] {
        (&embeddings).add(&positions)
    } else {
        (&embeddings).add(interpolated(&positions, side, config.patches))
    };
    at.dropout("dropout", config.shape.dropout, embeddings)
}

/// `interpolate_pos_encoding`.
fn interpolated(positions: &Tensor, side: u64, [height, width]: [u64; 2]) -> Tensor {
    let tracer = positions.tracer();
    let dim = positions.size(2);
    let class_pos_embed = positions.slice(1, 0, 1);
    let mut patch_pos_embed = positions.slice_from(1, 1);
    patch_pos_embed = (&patch_pos_embed).reshape(&[1.into(), side.into(), side.into(), dim.into()]);
    patch_pos_embed = (&patch_pos_embed).permute(&[0, 3, 1, 2]);
    let target_dtype = patch_pos_embed.dtype();
    let wide = (&patch_pos_embed).to(DType::Float32);
    let resized = tracer.call(
        "aten.upsample_bicubic2d.vec",
        &[
            ("input", Argument::Tensor(&wide)),
            (
                "output_size",
                Argument::Sizes(vec![height.into(), width.into()]),
            ),
            ("align_corners", Argument::Bool(false)),
            ("scale_factors", Argument::None),
        ],
    );
    drop(wide);
    patch_pos_embed = resized.to_dtype_of(target_dtype);
    patch_pos_embed = (&patch_pos_embed).permute(&[0, 2, 3, 1]);
    patch_pos_embed = (&patch_pos_embed).view(&[1.into(), Size::REST, dim.into()]);
    let all = tracer.cat_of(&[&class_pos_embed, &patch_pos_embed], 1);
    all.and_drop((class_pos_embed, patch_pos_embed))
}

/// `Dinov2Attention` with its `Dinov2SelfAttention` and `Dinov2SelfOutput`.
fn attention(at: &Frame, config: &Dino, x: &Tensor) -> Tensor {
    let sizes = [config.shape.width, config.shape.width];
    let (heads, head_dim) = (config.shape.heads, config.shape.head_dim);
    let self_attn_output = at.call("attention", "SelfAttention", |at| {
        at.made(&["query"]);
        let batch = x.size(0);
        let shape = [batch.into(), Size::REST, heads.into(), head_dim.into()];
        let [keys, values, queries] = ["key", "value", "query"].map(|name| {
            let states = at.linear(name, sizes, config.qkv_bias, x);
            states.view(&shape).transpose(1, 2)
        });
        let settings = Settings {
            dropout: config.shape.attention_dropout,
            scale: Some((head_dim as f64).powf(-0.5)),
            ..Settings::default()
        };
        let mut context = sdpa(&queries, &keys, &values, settings);
        let all_heads = heads.saturating_mul(head_dim);
        context = (&context).reshape(&[batch.into(), x.size(1).into(), all_heads.into()]);
        context.and_drop((keys, values, queries))
    });
    let output = at.call("output", "SelfOutput", |at| {
        let hidden_states = at.linear("dense", sizes, true, &self_attn_output);
        at.dropout("dropout", config.shape.dropout, hidden_states)
    });
    output.and_drop(self_attn_output)
}

/// `Dinov2MLP` or `Dinov2SwiGLUFFN`.
fn mlp(at: &Frame, config: &Dino, x: &Tensor) -> Tensor {
    let (inner, outer) = (config.intermediate, config.shape.width);
    if config.is_gated {
        return at.call("mlp", "SwiGLUFFN", |at| {
            let hidden_state = at.linear("weights_in", [outer, inner.saturating_mul(2)], true, x);
            let halves = (&hidden_state).chunk(2, -1);
            let hidden = (&halves[0]).silu().mul(&halves[1]);
            let made = at.linear("weights_out", [inner, outer], true, &hidden);
            made.and_drop((hidden_state, halves, hidden))
        });
    }
    at.call("mlp", "MLP", |at| {
        let mut hidden_state = at.linear("fc1", [outer, inner], true, x);
        hidden_state = at.activation("activation", &config.shape.activation, hidden_state);
        at.linear("fc2", [inner, outer], true, hidden_state)
    })
}

/// `Dinov2Layer`.
fn layer(at: &Frame, config: &Dino, x: &Tensor) -> Tensor {
    let norm = |name, x: &Tensor| at.layer_norm(name, config.shape.width, config.shape.eps, x);
    // `Dinov2LayerScale`.
    let scale = |name, x: Tensor| {
        at.call(name, "LayerScale", |at| {
            (&x).mul(at.parameter("lambda1", &[config.shape.width]))
        })
        .and_drop(x)
    };
    let drop_path = |x: &Tensor| drop_path(at, config.drop_path, x);
    let normed = norm("norm1", x);
    let mut attended = at.call("attention", "Attention", |at| {
        attention(at, config, &normed)
    });
    attended = scale("layer_scale1", attended);
    let hidden_states = drop_path(&attended).add(x);
    let mut layer_output = norm("norm2", &hidden_states);
    layer_output = mlp(at, config, &layer_output);
    layer_output = scale("layer_scale2", layer_output);
    layer_output = drop_path(&layer_output).add(&hidden_states);
    layer_output.and_drop((hidden_states, normed, attended))
}

/// `Dinov2Model` with its `Dinov2Encoder`.
fn model(at: &Frame, config: &Dino, pixel_values: &Tensor) -> Tensor {
    at.call("dinov2", "Model", |at| {
        let embedding_output = at.call("embeddings", "Embeddings", |at| {
            embeddings(at, config, pixel_values)
        });
        let encoder_outputs = at.call("encoder", "Encoder", |at| {
            let layers = ("layer", config.shape.layers);
            at.call_each(layers, "Layer", &embedding_output, |at, x| {
                layer(at, config, x)
            })
        });
        let sequence_output = at.layer_norm(
            "layernorm",
            config.shape.width,
            config.shape.eps,
            &encoder_outputs,
        );
        let pooled_output = (&sequence_output).select(1, 0);
        sequence_output.and_drop((embedding_output, encoder_outputs, pooled_output))
    })
}
