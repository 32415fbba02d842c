//! `modeling_swin.py`.

mod layer;
mod stage;

use stage::new_stage;

use super::Images;
use crate::huggingface::prelude::*;
use crate::tracing::Conv;

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
    let tracer = task.tracer(CODE.module);
    let model = new_model(&tracer, &config);
    let head = (labels, config.last_width());
    let images = config.images;
    images.classify(task, tracer, head, |pixel_values| {
        let outputs = model.forward(pixel_values);
        let [_, pooled_output] = &outputs;
        (pooled_output.clone(), outputs)
    })
}

/// `SwinEmbeddings`.
struct Embeddings {
    place: ModulePath,
    patches: ModulePath,
    projection: Conv,
    patch: [u64; 2],
    positions: Option<Tensor>,
    norm: LayerNorm,
    dropout: Dropout,
}

impl Embeddings {
    fn new(tracer: &Tracer, path: String, config: &Swin) -> Embeddings {
        let place = CODE.place(path, "Embeddings");
        let position_embeddings = config.has_positions.then(|| {
            let shape = [1, config.patches, config.width];
            tracer.parameter(&place.path("position_embeddings"), &shape)
        });
        let patches = CODE.place(place.path("patch_embeddings"), "PatchEmbeddings");
        let sizes = [config.images.channels, config.width];
        let projection = patches.path("projection");
        Embeddings {
            positions: position_embeddings,
            projection: Conv::new(tracer, projection, sizes, &config.patch, 1, true)
                .strides(&config.patch),
            patch: config.patch,
            patches,
            norm: LayerNorm::new(tracer, place.path("norm"), config.width, INNER_EPS),
            dropout: Dropout::new(place.path("dropout"), config.dropout),
            place,
        }
    }

    /// The patches, and how many there are in height and width.
    fn forward(&self, pixel_values: &Tensor) -> (Tensor, [u64; 2]) {
        let tracer = pixel_values.tracer();
        tracer.in_module(&self.place, || {
            let (mut embeddings, dimensions) = tracer.in_module(&self.patches, || {
                let pixel_values = self.padded(pixel_values);
                let mut embeddings = self.projection.forward(&pixel_values);
                let dimensions = [embeddings.length(2), embeddings.length(3)];
                embeddings = (&embeddings).flatten(2, -1).transpose(1, 2);
                (embeddings.and_drop(pixel_values), dimensions)
            });
            embeddings = self.norm.forward(&embeddings);
            if let Some(positions) = &self.positions {
                embeddings = (&embeddings).add(positions);
            }
            embeddings = self.dropout.forward(&embeddings);
            (embeddings, dimensions)
        })
    }

    /// `maybe_pad`
    fn padded(&self, pixel_values: &Tensor) -> Tensor {
        let mut pixel_values = pixel_values.clone();
        let [height, width] = [pixel_values.length(2), pixel_values.length(3)];
        let [patch_height, patch_width] = self.patch;
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
}

/// `SwinModel` with its `SwinEncoder`.
fn new_model(tracer: &Tracer, config: &Swin) -> FnModule<[Tensor; 2]> {
    let place = CODE.place("swin", "Model");
    let encoder = CODE.place(place.path("encoder"), "Encoder");
    let embeddings = Embeddings::new(tracer, place.path("embeddings"), config);
    let stages: Vec<_> = (0..config.stages.len())
        .map(|index| {
            let path = encoder.path(&format!("layers.{index}"));
            new_stage(tracer, path, config, index)
        })
        .collect();
    let norm = place.path("layernorm");
    let layernorm = LayerNorm::new(tracer, norm, config.last_width(), config.eps);
    let pooler = ModulePath::new(
        place.path("pooler"),
        "torch.nn.modules.pooling.AdaptiveAvgPool1d",
    );
    FnModule::new(place, move |pixel_values| {
        let tracer = pixel_values.tracer();
        let (embedding_output, dimensions) = embeddings.forward(pixel_values);
        let encoder_outputs = tracer.in_module(&encoder, || {
            let mut hidden_states = embedding_output.clone();
            let mut dimensions = dimensions;
            let mut reshaped = None;
            for stage in &stages {
                let (made, other, after) = stage(&hidden_states, dimensions);
                hidden_states = made;
                reshaped = Some(other);
                dimensions = after;
            }
            drop(reshaped);
            hidden_states
        });
        let sequence_output = layernorm.forward(&encoder_outputs);
        let turned = (&sequence_output).transpose(1, 2);
        let mut pooled_output = tracer.in_module(&pooler, || (&turned).adaptive_average_1d(1));
        drop(turned);
        pooled_output = (&pooled_output).flatten(1, -1);
        drop((embedding_output, encoder_outputs));
        [sequence_output, pooled_output]
    })
}
