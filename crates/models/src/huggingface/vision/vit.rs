//! `modeling_vit.py` and `modeling_deit.py`.

use super::mlp::Mlp;
use super::{Images, grid};
use crate::graph::Graph;
use crate::huggingface::Task;
use crate::huggingface::attention::sdpa;
use crate::huggingface::config::Config;
use crate::huggingface::heads::Labels;
use crate::request_error::RequestError;
use crate::tracing::functional::Attention as Settings;
use crate::tracing::{
    Conv, Dropout, LayerNorm, Linear, ModulePath, Pointwise as _, Size, Tensor, Tracer, Views as _,
};

/// The classes that are built here.
pub(in crate::huggingface) const CLASSES: &[&str] =
    &["ViTForImageClassification", "DeiTForImageClassification"];

/// What the two families differ in.
struct Family {
    module: &'static str,
    /// Where the model is below its head.
    path: &'static str,
    classes: Classes,
    /// Whether there is a token to learn from a teacher.
    is_distilled: bool,
}

struct Classes {
    patches: &'static str,
    embeddings: &'static str,
    attention: &'static str,
    mlp: &'static str,
    layer: &'static str,
    model: &'static str,
}

macro_rules! classes {
    ($prefix:literal) => {
        Classes {
            patches: concat!($prefix, "PatchEmbeddings"),
            embeddings: concat!($prefix, "Embeddings"),
            attention: concat!($prefix, "Attention"),
            mlp: concat!($prefix, "MLP"),
            layer: concat!($prefix, "Layer"),
            model: concat!($prefix, "Model"),
        }
    };
}

const VIT: Family = Family {
    module: "vit.modeling_vit",
    path: "vit",
    classes: classes!("transformers.models.vit.modeling_vit.ViT"),
    is_distilled: false,
};

const DEIT: Family = Family {
    module: "deit.modeling_deit",
    path: "deit",
    classes: classes!("transformers.models.deit.modeling_deit.DeiT"),
    is_distilled: true,
};

/// What a config says of such a model.
struct Encoder {
    family: &'static Family,
    images: Images,
    patch: [u64; 2],
    patches: u64,
    width: u64,
    intermediate: u64,
    layers: u64,
    head_dim: u64,
    /// Width of queries, keys and values of all heads.
    inner: u64,
    activation: String,
    dropout: f64,
    attention_dropout: f64,
    eps: f64,
    qkv_bias: bool,
}

impl Encoder {
    fn of(task: &Task<'_>, family: &'static Family) -> Result<Encoder, RequestError> {
        let config: &Config<'_> = &task.config;
        let images = Images::of_one_size(task, config)?;
        let patch = config.pair("patch_size", 16)?;
        let [rows, columns] = grid(config, images.size, patch)?;
        let width = config.size("hidden_size", 768)?;
        let heads = config.size("num_attention_heads", 12)?;
        let head_dim = match config.size_if_given("head_dim")? {
            Some(head_dim) => head_dim,
            None => config.quotient([("hidden_size", width), ("num_attention_heads", heads)])?,
        };
        Ok(Encoder {
            family,
            images,
            patch,
            patches: rows.saturating_mul(columns),
            width,
            intermediate: config.size("intermediate_size", 3072)?,
            layers: config.layers("num_hidden_layers", 12)?,
            head_dim,
            inner: heads.saturating_mul(head_dim),
            activation: config.text("hidden_act", "gelu")?.to_owned(),
            dropout: config.number("hidden_dropout_prob", 0.0)?,
            attention_dropout: config.number("attention_probs_dropout_prob", 0.0)?,
            eps: config.number("layer_norm_eps", 1e-12)?,
            qkv_bias: config.flag("qkv_bias", true)?,
        })
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let family = match task.class {
        "DeiTForImageClassification" => &DEIT,
        _ => &VIT,
    };
    let config = Encoder::of(task, family)?;
    let labels = Labels::of(&task.config, 2)?;
    let tracer = task.tracer(family.module);
    let model = Model::new(&tracer, &config);
    let sizes = [config.width, labels.count];
    let classifier = Linear::new(&tracer, "classifier", sizes, true);
    let pixel_values = config.images.input(&tracer);
    let targets = labels.input(&tracer);

    let outputs = model.forward(&pixel_values);
    let sequence_output = outputs.clone();
    let pooled_output = (&sequence_output).select(1, 0);
    let logits = classifier.forward(&pooled_output);
    let loss = labels.loss(&logits, &targets);
    drop((outputs, sequence_output, pooled_output));
    tracer.finish(&loss).map_err(|error| task.invalid(&error))
}

/// `ViTEmbeddings`.
struct Embeddings {
    place: ModulePath,
    cls_token: Tensor,
    distillation_token: Option<Tensor>,
    patches: ModulePath,
    projection: Conv,
    positions: Tensor,
    dropout: Dropout,
}

impl Embeddings {
    fn new(tracer: &Tracer, path: String, config: &Encoder) -> Embeddings {
        let family = config.family;
        let place = ModulePath::new(path, family.classes.embeddings);
        let token = |name: &str| tracer.parameter(&place.path(name), &[1, 1, config.width]);
        let cls_token = token("cls_token");
        let tokens = 1 + u64::from(family.is_distilled);
        let positions = config.patches.saturating_add(tokens);
        let shape = [1, positions, config.width];
        let position_embeddings = tracer.parameter(&place.path("position_embeddings"), &shape);
        let patches = ModulePath::new(place.path("patch_embeddings"), family.classes.patches);
        Embeddings {
            cls_token,
            positions: position_embeddings,
            distillation_token: family.is_distilled.then(|| token("distillation_token")),
            projection: Conv::new(
                tracer,
                patches.path("projection"),
                [config.images.channels, config.width],
                &config.patch,
                1,
                true,
            )
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
            let mut embeddings = tracer.in_module(&self.patches, || {
                let patches = self.projection.forward(pixel_values);
                patches.flatten(2, -1).transpose(1, 2)
            });
            let token = |token: &Tensor| token.expand(&[batch.into(), Size::REST, Size::REST]);
            let cls_tokens = token(&self.cls_token);
            embeddings = match &self.distillation_token {
                None => tracer.cat_of(&[&cls_tokens, &embeddings], 1),
                Some(distillation_token) => {
                    let distillation_tokens = token(distillation_token);
                    tracer.cat_of(&[&cls_tokens, &distillation_tokens, &embeddings], 1)
                }
            };
            embeddings = (&embeddings).add(&self.positions);
            embeddings = self.dropout.forward(&embeddings);
            embeddings
        })
    }
}

