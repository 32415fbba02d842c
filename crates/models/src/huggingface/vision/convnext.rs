//! `modeling_convnext.py` and `modeling_convnextv2.py`.

use super::{Images, drop_path, evenly_up_to};
use crate::huggingface::prelude::*;
use crate::tracing::Conv;

/// Most stages read; those in use have four.
const MOST_STAGES: u64 = 64;

/// What norms inside are given whatever the config says.
const INNER_EPS: f64 = 1e-6;

/// What the two families differ in.
struct Family {
    /// Where the model is below its head.
    path: &'static str,
    code: Code,
    /// Whether responses are normalized, instead of layers scaled.
    is_second: bool,
}

const FIRST: Family = Family {
    path: "convnext",
    code: Code::new("convnext.modeling_convnext", "ConvNext"),
    is_second: false,
};

const SECOND: Family = Family {
    path: "convnextv2",
    code: Code::new("convnextv2.modeling_convnextv2", "ConvNextV2"),
    is_second: true,
};

/// What a config says of such a model.
struct Net {
    family: &'static Family,
    images: Images,
    patch: [u64; 2],
    stages: Vec<Sizes>,
    /// Channels of the last of all widths, which need not belong to a stage that there is.
    last_width: u64,
    activation: String,
    eps: f64,
    /// Whether layers are scaled.
    is_scaled: bool,
}

/// What a config says of a stage.
struct Sizes {
    width: u64,
    /// For each layer, how probably it is skipped.
    drop_paths: Vec<f64>,
}

impl Net {
    fn of(task: &Task<'_>, family: &'static Family) -> Result<Net, RequestError> {
        let config = &task.config;
        let images = Images::of_any_size(task, config)?;
        let widths = config.sizes("hidden_sizes", &[96, 192, 384, 768])?;
        let depths = config.depths("depths", &[3, 3, 9, 3])?;
        let stages = config.layers("num_stages", 4)?.min(MOST_STAGES + 1);
        for (name, list) in [("hidden_sizes", &widths), ("depths", &depths)] {
            if (list.len() as u64) < stages {
                return Err(config.wrong(
                    name,
                    format!(
                        "{name} has {} numbers, fewer than num_stages, {stages}",
                        list.len()
                    ),
                ));
            }
        }
        if stages > MOST_STAGES {
            return Err(config.wrong(
                "num_stages",
                format!("at most {MOST_STAGES} stages are read"),
            ));
        }
        let rate = config.number("drop_path_rate", 0.0)?;
        let mut rates = evenly_up_to(rate, depths.iter().sum()).into_iter();
        let sizes = widths.iter().zip(&depths).map(|(width, depth)| Sizes {
            width: *width,
            drop_paths: rates
                .by_ref()
                .take(usize::try_from(*depth).unwrap_or(usize::MAX))
                .collect(),
        });
        let all: Vec<Sizes> = sizes.collect();
        let scale = config.number("layer_scale_init_value", 1e-6)?;
        Ok(Net {
            family,
            images,
            patch: config.pair("patch_size", 4)?,
            stages: all
                .into_iter()
                .take(usize::try_from(stages).unwrap_or(usize::MAX))
                .collect(),
            last_width: widths.last().copied().unwrap_or(1),
            activation: config.text("hidden_act", "gelu")?.to_owned(),
            eps: config.number("layer_norm_eps", 1e-12)?,
            is_scaled: !family.is_second && scale > 0.0,
        })
    }
}

pub(in crate::huggingface) fn build(task: &Task<'_>) -> Result<Graph, RequestError> {
    let family = match task.class {
        "ConvNextV2ForImageClassification" => &SECOND,
        _ => &FIRST,
    };
    let config = Net::of(task, family)?;
    let labels = Labels::of(&task.config, 2)?;
    let at = task.frame(family.code, family.path);
    let head = (labels, config.last_width);
    let images = config.images;
    images.classify(task, at.tracer().clone(), head, |pixel_values| {
        let outputs = model(&at, &config, pixel_values);
        let [_, pooled_output] = &outputs;
        (pooled_output.clone(), outputs)
    })
}

/// `ConvNextLayerNorm`.
fn norm(at: &Frame, name: &str, width: u64) -> LayerNorm {
    let norm = LayerNorm::new(at.tracer(), at.path(name), width, INNER_EPS);
    norm.class(at.class("LayerNorm"))
}

