//! `modeling_swin.py`.

mod layer;
mod stage;

use stage::stage;

use super::Images;
use crate::huggingface::prelude::*;

const CODE: Code = Code::new("swin.modeling_swin", "Swin");

/// Most stages read; those in use have four, and each doubles the width.
const MOST_STAGES: usize = 16;

/// What norms are given that the config says nothing of.
const INNER_EPS: f64 = 1e-5;

/// What a config says of such a model.
struct Swin {
    images: Images,
    /// Patches in height and width of the images that the config is for.
    patches: u64,
    patch: [u64; 2],
    width: u64,
    stages: Vec<Sizes>,
    window: u64,
    mlp_ratio: f64,
    qkv_bias: bool,
    dropout: f64,
    attention_dropout: f64,
    activation: String,
    has_positions: bool,
    eps: f64,
}

/// What a config says of a stage.
struct Sizes {
    width: u64,
    heads: u64,
    /// For each layer, how probably it is skipped.
    drop_paths: Vec<f64>,
}

impl Swin {
    fn of(task: &Task<'_>) -> Result<Swin, RequestError> {
        let config = &task.config;
        let images = Images::of_any_size(task, config)?;
        let usual = config.pair("image_size", super::USUAL_SIZE)?;
        let patch = config.pair("patch_size", 4)?;
        let [rows, columns] = super::grid(config, usual, patch)?;
        let width = config.size("embed_dim", 96)?;
        let depths = config.depths("depths", &[2, 2, 6, 2])?;
        let heads = config.sizes("num_heads", &[3, 6, 12, 24])?;
        if depths.len() > MOST_STAGES {
            return Err(config.wrong(
                "depths",
                format!(
                    "at most {MOST_STAGES} stages are read, not {}",
                    depths.len()
                ),
            ));
        }
        if heads.len() < depths.len() {
            return Err(config.wrong(
                "num_heads",
                format!(
                    "num_heads has {} numbers, fewer than depths, {}",
                    heads.len(),
                    depths.len()
                ),
            ));
        }
        let rate = config.number("drop_path_rate", 0.1)?;
        let last = depths.iter().sum::<u64>().saturating_sub(1).max(1) as f64;
        let mut layer = 0_u32;
        let mut stages = Vec::new();
        let mut stage_width = width;
        for (depth, heads) in depths.iter().zip(heads) {
            config.quotient([("embed_dim", stage_width), ("num_heads", heads)])?;
            let mut drop_paths = Vec::new();
            for _ in 0..*depth {
                drop_paths.push(rate * f64::from(layer) / last);
                layer += 1;
            }
            stages.push(Sizes {
                width: stage_width,
                heads,
                drop_paths,
            });
            stage_width = stage_width.saturating_mul(2);
        }
        Ok(Swin {
            images,
            patches: rows.saturating_mul(columns),
            patch,
            width,
            stages,
            window: config.size("window_size", 7)?,
            mlp_ratio: config.mlp_ratio(width)?,
            qkv_bias: config.flag("qkv_bias", true)?,
            dropout: config.number("hidden_dropout_prob", 0.0)?,
            attention_dropout: config.number("attention_probs_dropout_prob", 0.0)?,
            activation: config.text("hidden_act", "gelu")?.to_owned(),
            has_positions: config.flag("use_absolute_embeddings", false)?,
            eps: config.number("layer_norm_eps", 1e-5)?,
        })
    }

    /// Width of what the last stage makes.
    fn last_width(&self) -> u64 {
        self.stages.last().map_or(self.width, |stage| stage.width)
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let config = Swin::of(task)?;
    let labels = Labels::of(&task.config, 2)?;
    let at = task.frame(CODE, "swin");
    let head = (labels, config.last_width());
    let images = config.images;
    images.classify(task, at.tracer().clone(), head, |pixel_values| {
        let outputs = model(&at, &config, pixel_values);
        let [_, pooled_output] = &outputs;
        (pooled_output.clone(), outputs)
    })
}

/// `SwinEmbeddings`: the patches, and how many there are in height and width.
fn embeddings(at: &Frame, config: &Swin, pixel_values: &Tensor) -> (Tensor, [u64; 2]) {
    let (mut embeddings, dimensions) = at.call("patch_embeddings", "PatchEmbeddings", |at| {
        let channels = [config.images.channels, config.width];
        let projection = at.conv("projection", channels, &config.patch, true);
        let pixel_values = padded(config.patch, pixel_values);
        let mut embeddings = projection.strides(&config.patch).forward(&pixel_values);
        let dimensions = [embeddings.length(2), embeddings.length(3)];
        embeddings = (&embeddings).flatten(2, -1).transpose(1, 2);
        (embeddings.and_drop(pixel_values), dimensions)
    });
    embeddings = at.layer_norm("norm", config.width, INNER_EPS, embeddings);
    if config.has_positions {
        let shape = [1, config.patches, config.width];
        embeddings = (&embeddings).add(at.parameter("position_embeddings", &shape));
    }
    embeddings = at.dropout("dropout", config.dropout, embeddings);
    (embeddings, dimensions)
}

/// `maybe_pad`
fn padded([patch_height, patch_width]: [u64; 2], pixel_values: &Tensor) -> Tensor {
    let mut pixel_values = pixel_values.clone();
    let [height, width] = [pixel_values.length(2), pixel_values.length(3)];
    let missing = |length: u64, patch: u64| (patch - length % patch).cast_signed();
    if !width.is_multiple_of(patch_width) {
        pixel_values = (&pixel_values).pad(&[0, missing(width, patch_width)], None);
    }
    if !height.is_multiple_of(patch_height) {
        let pad = [0, 0, 0, missing(height, patch_height)];
        pixel_values = (&pixel_values).pad(&pad, None);
    }
    pixel_values
}

/// `SwinModel` with its `SwinEncoder`.
fn model(at: &Frame, config: &Swin, pixel_values: &Tensor) -> [Tensor; 2] {
    at.call("swin", "Model", |at| {
        let (embedding_output, mut dimensions) = at.call("embeddings", "Embeddings", |at| {
            embeddings(at, config, pixel_values)
        });
        let encoder_outputs = at.call("encoder", "Encoder", |at| {
            let mut hidden_states = embedding_output.clone();
            let mut reshaped = None;
            for index in 0..config.stages.len() {
                let (made, other, after) = at.call(&format!("layers.{index}"), "Stage", |at| {
                    stage(at, config, index, &hidden_states, dimensions)
                });
                hidden_states = made;
                reshaped = Some(other);
                dimensions = after;
            }
            drop(reshaped);
            hidden_states
        });
        let sequence_output = at.layer_norm(
            "layernorm",
            config.last_width(),
            config.eps,
            &encoder_outputs,
        );
        let turned = (&sequence_output).transpose(1, 2);
        let pooler = "torch.nn.modules.pooling.AdaptiveAvgPool1d";
        let mut pooled_output = at.call_of("pooler", pooler, |_| (&turned).adaptive_average_1d(1));
        drop(turned);
        pooled_output = (&pooled_output).flatten(1, -1);
        drop((embedding_output, encoder_outputs));
        [sequence_output, pooled_output]
    })
}