/// `ViTAttention`.
struct Attention {
    place: ModulePath,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    head_dim: u64,
    dropout: f64,
}

impl Attention {
    fn new(tracer: &Tracer, path: String, config: &Encoder) -> Attention {
        let place = ModulePath::new(path, config.family.classes.attention);
        let of_heads = |name: &str| {
            let sizes = [config.width, config.inner];
            Linear::new(tracer, place.path(name), sizes, config.qkv_bias)
        };
        Attention {
            q_proj: of_heads("q_proj"),
            k_proj: of_heads("k_proj"),
            v_proj: of_heads("v_proj"),
            o_proj: Linear::new(
                tracer,
                place.path("o_proj"),
                [config.inner, config.width],
                true,
            ),
            head_dim: config.head_dim,
            dropout: config.attention_dropout,
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
            let query = self.q_proj.forward(x).view(&heads).transpose(1, 2);
            let key = self.k_proj.forward(x).view(&heads).transpose(1, 2);
            let value = self.v_proj.forward(x).view(&heads).transpose(1, 2);
            let settings = Settings {
                dropout: self.dropout,
                scale: Some((self.head_dim as f64).powf(-0.5)),
                ..Settings::default()
            };
            let mut output = sdpa(&query, &key, &value, settings);
            output = (&output)
                .reshape(&[batch.into(), tokens.into(), Size::REST])
                .contiguous();
            output = self.o_proj.forward(&output);
            output.and_drop((query, key, value))
        })
    }
}

/// `ViTLayer`.
struct Layer {
    place: ModulePath,
    attention: Attention,
    layernorm_before: LayerNorm,
    layernorm_after: LayerNorm,
    mlp: Mlp,
    dropout: Dropout,
}

impl Layer {
    fn new(tracer: &Tracer, path: String, config: &Encoder) -> Layer {
        let place = ModulePath::new(path, config.family.classes.layer);
        let norm = |name| LayerNorm::new(tracer, place.path(name), config.width, config.eps);
        let mlp = ModulePath::new(place.path("mlp"), config.family.classes.mlp);
        Layer {
            attention: Attention::new(tracer, place.path("attention"), config),
            layernorm_before: norm("layernorm_before"),
            layernorm_after: norm("layernorm_after"),
            mlp: Mlp::new(
                tracer,
                mlp,
                [config.width, config.intermediate],
                &config.activation,
            ),
            dropout: Dropout::new(place.path("dropout"), config.dropout),
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut hidden_states = self.layernorm_before.forward(x);
            hidden_states = self.attention.forward(&hidden_states);
            hidden_states = self.dropout.forward(&hidden_states);
            hidden_states = (&hidden_states).add(x);
            let residual = hidden_states.clone();
            hidden_states = self.layernorm_after.forward(&hidden_states);
            hidden_states = self.mlp.forward(&hidden_states);
            hidden_states = self.dropout.forward(&hidden_states);
            hidden_states = (&hidden_states).add(&residual);
            hidden_states.and_drop(residual)
        })
    }
}

/// `ViTModel`.
struct Model {
    place: ModulePath,
    embeddings: Embeddings,
    layers: Vec<Layer>,
    layernorm: LayerNorm,
}

impl Model {
    fn new(tracer: &Tracer, config: &Encoder) -> Model {
        let place = ModulePath::new(config.family.path, config.family.classes.model);
        Model {
            embeddings: Embeddings::new(tracer, place.path("embeddings"), config),
            layers: (0..config.layers)
                .map(|layer| Layer::new(tracer, place.path(&format!("layers.{layer}")), config))
                .collect(),
            layernorm: LayerNorm::new(tracer, place.path("layernorm"), config.width, config.eps),
            place,
        }
    }

    fn forward(&self, pixel_values: &Tensor) -> Tensor {
        pixel_values.tracer().in_module(&self.place, || {
            let expected = self.embeddings.projection.weight.dtype();
            let pixel_values = pixel_values.to_dtype_of(expected);
            let embedding_output = self.embeddings.forward(&pixel_values);
            let mut hidden_states = embedding_output.clone();
            for layer in &self.layers {
                hidden_states = layer.forward(&hidden_states);
            }
            let sequence_output = self.layernorm.forward(&hidden_states);
            sequence_output.and_drop((pixel_values, embedding_output, hidden_states))
        })
    }
}
