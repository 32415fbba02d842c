//! `modeling_dinov2.py`.

use super::{DropPath, Images, USUAL_SIZE, grid};
use crate::huggingface::attention::sdpa;
use crate::huggingface::prelude::*;
use crate::tracing::Conv;
use crate::tracing::functional::Attention as Settings;

const CODE: Code = Code::new("dinov2.modeling_dinov2", "Dinov2");

/// What a config says of such a model.
struct Dino {
    images: Images,
    patch: [u64; 2],
    /// Patches of an image in height and width.
    patches: [u64; 2],
    /// Patches in height and in width for which there are positions.
    side: u64,
    width: u64,
    intermediate: u64,
    layers: u64,
    heads: u64,
    activation: String,
    dropout: f64,
    attention_dropout: f64,
    drop_path: f64,
    eps: f64,
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
        let width = config.size("hidden_size", 768)?;
        let heads = config.size("num_attention_heads", 12)?;
        config.quotient([("hidden_size", width), ("num_attention_heads", heads)])?;
        let is_gated = config.flag("use_swiglu_ffn", false)?;
        let inner = truncated(width as f64 * config.mlp_ratio(width)?);
        Ok(Dino {
            images,
            patches: grid(config, images.size, patch)?,
            patch,
            side,
            width,
            intermediate: if is_gated {
                truncated(inner.saturating_mul(2) as f64 / 3.0).saturating_add(7) / 8 * 8
            } else {
                inner
            },
            layers: config.layers("num_hidden_layers", 12)?,
            heads,
            activation: config.text("hidden_act", "gelu")?.to_owned(),
            dropout: config.number("hidden_dropout_prob", 0.0)?,
            attention_dropout: config.number("attention_probs_dropout_prob", 0.0)?,
            drop_path: config.number("drop_path_rate", 0.0)?,
            eps: config.number("layer_norm_eps", 1e-6)?,
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
    let tracer = task.tracer(CODE.module);
    let model = new_model(&tracer, &config);
    let head = (labels, config.width.saturating_mul(2));
    let images = config.images;
    images.classify(task, tracer, head, |pixel_values| {
        let outputs = model.forward(pixel_values);
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
struct Embeddings {
    place: ModulePath,
    cls_token: Tensor,
    patches: ModulePath,
    projection: Conv,
    positions: Tensor,
    /// Patches for which there are positions and of an image, where they differ.
    interpolated: Option<(u64, [u64; 2])>,
    dropout: Dropout,
}

impl Embeddings {
    fn new(tracer: &Tracer, path: String, config: &Dino) -> Embeddings {
        let place = CODE.place(path, "Embeddings");
        let cls_token = tracer.parameter(&place.path("cls_token"), &[1, 1, config.width]);
        if config.has_mask_token {
            tracer.parameter(&place.path("mask_token"), &[1, config.width]);
        }
        let positions = config.side.saturating_mul(config.side).saturating_add(1);
        let is_interpolated = config.patches != [config.side; 2];
        let position_embeddings = tracer.parameter(
            &place.path("position_embeddings"),
            &[1, positions, config.width],
        );
        let patches = CODE.place(place.path("patch_embeddings"), "PatchEmbeddings");
        let sizes = [config.images.channels, config.width];
        let projection = patches.path("projection");
        Embeddings {
            cls_token,
            positions: position_embeddings,
            interpolated: is_interpolated.then_some((config.side, config.patches)),
            projection: Conv::new(tracer, projection, sizes, &config.patch, 1, true)
                .strides(&config.patch),
            patches,
            dropout: Dropout::new(place.path("dropout"), config.dropout),
            place,
        }
    }

    fn forward(&self, pixel_values: &Tensor) -> Tensor {
        let tracer = pixel_values.tracer();
        tracer.in_module(&self.place, || {
            let batch = pixel_values.size(0);
            let target_dtype = self.projection.weight.dtype();
            let pixel_values = pixel_values.to_dtype_of(target_dtype);
            let mut embeddings = tracer.in_module(&self.patches, || {
                let patches = self.projection.forward(&pixel_values);
                patches.flatten(2, -1).transpose(1, 2)
            });
            drop(pixel_values);
            let cls_tokens = (&self.cls_token).expand(&[batch.into(), Size::REST, Size::REST]);
            embeddings = tracer.cat_of(&[&cls_tokens, &embeddings], 1);
            embeddings = match self.interpolated {
                None => (&embeddings).add(&self.positions),
                Some((side, patches)) => (&embeddings).add(self.interpolated(side, patches)),
            };
            embeddings = self.dropout.forward(&embeddings);
            embeddings
        })
    }

    /// `interpolate_pos_encoding`.
    fn interpolated(&self, side: u64, [height, width]: [u64; 2]) -> Tensor {
        let tracer = self.positions.tracer();
        let dim = self.positions.size(2);
        let class_pos_embed = (&self.positions).slice(1, 0, 1);
        let mut patch_pos_embed = (&self.positions).slice_from(1, 1);
        patch_pos_embed =
            (&patch_pos_embed).reshape(&[1.into(), side.into(), side.into(), dim.into()]);
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
}

/// `Dinov2Attention` with its `Dinov2SelfAttention` and `Dinov2SelfOutput`.
fn new_attention(tracer: &Tracer, path: String, config: &Dino) -> FnModule {
    let place = CODE.place(path, "Attention");
    let attention = CODE.place(place.path("attention"), "SelfAttention");
    let output = CODE.place(place.path("output"), "SelfOutput");
    let sizes = [config.width, config.width];
    let linear = |name: &str| Linear::new(tracer, attention.path(name), sizes, config.qkv_bias);
    let query = linear("query");
    let key = linear("key");
    let value = linear("value");
    let dense = Linear::new(tracer, output.path("dense"), sizes, true);
    let output_dropout = Dropout::new(output.path("dropout"), config.dropout);
    let (heads, head_dim) = (config.heads, config.width / config.heads);
    let dropout = config.attention_dropout;
    let attend = FnModule::new(attention, move |x| {
        let batch = x.size(0);
        let shape = [batch.into(), Size::REST, heads.into(), head_dim.into()];
        let keys = key.forward(x).view(&shape).transpose(1, 2);
        let values = value.forward(x).view(&shape).transpose(1, 2);
        let queries = query.forward(x).view(&shape).transpose(1, 2);
        let settings = Settings {
            dropout,
            scale: Some((head_dim as f64).powf(-0.5)),
            ..Settings::default()
        };
        let mut context = sdpa(&queries, &keys, &values, settings);
        let all_heads = heads.saturating_mul(head_dim);
        context = (&context).reshape(&[batch.into(), x.size(1).into(), all_heads.into()]);
        context.and_drop((keys, values, queries))
    });
    let output = FnModule::new(output, move |self_attn_output| {
        let mut hidden_states = dense.forward(self_attn_output);
        hidden_states = output_dropout.forward(&hidden_states);
        hidden_states
    });
    FnModule::new(place, move |x| {
        let self_attn_output = attend.forward(x);
        let output = output.forward(&self_attn_output);
        output.and_drop(self_attn_output)
    })
}

/// `Dinov2LayerScale`.
fn new_scale(tracer: &Tracer, path: String, width: u64) -> FnModule {
    let place = CODE.place(path, "LayerScale");
    let lambda = tracer.parameter(&place.path("lambda1"), &[width]);
    FnModule::new(place, move |x| x.mul(&lambda))
}

/// `Dinov2MLP` or `Dinov2SwiGLUFFN`.
fn new_mlp(tracer: &Tracer, path: String, config: &Dino) -> FnModule {
    let (inner, outer) = (config.intermediate, config.width);
    if config.is_gated {
        let place = CODE.place(path, "SwiGLUFFN");
        let wide = [outer, inner.saturating_mul(2)];
        let weights_in = Linear::new(tracer, place.path("weights_in"), wide, true);
        let narrow = [inner, outer];
        let weights_out = Linear::new(tracer, place.path("weights_out"), narrow, true);
        return FnModule::new(place, move |x| {
            let hidden_state = weights_in.forward(x);
            let halves = (&hidden_state).chunk(2, -1);
            let hidden = (&halves[0]).silu().mul(&halves[1]);
            let made = weights_out.forward(&hidden);
            made.and_drop((hidden_state, halves, hidden))
        });
    }
    let place = CODE.place(path, "MLP");
    let activation = place.path("activation");
    let fc1 = Linear::new(tracer, place.path("fc1"), [outer, inner], true);
    let activation = Activation::named(tracer, activation, &config.activation);
    let fc2 = Linear::new(tracer, place.path("fc2"), [inner, outer], true);
    FnModule::new(place, move |x| chain(&[&fc1, &activation, &fc2], x))
}

/// `Dinov2Layer`.
fn new_layer(tracer: &Tracer, path: String, config: &Dino) -> FnModule {
    let place = CODE.place(path, "Layer");
    let norm = |name| LayerNorm::new(tracer, place.path(name), config.width, config.eps);
    let scale = |name| new_scale(tracer, place.path(name), config.width);
    let norm1 = norm("norm1");
    let attention = new_attention(tracer, place.path("attention"), config);
    let scale1 = scale("layer_scale1");
    let drop_path = DropPath::new(
        CODE.place(place.path("drop_path"), "DropPath"),
        config.drop_path,
    );
    let norm2 = norm("norm2");
    let mlp = new_mlp(tracer, place.path("mlp"), config);
    let scale2 = scale("layer_scale2");
    FnModule::new(place, move |x| {
        let normed = norm1.forward(x);
        let mut attended = attention.forward(&normed);
        attended = scale1.forward(&attended);
        let hidden_states = drop_path.forward(&attended).add(x);
        let mut layer_output = chain(&[&norm2, &mlp, &scale2], &hidden_states);
        layer_output = drop_path.forward(&layer_output).add(&hidden_states);
        layer_output.and_drop((hidden_states, normed, attended))
    })
}

/// `Dinov2Model` with its `Dinov2Encoder`.
fn new_model(tracer: &Tracer, config: &Dino) -> FnModule {
    let place = CODE.place("dinov2", "Model");
    let encoder = CODE.place(place.path("encoder"), "Encoder");
    let embeddings = Embeddings::new(tracer, place.path("embeddings"), config);
    let layers: Vec<FnModule> = (0..config.layers)
        .map(|layer| new_layer(tracer, encoder.path(&format!("layer.{layer}")), config))
        .collect();
    let layernorm = LayerNorm::new(tracer, place.path("layernorm"), config.width, config.eps);
    FnModule::new(place, move |pixel_values| {
        let tracer = pixel_values.tracer();
        let embedding_output = embeddings.forward(pixel_values);
        let encoder_outputs = tracer.in_module(&encoder, || layers.forward(&embedding_output));
        let sequence_output = layernorm.forward(&encoder_outputs);
        let pooled_output = (&sequence_output).select(1, 0);
        sequence_output.and_drop((embedding_output, encoder_outputs, pooled_output))
    })
}
