//! `modeling_clip.py`: the part that sees, with a classifier.

use super::mlp::Mlp;
use super::{Images, grid};
use crate::graph::Graph;
use crate::huggingface::Task;
use crate::huggingface::attention::sdpa;
use crate::huggingface::config::Config;
use crate::huggingface::heads::Labels;
use crate::request_error::RequestError;
use crate::shape::DType;
use crate::tracing::functional::Attention as Settings;
use crate::tracing::{
    Conv, Embedding, LayerNorm, Linear, ModulePath, Pointwise as _, Reductions as _, Size, Tensor,
    Tracer, Views as _,
};

/// The classes that are built here.
pub(in crate::huggingface) const CLASSES: &[&str] = &["CLIPForImageClassification"];

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
    let tracer = task.tracer("clip.modeling_clip");
    let model = Model::new(&tracer, &config);
    let sizes = [config.width, labels.count];
    let classifier = Linear::new(&tracer, "classifier", sizes, true);
    let pixel_values = config.images.input(&tracer);
    let targets = labels.input(&tracer);

    let outputs = model.forward(&pixel_values);
    let [last_hidden_state, _] = &outputs;
    let sequence_output = last_hidden_state.slice_from(1, 1).mean(&[1], false);
    let logits = classifier.forward(&sequence_output);
    let loss = labels.loss(&logits, &targets);
    drop((outputs, sequence_output));
    tracer.finish(&loss).map_err(|error| task.invalid(&error))
}

/// `CLIPVisionEmbeddings`.
struct Embeddings {
    place: ModulePath,
    class_embedding: Tensor,
    patch_embedding: Conv,
    position_embedding: Embedding,
    position_ids: Tensor,
}

impl Embeddings {
    fn new(tracer: &Tracer, path: String, config: &Vision) -> Embeddings {
        let place = ModulePath::new(
            path,
            "transformers.models.clip.modeling_clip.CLIPVisionEmbeddings",
        );
        let class_embedding = tracer.parameter(&place.path("class_embedding"), &[config.width]);
        let positions = config.patches.saturating_add(1);
        let sizes = [config.images.channels, config.width];
        let kernel = [config.patch, config.patch];
        let patch_embedding = place.path("patch_embedding");
        let position_embedding = place.path("position_embedding");
        Embeddings {
            class_embedding,
            patch_embedding: Conv::new(tracer, patch_embedding, sizes, &kernel, 1, false)
                .stride(config.patch),
            position_embedding: Embedding::new(
                tracer,
                position_embedding,
                [positions, config.width],
            ),
            position_ids: tracer.buffer(&place.path("position_ids"), &[1, positions], DType::Int64),
            place,
        }
    }

    fn forward(&self, pixel_values: &Tensor) -> Tensor {
        let tracer = pixel_values.tracer();
        tracer.in_module(&self.place, || {
            let target_dtype = self.patch_embedding.weight.dtype();
            let mut patch_embeds = self
                .patch_embedding
                .forward(pixel_values.to_dtype_of(target_dtype));
            patch_embeds = (&patch_embeds).flatten(2, -1).transpose(1, 2);
            let batch = pixel_values.size(0);
            let class_embeds =
                (&self.class_embedding).expand(&[batch.into(), 1.into(), Size::REST]);
            let mut embeddings = tracer.cat_of(&[&class_embeds, &patch_embeds], 1);
            embeddings = (&embeddings).add(self.position_embedding.forward(&self.position_ids));
            embeddings.and_drop((patch_embeds, class_embeds))
        })
    }
}

/// `CLIPAttention`.
struct Attention {
    place: ModulePath,
    k_proj: Linear,
    v_proj: Linear,
    q_proj: Linear,
    out_proj: Linear,
    head_dim: u64,
    dropout: f64,
}

