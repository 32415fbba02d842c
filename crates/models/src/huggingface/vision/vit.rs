//! `modeling_vit.py` and `modeling_deit.py`.

use super::mlp::new_mlp;
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
    let tracer = task.tracer(family.code.module);
    let model = new_model(&tracer, &config);
    let head = (labels, config.width);
    let images = config.images;
    images.classify(task, tracer, head, |pixel_values| {
        let outputs = model.forward(pixel_values);
        let sequence_output = outputs.clone();
        let pooled_output = (&sequence_output).select(1, 0);
        (pooled_output, (outputs, sequence_output))
    })
}

/// `ViTEmbeddings`, and the weight of its projection.
fn new_embeddings(tracer: &Tracer, path: String, config: &Encoder) -> (FnModule, Tensor) {
    let family = config.family;
    let place = family.code.place(path, "Embeddings");
    let token = |name: &str| tracer.parameter(&place.path(name), &[1, 1, config.width]);
    let cls_token = token("cls_token");
    let tokens = 1 + u64::from(family.is_distilled);
    let positions = config.patches.saturating_add(tokens);
    let shape = [1, positions, config.width];
    let position_embeddings = tracer.parameter(&place.path("position_embeddings"), &shape);
    let patches = family
        .code
        .place(place.path("patch_embeddings"), "PatchEmbeddings");
    let positions = position_embeddings;
    let distillation_token = family.is_distilled.then(|| token("distillation_token"));
    let projection = Conv::new(
        tracer,
        patches.path("projection"),
        [config.images.channels, config.width],
        &config.patch,
        1,
        true,
    )
    .strides(&config.patch);
    let dropout = Dropout::new(place.path("dropout"), config.dropout);

    let weight = projection.weight.clone();
    let module = FnModule::new(place, move |pixel_values| {
        let tracer = pixel_values.tracer();
        let batch = pixel_values.size(0);
        let mut embeddings = tracer.in_module(&patches, || {
            let patches = projection.forward(pixel_values);
            patches.flatten(2, -1).transpose(1, 2)
        });
        let token = |token: &Tensor| token.expand(&[batch.into(), Size::REST, Size::REST]);
        let cls_tokens = token(&cls_token);
        embeddings = match &distillation_token {
            None => tracer.cat_of(&[&cls_tokens, &embeddings], 1),
            Some(distillation_token) => {
                let distillation_tokens = token(distillation_token);
                tracer.cat_of(&[&cls_tokens, &distillation_tokens, &embeddings], 1)
            }
        };
        embeddings = (&embeddings).add(&positions);
        embeddings = dropout.forward(&embeddings);
        embeddings
    });
    (module, weight)
}

/// `ViTAttention`.
fn new_attention(tracer: &Tracer, path: String, config: &Encoder) -> FnModule {
    let place = config.family.code.place(path, "Attention");
    let of_heads = |name: &str| {
        let sizes = [config.width, config.inner];
        Linear::new(tracer, place.path(name), sizes, config.qkv_bias)
    };
    let q_proj = of_heads("q_proj");
    let k_proj = of_heads("k_proj");
    let v_proj = of_heads("v_proj");
    let o_proj = Linear::new(
        tracer,
        place.path("o_proj"),
        [config.inner, config.width],
        true,
    );
    let head_dim = config.head_dim;
    let dropout = config.attention_dropout;
    FnModule::new(place, move |x| {
        let linears = [&q_proj, &k_proj, &v_proj];
        let (mut output, states) = self_attention(x, linears, head_dim, dropout);
        output = o_proj.forward(&output);
        output.and_drop(states)
    })
}

/// `ViTLayer`.
fn new_layer(tracer: &Tracer, path: String, config: &Encoder) -> FnModule {
    let place = config.family.code.place(path, "Layer");
    let norm = |name| LayerNorm::new(tracer, place.path(name), config.width, config.eps);
    let mlp = config.family.code.place(place.path("mlp"), "MLP");
    let attention = new_attention(tracer, place.path("attention"), config);
    let layernorm_before = norm("layernorm_before");
    let layernorm_after = norm("layernorm_after");
    let mlp = new_mlp(
        tracer,
        mlp,
        [config.width, config.intermediate],
        &config.activation,
    );
    let dropout = Dropout::new(place.path("dropout"), config.dropout);
    FnModule::new(place, move |x| {
        let mut hidden_states = chain(&[&layernorm_before, &attention, &dropout], x);
        hidden_states = (&hidden_states).add(x);
        let residual = hidden_states.clone();
        hidden_states = chain(&[&layernorm_after, &mlp, &dropout], hidden_states);
        hidden_states = (&hidden_states).add(&residual);
        hidden_states.and_drop(residual)
    })
}

/// `ViTModel`.
fn new_model(tracer: &Tracer, config: &Encoder) -> FnModule {
    let place = config.family.code.place(config.family.path, "Model");
    let (embeddings, projection) = new_embeddings(tracer, place.path("embeddings"), config);
    let layers: Vec<FnModule> = (0..config.layers)
        .map(|layer| new_layer(tracer, place.path(&format!("layers.{layer}")), config))
        .collect();
    let layernorm = LayerNorm::new(tracer, place.path("layernorm"), config.width, config.eps);
    FnModule::new(place, move |pixel_values| {
        let expected = projection.dtype();
        let pixel_values = pixel_values.to_dtype_of(expected);
        let embedding_output = embeddings.forward(&pixel_values);
        let hidden_states = layers.forward(&embedding_output);
        let sequence_output = layernorm.forward(&hidden_states);
        sequence_output.and_drop((pixel_values, embedding_output, hidden_states))
    })
}
