//! `modeling_convnext.py` and `modeling_convnextv2.py`.

use super::{DropPath, Images, evenly_up_to};
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
    let tracer = task.tracer(family.code.module);
    let model = new_model(&tracer, &config);
    let head = (labels, config.last_width);
    let images = config.images;
    images.classify(task, tracer, head, |pixel_values| {
        let outputs = model.forward(pixel_values);
        let [_, pooled_output] = &outputs;
        (pooled_output.clone(), outputs)
    })
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
fn new_embeddings(tracer: &Tracer, path: String, config: &Net) -> FnModule {
    let code = config.family.code;
    let place = code.place(path, "Embeddings");
    let width = config.stages[0].width;
    let projection = Conv::new(
        tracer,
        place.path("patch_embeddings"),
        [config.images.channels, width],
        &config.patch,
        1,
        true,
    )
    .strides(&config.patch);
    let layernorm = LayerNorm::new(tracer, place.path("layernorm"), width, INNER_EPS)
        .class(code.class("LayerNorm"));
    FnModule::new(place, move |pixel_values| {
        let mut embeddings = projection.forward(pixel_values);
        embeddings = normalized_channels(&layernorm, &embeddings);
        embeddings
    })
}

/// `ConvNextV2GRN`.
fn new_response_norm(tracer: &Tracer, place: ModulePath, width: u64) -> FnModule {
    let parameter = |name: &str| tracer.parameter(&place.path(name), &[1, 1, 1, width]);
    let weight = parameter("weight");
    let bias = parameter("bias");
    FnModule::new(place, move |x| {
        let global_features = x.vector_norm(2, &[1, 2], true);
        let norm_features =
            (&global_features).div((&global_features).mean(&[-1], true).add_number(1e-6));
        let hidden_states = (&weight).mul(x.mul(&norm_features)).add(&bias).add(x);
        hidden_states.and_drop((global_features, norm_features))
    })
}

/// `ConvNextLayer`.
fn new_layer(tracer: &Tracer, path: String, config: &Net, width: u64, rate: f64) -> FnModule {
    let code = config.family.code;
    let place = code.place(path, "Layer");
    let wide = width.saturating_mul(4);
    let scale = place.path("layer_scale_parameter");
    let scale = config.is_scaled.then(|| tracer.parameter(&scale, &[width]));
    let dwconv = Conv::new(
        tracer,
        place.path("dwconv"),
        [width, width],
        &[7, 7],
        width,
        true,
    )
    .padding(3);
    let layernorm = LayerNorm::new(tracer, place.path("layernorm"), width, INNER_EPS)
        .class(code.class("LayerNorm"));
    let pwconv1 = Linear::new(tracer, place.path("pwconv1"), [width, wide], true);
    let act = Activation::named(tracer, place.path("act"), &config.activation);
    let grn = config
        .family
        .is_second
        .then(|| new_response_norm(tracer, code.place(place.path("grn"), "GRN"), wide));
    let pwconv2 = Linear::new(tracer, place.path("pwconv2"), [wide, width], true);
    let drop_path = DropPath::new(code.place(place.path("drop_path"), "DropPath"), rate);
    FnModule::new(place, move |x| {
        let mut features = dwconv.forward(x);
        features = (&features).permute(&[0, 2, 3, 1]);
        features = chain(&[&layernorm, &pwconv1, &act], features);
        if let Some(grn) = &grn {
            features = grn.forward(&features);
        }
        features = pwconv2.forward(&features);
        if let Some(scale) = &scale {
            features = scale.mul(&features);
        }
        features = (&features).permute(&[0, 3, 1, 2]);
        features = x.add(drop_path.forward(&features));
        features
    })
}

/// `ConvNextStage`.
fn new_stage(
    tracer: &Tracer,
    path: String,
    config: &Net,
    earlier_width: Option<u64>,
    sizes: &Sizes,
) -> FnModule {
    let code = config.family.code;
    let place = code.place(path, "Stage");
    let below = |name: &str, index: usize| place.path(&format!("{name}.{index}"));
    let downsampling = earlier_width.map(|width| {
        let at = |index| below("downsampling_layer", index);
        let norm = LayerNorm::new(tracer, at(0), width, INNER_EPS).class(code.class("LayerNorm"));
        let conv = Conv::new(tracer, at(1), [width, sizes.width], &[2, 2], 1, true).stride(2);
        (norm, conv)
    });
    let rates = sizes.drop_paths.iter().enumerate();
    let layers: Vec<FnModule> = rates
        .map(|(index, rate)| new_layer(tracer, below("layers", index), config, sizes.width, *rate))
        .collect();
    FnModule::new(place, move |x| {
        let mut features = x.clone();
        if let Some((norm, conv)) = &downsampling {
            features = normalized_channels(norm, &features);
            features = conv.forward(&features);
        }
        layers.on(features)
    })
}

/// `ConvNextModel` with its `ConvNextEncoder`.
fn new_model(tracer: &Tracer, config: &Net) -> FnModule<[Tensor; 2]> {
    let code = config.family.code;
    let place = code.place(config.family.path, "Model");
    let encoder = code.place(place.path("encoder"), "Encoder");
    let embeddings = new_embeddings(tracer, place.path("embeddings"), config);
    let mut stages = Vec::new();
    let mut earlier = None;
    for (index, sizes) in config.stages.iter().enumerate() {
        let path = encoder.path(&format!("stages.{index}"));
        stages.push(new_stage(tracer, path, config, earlier, sizes));
        earlier = Some(sizes.width);
    }
    let norm = place.path("layernorm");
    let layernorm = LayerNorm::new(tracer, norm, config.last_width, config.eps);
    FnModule::new(place, move |pixel_values| {
        let tracer = pixel_values.tracer();
        let embedding_output = embeddings.forward(pixel_values);
        let last_hidden_state = tracer.in_module(&encoder, || stages.forward(&embedding_output));
        let pooled_output = (&last_hidden_state).mean(&[-2, -1], false);
        let pooled_output = layernorm.forward(pooled_output);
        drop(embedding_output);
        [last_hidden_state, pooled_output]
    })
}