impl Attention {
    fn new(tracer: &Tracer, path: String, config: &Vision) -> Attention {
        let place = ModulePath::new(path, "transformers.models.clip.modeling_clip.CLIPAttention");
        let linear = |name: &str| {
            let sizes = [config.width, config.width];
            Linear::new(tracer, place.path(name), sizes, true)
        };
        Attention {
            k_proj: linear("k_proj"),
            v_proj: linear("v_proj"),
            q_proj: linear("q_proj"),
            out_proj: linear("out_proj"),
            head_dim: config.width / config.heads,
            dropout: config.dropout,
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let (batch, tokens) = (x.size(0), x.size(1));
            let heads = [
                batch.into(),
                tokens.into(),
                Size::REST,
                self.head_dim.into(),
            ];
            let mut queries = self.q_proj.forward(x);
            let mut keys = self.k_proj.forward(x);
            let mut values = self.v_proj.forward(x);
            queries = (&queries).view(&heads).transpose(1, 2);
            keys = (&keys).view(&heads).transpose(1, 2);
            values = (&values).view(&heads).transpose(1, 2);
            let settings = Settings {
                dropout: self.dropout,
                scale: Some((self.head_dim as f64).powf(-0.5)),
                ..Settings::default()
            };
            let mut output = sdpa(&queries, &keys, &values, settings);
            output = (&output)
                .reshape(&[batch.into(), tokens.into(), Size::REST])
                .contiguous();
            output = self.out_proj.forward(&output);
            output.and_drop((queries, keys, values))
        })
    }
}

/// `CLIPEncoderLayer`.
struct Layer {
    place: ModulePath,
    self_attn: Attention,
    norm1: LayerNorm,
    mlp: Mlp,
    norm2: LayerNorm,
}

impl Layer {
    fn new(tracer: &Tracer, path: String, config: &Vision) -> Layer {
        let place = ModulePath::new(
            path,
            "transformers.models.clip.modeling_clip.CLIPEncoderLayer",
        );
        let norm = |name| LayerNorm::new(tracer, place.path(name), config.width, config.eps);
        let mlp = ModulePath::new(
            place.path("mlp"),
            "transformers.models.clip.modeling_clip.CLIPMLP",
        );
        Layer {
            self_attn: Attention::new(tracer, place.path("self_attn"), config),
            norm1: norm("layer_norm1"),
            mlp: Mlp::new(
                tracer,
                mlp,
                [config.width, config.intermediate],
                &config.activation,
            ),
            norm2: norm("layer_norm2"),
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut hidden_states = self.norm1.forward(x);
            hidden_states = self.self_attn.forward(&hidden_states);
            hidden_states = x.add(&hidden_states);
            let residual = hidden_states.clone();
            hidden_states = self.norm2.forward(&hidden_states);
            hidden_states = self.mlp.forward(&hidden_states);
            hidden_states = (&residual).add(&hidden_states);
            hidden_states.and_drop(residual)
        })
    }
}

/// `CLIPVisionModel` with its `CLIPEncoder`.
struct Model {
    place: ModulePath,
    embeddings: Embeddings,
    pre_layrnorm: LayerNorm,
    encoder: ModulePath,
    layers: Vec<Layer>,
    post_layernorm: LayerNorm,
}

impl Model {
    fn new(tracer: &Tracer, config: &Vision) -> Model {
        let place = ModulePath::new(
            "vision_model",
            "transformers.models.clip.modeling_clip.CLIPVisionModel",
        );
        let encoder = ModulePath::new(
            place.path("encoder"),
            "transformers.models.clip.modeling_clip.CLIPEncoder",
        );
        let norm = |name| LayerNorm::new(tracer, place.path(name), config.width, config.eps);
        Model {
            embeddings: Embeddings::new(tracer, place.path("embeddings"), config),
            pre_layrnorm: norm("pre_layrnorm"),
            layers: (0..config.layers)
                .map(|layer| Layer::new(tracer, encoder.path(&format!("layers.{layer}")), config))
                .collect(),
            post_layernorm: norm("post_layernorm"),
            encoder,
            place,
        }
    }

    /// The last hidden state, and that of the class's token.
    fn forward(&self, pixel_values: &Tensor) -> [Tensor; 2] {
        let tracer = pixel_values.tracer();
        tracer.in_module(&self.place, || {
            let mut hidden_states = self.embeddings.forward(pixel_values);
            hidden_states = self.pre_layrnorm.forward(&hidden_states);
            let last_hidden_state = tracer.in_module(&self.encoder, || {
                let mut inner = hidden_states.clone();
                for layer in &self.layers {
                    inner = layer.forward(&inner);
                }
                inner
            });
            let pooled_output = (&last_hidden_state).select(1, 0);
            let pooled_output = self.post_layernorm.forward(&pooled_output);
            drop(hidden_states);
            [last_hidden_state, pooled_output]
        })
    }
}
