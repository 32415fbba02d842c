//! `modeling_convnext.py` and `modeling_convnextv2.py`.

use super::{DropPath, Images, evenly_up_to};
use crate::graph::Graph;
use crate::huggingface::Task;
use crate::huggingface::heads::Labels;
use crate::request_error::RequestError;
use crate::tracing::{
    Activation, Conv, LayerNorm, Linear, ModulePath, Pointwise as _, Reductions as _, Tensor,
    Tracer, Views as _,
};

/// The classes that are built here.
pub(in crate::huggingface) const CLASSES: &[&str] = &[
    "ConvNextForImageClassification",
    "ConvNextV2ForImageClassification",
];

/// Most stages read; those in use have four.
const MOST_STAGES: u64 = 64;

/// What norms inside are given whatever the config says.
const INNER_EPS: f64 = 1e-6;

/// What the two families differ in.
struct Family {
    module: &'static str,
    /// Where the model is below its head.
    path: &'static str,
    classes: Classes,
    /// Whether responses are normalized, instead of layers scaled.
    is_second: bool,
}

struct Classes {
    norm: &'static str,
    embeddings: &'static str,
    drop_path: &'static str,
    grn: &'static str,
    layer: &'static str,
    stage: &'static str,
    encoder: &'static str,
    model: &'static str,
}

macro_rules! classes {
    ($prefix:literal) => {
        Classes {
            norm: concat!($prefix, "LayerNorm"),
            embeddings: concat!($prefix, "Embeddings"),
            drop_path: concat!($prefix, "DropPath"),
            grn: concat!($prefix, "GRN"),
            layer: concat!($prefix, "Layer"),
            stage: concat!($prefix, "Stage"),
            encoder: concat!($prefix, "Encoder"),
            model: concat!($prefix, "Model"),
        }
    };
}

const FIRST: Family = Family {
    module: "convnext.modeling_convnext",
    path: "convnext",
    classes: classes!("transformers.models.convnext.modeling_convnext.ConvNext"),
    is_second: false,
};