/// `ConvNextLayerNorm` with channels first: they are put last and back.
fn normalized_channels(norm: &LayerNorm, x: &Tensor) -> Tensor {
    norm.around(
        x,
        |x| x.permute(&[0, 2, 3, 1]),
        |x| x.permute(&[0, 3, 1, 2]),
    )
}

/// `ConvNextEmbeddings`.
fn embeddings(at: &Frame, config: &Net, pixel_values: &Tensor) -> Tensor {
    let width = config.stages[0].width;
    let channels = [config.images.channels, width];
    let projection = at.conv("patch_embeddings", channels, &config.patch, true);
    let mut embeddings = projection.strides(&config.patch).forward(pixel_values);
    embeddings = normalized_channels(&norm(at, "layernorm", width), &embeddings);
    embeddings
}

/// `ConvNextV2GRN`.
fn response_norm(at: &Frame, width: u64, x: &Tensor) -> Tensor {
    let parameter = |name: &str| at.parameter(name, &[1, 1, 1, width]);
    let global_features = x.vector_norm(2, &[1, 2], true);
    let norm_features =
        (&global_features).div((&global_features).mean(&[-1], true).add_number(1e-6));
    let scaled = (&parameter("weight")).mul(x.mul(&norm_features));
    let hidden_states = scaled.add(parameter("bias")).add(x);
    hidden_states.and_drop((global_features, norm_features))
}

/// `ConvNextLayer`.
fn layer(at: &Frame, config: &Net, width: u64, rate: f64, x: &Tensor) -> Tensor {
    let wide = width.saturating_mul(4);
    let dwconv = Conv::new(
        at.tracer(),
        at.path("dwconv"),
        [width, width],
        &[7, 7],
        width,
        true,
    );
    let mut features = dwconv.padding(3).forward(x);
    features = (&features).permute(&[0, 2, 3, 1]);
    features = norm(at, "layernorm", width).forward(features);
    features = at.linear("pwconv1", [width, wide], true, features);
    features = at.activation("act", &config.activation, features);
    if config.family.is_second {
        features = at.call("grn", "GRN", |at| response_norm(at, wide, &features));
    }
    features = at.linear("pwconv2", [wide, width], true, features);
    if config.is_scaled {
        features = at
            .parameter("layer_scale_parameter", &[width])
            .mul(&features);
    }
    features = (&features).permute(&[0, 3, 1, 2]);
    features = x.add(drop_path(at, rate, &features));
    features
}

/// `ConvNextStage`, after one of another width.
fn stage(at: &Frame, config: &Net, earlier: Option<u64>, sizes: &Sizes, x: &Tensor) -> Tensor {
    let mut features = x.clone();
    if let Some(width) = earlier {
        features = normalized_channels(&norm(at, "downsampling_layer.0", width), &features);
        let conv = at.conv("downsampling_layer.1", [width, sizes.width], &[2, 2], true);
        features = conv.stride(2).forward(features);
    }
    for (index, rate) in sizes.drop_paths.iter().enumerate() {
        features = at.call(&format!("layers.{index}"), "Layer", |at| {
            layer(at, config, sizes.width, *rate, &features)
        });
    }
    features
}

/// `ConvNextModel` with its `ConvNextEncoder`.
fn model(at: &Frame, config: &Net, pixel_values: &Tensor) -> [Tensor; 2] {
    at.call(config.family.path, "Model", |at| {
        let embedding_output = at.call("embeddings", "Embeddings", |at| {
            embeddings(at, config, pixel_values)
        });
        let last_hidden_state = at.call("encoder", "Encoder", |at| {
            let mut features = embedding_output.clone();
            let mut earlier = None;
            for (index, sizes) in config.stages.iter().enumerate() {
                features = at.call(&format!("stages.{index}"), "Stage", |at| {
                    stage(at, config, earlier, sizes, &features)
                });
                earlier = Some(sizes.width);
            }
            features
        });
        let pooled_output = (&last_hidden_state).mean(&[-2, -1], false);
        let pooled_output =
            at.layer_norm("layernorm", config.last_width, config.eps, pooled_output);
        drop(embedding_output);
        [last_hidden_state, pooled_output]
    })
}
