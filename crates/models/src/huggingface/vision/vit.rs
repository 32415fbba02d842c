//! `modeling_vit.py` and `modeling_deit.py`.

use super::mlp::mlp;
use super::{Images, grid};
use crate::huggingface::attention::self_attention;
use crate::huggingface::prelude::*;
use crate::tracing::Conv;

/// What the two families differ in.
struct Family {
    /// Where the model is below its head.
    path: &'static str,
    code: Code,
    /// Whether there is a token to learn from a teacher.
    is_distilled: bool,
}

const VIT: Family = Family {
    path: "vit",
    code: Code::new("vit.modeling_vit", "ViT"),
    is_distilled: false,
};

const DEIT: Family = Family {
    path: "deit",
    code: Code::new("deit.modeling_deit", "DeiT"),
    is_distilled: true,
};

/// What a config says of such a model.
struct Encoder {
    shape: Shape,
    family: &'static Family,
    images: Images,
    patch: [u64; 2],
    patches: u64,
    /// Width of queries, keys and values of all heads.
    inner: u64,
    qkv_bias: bool,
}

impl Encoder {
    fn of(task: &Task<'_>, family: &'static Family) -> Result<Encoder, RequestError> {
        let config: &Config<'_> = &task.config;
        let images = Images::of_one_size(task, config)?;
        let patch = config.pair("patch_size", 16)?;
        let [rows, columns] = grid(config, images.size, patch)?;
        let shape = Shape::of(config)?;
        Ok(Encoder {
            family,
            images,
            patch,
            patches: rows.saturating_mul(columns),
            inner: shape.heads.saturating_mul(shape.head_dim),
            shape,
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
    let at = task.frame(family.code, family.path);
    let tracer = at.tracer().clone();
    let head = (labels, config.shape.width);
    let images = config.images;
    images.classify(task, tracer, head, |pixel_values| {
        let outputs = model(&at, &config, pixel_values);
        let sequence_output = outputs.clone();
        let pooled_output = (&sequence_output).select(1, 0);
        (pooled_output, (outputs, sequence_output))
    })
}

/// `ViTEmbeddings`.
fn embeddings(at: &Frame, config: &Encoder, pixel_values: &Tensor) -> Tensor {
    let batch = pixel_values.size(0);
    let token = |name: &str| {
        let token = at.parameter(name, &[1, 1, config.shape.width]);
        token.expand(&[batch.into(), Size::REST, Size::REST])
    };
    let patches = at.call("patch_embeddings", "PatchEmbeddings", |at| {
        projection(at, config)
            .forward(pixel_values)
            .flatten(2, -1)
            .transpose(1, 2)
    });
    at.made(&["cls_token", "position_embeddings"]);
    let mut embeddings;
    let cls_tokens = token("cls_token");
    let tokens = 1 + u64::from(config.family.is_distilled);
    if config.family.is_distilled {
        let distillation_tokens = token("distillation_token");
        embeddings = at
            .tracer()
            .cat_of(&[&cls_tokens, &distillation_tokens, &patches], 1);
    } else {
        embeddings = at.tracer().cat_of(&[&cls_tokens, &patches], 1);
    }
    drop(patches);
    let positions = config.patches.saturating_add(tokens);
    let positions = at.parameter("position_embeddings", &[1, positions, config.shape.width]);
    embeddings = (&embeddings).add(&positions);
    embeddings = at.dropout("dropout", config.shape.dropout, embeddings);
    embeddings
}

/// The convolution that makes patches.
fn projection(at: &Frame, config: &Encoder) -> Conv {
    let channels = [config.images.channels, config.shape.width];
    let conv = at.conv("projection", channels, &config.patch, true);
    conv.strides(&config.patch)
}

/// `ViTAttention`.
fn attention(at: &Frame, config: &Encoder, x: &Tensor) -> Tensor {
    let sizes = [config.shape.width, config.inner];
    let linears = (["q_proj", "k_proj", "v_proj"], sizes, config.qkv_bias);
    let (mut output, states) = self_attention(
        at,
        linears,
        config.shape.head_dim,
        config.shape.attention_dropout,
        x,
    );
    output = at.linear("o_proj", [config.inner, config.shape.width], true, output);
    output.and_drop(states)
}

/// `ViTLayer`.
fn layer(at: &Frame, config: &Encoder, x: &Tensor) -> Tensor {
    at.made(&["attention"]);
    let norm = |name, x: &Tensor| at.layer_norm(name, config.shape.width, config.shape.eps, x);
    let dropout = |x: Tensor| at.dropout("dropout", config.shape.dropout, x);
    let sizes = [config.shape.width, config.shape.intermediate];
    let mut hidden_states = norm("layernorm_before", x);
    hidden_states = at.call("attention", "Attention", |at| {
        attention(at, config, &hidden_states)
    });
    hidden_states = dropout(hidden_states);
    hidden_states = (&hidden_states).add(x);
    let residual = hidden_states.clone();
    hidden_states = norm("layernorm_after", &hidden_states);
    hidden_states = at.call("mlp", "MLP", |at| {
        mlp(at, sizes, &config.shape.activation, &hidden_states)
    });
    hidden_states = dropout(hidden_states);
    hidden_states = (&hidden_states).add(&residual);
    hidden_states.and_drop(residual)
}

/// `ViTModel`.
fn model(at: &Frame, config: &Encoder, pixel_values: &Tensor) -> Tensor {
    at.call(config.family.path, "Model", |at| {
        let place = at.below("embeddings.patch_embeddings");
        let expected = projection(&place, config).weight.dtype();
        let pixel_values = pixel_values.to_dtype_of(expected);
        let embedding_output = at.call("embeddings", "Embeddings", |at| {
            embeddings(at, config, &pixel_values)
        });
        let layers = ("layers", config.shape.layers);
        let hidden_states = at.call_each(layers, "Layer", &embedding_output, |at, x| {
            layer(at, config, x)
        });
        let sequence_output = at.layer_norm(
            "layernorm",
            config.shape.width,
            config.shape.eps,
            &hidden_states,
        );
        sequence_output.and_drop((pixel_values, embedding_output, hidden_states))
    })
}