const SECOND: Family = Family {
    module: "convnextv2.modeling_convnextv2",
    path: "convnextv2",
    classes: classes!("transformers.models.convnextv2.modeling_convnextv2.ConvNextV2"),
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
                return Err(RequestError::at(
                    config.at(name),
                    format!(
                        "{name} has {} numbers, fewer than num_stages, {stages}",
                        list.len()
                    ),
                ));
            }
        }
        if stages > MOST_STAGES {
            return Err(RequestError::at(
                config.at("num_stages"),
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
    let tracer = task.tracer(family.module);
    let model = Model::new(&tracer, &config);
    let sizes = [config.last_width, labels.count];
    let classifier = Linear::new(&tracer, "classifier", sizes, true);
    let pixel_values = config.images.input(&tracer);
    let targets = labels.input(&tracer);

    let outputs = model.forward(&pixel_values);
    let [_, pooled_output] = &outputs;
    let pooled_output = pooled_output.clone();
    let logits = classifier.forward(&pooled_output);
    let loss = labels.loss(&logits, &targets);
    drop((outputs, pooled_output));
    tracer.finish(&loss).map_err(|error| task.invalid(&error))
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
struct Embeddings {
    place: ModulePath,
    projection: Conv,
    layernorm: LayerNorm,
}

impl Embeddings {
    fn new(tracer: &Tracer, path: String, config: &Net) -> Embeddings {
        let classes = &config.family.classes;
        let place = ModulePath::new(path, classes.embeddings);
        let width = config.stages[0].width;
        Embeddings {
            projection: Conv::new(
                tracer,
                place.path("patch_embeddings"),
                [config.images.channels, width],
                &config.patch,
                1,
                true,
            )
            .strides(&config.patch),
            layernorm: LayerNorm::new(tracer, place.path("layernorm"), width, INNER_EPS)
                .class(classes.norm),
            place,
        }
    }

    fn forward(&self, pixel_values: &Tensor) -> Tensor {
        pixel_values.tracer().in_module(&self.place, || {
            let mut embeddings = self.projection.forward(pixel_values);
            embeddings = normalized_channels(&self.layernorm, &embeddings);
            embeddings
        })
    }
}

/// `ConvNextV2GRN`.
struct ResponseNorm {
    place: ModulePath,
    weight: Tensor,
    bias: Tensor,
}

impl ResponseNorm {
    fn new(tracer: &Tracer, path: String, class: &'static str, width: u64) -> ResponseNorm {
        let place = ModulePath::new(path, class);
        let parameter = |name: &str| tracer.parameter(&place.path(name), &[1, 1, 1, width]);
        ResponseNorm {
            weight: parameter("weight"),
            bias: parameter("bias"),
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let global_features = x.vector_norm(2, &[1, 2], true);
            let norm_features =
                (&global_features).div((&global_features).mean(&[-1], true).add_number(1e-6));
            let hidden_states = (&self.weight)
                .mul(x.mul(&norm_features))
                .add(&self.bias)
                .add(x);
            hidden_states.and_drop((global_features, norm_features))
        })
    }
}

/// `ConvNextLayer`.
struct Layer {
    place: ModulePath,
    dwconv: Conv,
    layernorm: LayerNorm,
    pwconv1: Linear,
    act: Activation,
    grn: Option<ResponseNorm>,
    pwconv2: Linear,
    scale: Option<Tensor>,
    drop_path: DropPath,
}

impl Layer {
    fn new(tracer: &Tracer, path: String, config: &Net, width: u64, rate: f64) -> Layer {
        let classes = &config.family.classes;
        let place = ModulePath::new(path, classes.layer);
        let wide = width.saturating_mul(4);
        let scale = place.path("layer_scale_parameter");
        Layer {
            scale: config.is_scaled.then(|| tracer.parameter(&scale, &[width])),
            dwconv: Conv::new(
                tracer,
                place.path("dwconv"),
                [width, width],
                &[7, 7],
                width,
                true,
            )
            .padding(3),
            layernorm: LayerNorm::new(tracer, place.path("layernorm"), width, INNER_EPS)
                .class(classes.norm),
            pwconv1: Linear::new(tracer, place.path("pwconv1"), [width, wide], true),
            act: Activation::named(tracer, place.path("act"), &config.activation),
            grn: config
                .family
                .is_second
                .then(|| ResponseNorm::new(tracer, place.path("grn"), classes.grn, wide)),
            pwconv2: Linear::new(tracer, place.path("pwconv2"), [wide, width], true),
            drop_path: DropPath::new(place.path("drop_path"), classes.drop_path, rate),
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut features = self.dwconv.forward(x);
            features = (&features).permute(&[0, 2, 3, 1]);
            features = self.layernorm.forward(&features);
            features = self.pwconv1.forward(&features);
            features = self.act.forward(&features);
            if let Some(grn) = &self.grn {
                features = grn.forward(&features);
            }
            features = self.pwconv2.forward(&features);
            if let Some(scale) = &self.scale {
                features = scale.mul(&features);
            }
            features = (&features).permute(&[0, 3, 1, 2]);
            features = x.add(self.drop_path.forward(&features));
            features
        })
    }
}

/// `ConvNextStage`.
struct Stage {
    place: ModulePath,
    downsampling: Option<(LayerNorm, Conv)>,
    layers: Vec<Layer>,
}

impl Stage {
    fn new(
        tracer: &Tracer,
        path: String,
        config: &Net,
        earlier_width: Option<u64>,
        sizes: &Sizes,
    ) -> Stage {
        let classes = &config.family.classes;
        let place = ModulePath::new(path, classes.stage);
        let below = |name: &str, index: usize| place.path(&format!("{name}.{index}"));
        let downsampling = earlier_width.map(|width| {
            let at = |index| below("downsampling_layer", index);
            let norm = LayerNorm::new(tracer, at(0), width, INNER_EPS).class(classes.norm);
            let conv = Conv::new(tracer, at(1), [width, sizes.width], &[2, 2], 1, true).stride(2);
            (norm, conv)
        });
        let rates = sizes.drop_paths.iter().enumerate();
        Stage {
            downsampling,
            layers: rates
                .map(|(index, rate)| {
                    Layer::new(tracer, below("layers", index), config, sizes.width, *rate)
                })
                .collect(),
            place,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut features = x.clone();
            if let Some((norm, conv)) = &self.downsampling {
                features = normalized_channels(norm, &features);
                features = conv.forward(&features);
            }
            for layer in &self.layers {
                features = layer.forward(&features);
            }
            features
        })
    }
}

/// `ConvNextModel` with its `ConvNextEncoder`.
struct Model {
    place: ModulePath,
    embeddings: Embeddings,
    encoder: ModulePath,
    stages: Vec<Stage>,
    layernorm: LayerNorm,
}

impl Model {
    fn new(tracer: &Tracer, config: &Net) -> Model {
        let classes = &config.family.classes;
        let place = ModulePath::new(config.family.path, classes.model);
        let encoder = ModulePath::new(place.path("encoder"), classes.encoder);
        let embeddings = Embeddings::new(tracer, place.path("embeddings"), config);
        let mut stages = Vec::new();
        let mut earlier = None;
        for (index, sizes) in config.stages.iter().enumerate() {
            let path = encoder.path(&format!("stages.{index}"));
            stages.push(Stage::new(tracer, path, config, earlier, sizes));
            earlier = Some(sizes.width);
        }
        let norm = place.path("layernorm");
        Model {
            embeddings,
            encoder,
            stages,
            layernorm: LayerNorm::new(tracer, norm, config.last_width, config.eps),
            place,
        }
    }

    /// The last hidden state, and what is pooled from it.
    fn forward(&self, pixel_values: &Tensor) -> [Tensor; 2] {
        let tracer = pixel_values.tracer();
        tracer.in_module(&self.place, || {
            let embedding_output = self.embeddings.forward(pixel_values);
            let last_hidden_state = tracer.in_module(&self.encoder, || {
                let mut hidden_states = embedding_output.clone();
                for stage in &self.stages {
                    hidden_states = stage.forward(&hidden_states);
                }
                hidden_states
            });
            let pooled_output = (&last_hidden_state).mean(&[-2, -1], false);
            let pooled_output = self.layernorm.forward(pooled_output);
            drop(embedding_output);
            [last_hidden_state, pooled_output]
        })
    }
}
