//! From JSON to [`Layers`].

use std::fmt;

use serde::Deserializer as _;
use serde::de::{self, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{INPUT, Layer, LayerKind, Layers};
use crate::fields::{Fields, wrong};
use crate::limits::{AnyValue, clause, with_budget};
use crate::request_error::RequestError;
use crate::shape::{DType, Window};

/// Most layers read. The deepest network in use has a few thousand, and each takes up to ten kilobytes in a step.
const MOST_LAYERS: usize = 25_000;

/// Most dimensions of a sample.
const MOST_DIMENSIONS: usize = 8;

/// The fields of the description.
pub(crate) const FIELDS: &[&str] = &["layers", "input", "loss"];

/// The layers known, with their own fields; all have `type`, `name` and `inputs` besides.
#[rustfmt::skip] // A row a line.
pub(crate) const LAYER_TYPES: &[(&str, &[&str])] = &[
    ("conv2d", &["out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias", "in_channels"]),
    ("batch_norm2d", &["eps", "momentum", "num_features"]),
    ("relu", &["inplace"]),
    ("gelu", &["approximate"]),
    ("max_pool2d", &["kernel_size", "stride", "padding", "dilation", "ceil_mode"]),
    ("adaptive_avg_pool2d", &["output_size"]),
    ("flatten", &["start_dim"]),
    ("linear", &["out_features", "bias", "in_features"]),
    ("dropout", &["p"]),
    ("layer_norm", &["normalized_shape", "eps"]),
    ("embedding", &["num_embeddings", "embedding_dim"]),
    ("add", &[]),
];

/// What one layer may take in memory while it is read: it has a dozen fields.
const LAYER_BYTES: usize = 64 << 10;

/// Reads the description at `pointer`; `text` is the JSON text of its `layers`.
pub fn parse(value: &Value, text: &str, pointer: &str) -> Result<Layers, RequestError> {
    let fields = Fields::of(value, pointer, "a model of layers", FIELDS)?;
    fields.choice("loss", "loss", &[("cross_entropy", ())])?;
    let (input, dtype) = input(&fields)?;
    let at = fields.at("layers");
    if !text.starts_with('[') {
        let other: Value = if text.starts_with('{') {
            Value::Object(serde_json::Map::new())
        } else {
            serde_json::from_str(text).unwrap_or_default()
        };
        return Err(wrong(&at, &other, "layers must be a list"));
    }
    let mut reader = Reader {
        at: &at,
        stack: Vec::new(),
        wrong: None,
    };
    let mut json = serde_json::Deserializer::from_str(text);
    let read = json.deserialize_seq(&mut reader);
    if let Some(wrong) = reader.wrong {
        return Err(wrong);
    }
    let count = read.map_err(|error| RequestError::at(&at, clause(&error)))?;
    if count == 0 {
        return Err(RequestError::at(at, "a model needs at least one layer"));
    }
    if count > MOST_LAYERS {
        return Err(RequestError::at(
            at,
            format!("{count} layers are more than the {MOST_LAYERS} that are read"),
        ));
    }
    Ok(Layers {
        input,
        dtype,
        stack: reader.stack,
        pointer: at,
    })
}

/// Reads layers one by one, so that only what is understood of them is kept.
struct Reader<'a> {
    at: &'a str,
    stack: Vec<Layer>,
    wrong: Option<RequestError>,
}

impl<'de> Visitor<'de> for &mut Reader<'_> {
    /// How many layers there are.
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of layers")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut layers: S) -> Result<usize, S::Error> {
        let mut count = 0;
        while count < MOST_LAYERS
            && let Some(text) = layers.next_element::<&'de RawValue>()?
        {
            let pointer = format!("{}/{count}", self.at);
            let (value, _) =
                with_budget(LAYER_BYTES, || serde_json::from_str::<AnyValue>(text.get()));
            let read = value
                .map_err(|error| RequestError::at(&pointer, clause(&error)))
                .and_then(|AnyValue(value)| layer(&value, &pointer));
            match read {
                Ok(layer) => self.stack.push(layer),
                Err(wrong) => {
                    self.wrong = Some(wrong);
                    return Err(de::Error::custom("a layer is not valid"));
                }
            }
            count += 1;
        }
        while layers.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(count)
    }
}

fn input(model: &Fields<'_>) -> Result<(Vec<u64>, DType), RequestError> {
    let value = model.get(INPUT).ok_or_else(|| model.missing(INPUT))?;
    let fields = Fields::of(value, &model.at(INPUT), "the input", &["shape", "dtype"])?;
    let shape = fields
        .sizes("shape")?
        .ok_or_else(|| fields.missing("shape"))?;
    if shape.is_empty() || shape.len() > MOST_DIMENSIONS {
        let problem = format!(
            "a sample has 1 to {MOST_DIMENSIONS} dimensions, not {}",
            shape.len()
        );
        return Err(fields.wrong("shape", problem));
    }
    let known = [("float32", DType::Float32), ("int64", DType::Int64)];
    let dtype = fields.choice("dtype", "input dtype", &known)?;
    Ok((shape, dtype.unwrap_or(DType::Float32)))
}

fn layer(value: &Value, pointer: &str) -> Result<Layer, RequestError> {
    let any = Fields::any(value, pointer, "a layer")?;
    let word = any.text("type")?.ok_or_else(|| any.missing("type"))?;
    let Some((kind, own)) = LAYER_TYPES.iter().find(|(name, _)| *name == word) else {
        let known = LAYER_TYPES.iter().map(|(name, _)| *name);
        return Err(RequestError::unknown(
            any.at("type"),
            "layer type",
            word,
            known,
        ));
    };
    let known: Vec<&str> = ["type", "name", "inputs"]
        .iter()
        .chain(*own)
        .copied()
        .collect();
    let fields = Fields::of(value, pointer, kind, &known)?;
    Ok(Layer {
        name: name(&fields)?,
        inputs: inputs(&fields, kind)?,
        kind: layer_kind(kind, &fields)?,
    })
}

fn name(fields: &Fields<'_>) -> Result<Option<String>, RequestError> {
    let Some(name) = fields.text("name")? else {
        return Ok(None);
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if name.is_empty() || name.len() > 200 || name == INPUT || !name.chars().all(plain) {
        return Err(wrong(
            &fields.at("name"),
            &Value::from(name),
            "a layer's name must consist of letters, digits, _ and ., and not be \"input\"",
        ));
    }
    Ok(Some(name.to_owned()))
}

fn inputs(fields: &Fields<'_>, kind: &str) -> Result<Vec<String>, RequestError> {
    let takes = if kind == "add" { 2 } else { 1 };
    match fields.texts("inputs")? {
        Some(names) if names.len() == takes => Ok(names.into_iter().map(str::to_owned).collect()),
        Some(names) => Err(fields.wrong(
            "inputs",
            format!(
                "{kind} takes {takes} input{}, not {}",
                if takes == 1 { "" } else { "s" },
                names.len()
            ),
        )),
        None if takes == 1 => Ok(Vec::new()),
        None => Err(fields.missing("inputs")),
    }
}

fn layer_kind(kind: &str, fields: &Fields<'_>) -> Result<LayerKind, RequestError> {
    let size = |field: &str| fields.size(field)?.ok_or_else(|| fields.missing(field));
    let bias = || -> Result<bool, RequestError> { Ok(fields.flag("bias")?.unwrap_or(true)) };
    Ok(match kind {
        "conv2d" => LayerKind::Conv2d {
            out_channels: size("out_channels")?,
            window: Window {
                groups: fields.size("groups")?.unwrap_or(1),
                ..window(fields)?
            },
            bias: bias()?,
            in_channels: fields.size("in_channels")?,
        },
        "batch_norm2d" => LayerKind::BatchNorm2d {
            momentum: fields.number("momentum", 0.0, 1.0)?.unwrap_or(0.1),
            eps: fields.number("eps", 0.0, 1.0)?.unwrap_or(1e-5),
            num_features: fields.size("num_features")?,
        },
        "relu" => LayerKind::Relu {
            inplace: fields.flag("inplace")?.unwrap_or(false),
        },
        "gelu" => {
            let known = ["none", "tanh"].map(|word| (word, word));
            let approximate = fields.choice("approximate", "approximation", &known)?;
            LayerKind::Gelu {
                approximate: approximate.unwrap_or("none"),
            }
        }
        "max_pool2d" => {
            let window = window(fields)?;
            LayerKind::MaxPool2d(Window {
                stride: fields
                    .pair("stride", 1)?
                    .map_or(window.kernel, |stride| planes(1, stride)),
                ceil_mode: fields.flag("ceil_mode")?.unwrap_or(false),
                ..window
            })
        }
        "adaptive_avg_pool2d" => LayerKind::AdaptiveAvgPool2d(
            fields
                .pair("output_size", 1)?
                .ok_or_else(|| fields.missing("output_size"))?,
        ),
        "flatten" => LayerKind::Flatten {
            // Dimension 0 is the batch, which a loss needs.
            start_dim: fields.whole("start_dim", 1, 8)?.unwrap_or(1),
        },
        "linear" => LayerKind::Linear {
            out_features: size("out_features")?,
            bias: bias()?,
            in_features: fields.size("in_features")?,
        },
        "dropout" => LayerKind::Dropout {
            p: fields.number("p", 0.0, 1.0)?.unwrap_or(0.5),
        },
        "layer_norm" => LayerKind::LayerNorm {
            normalized_shape: normalized_shape(fields)?,
            eps: fields.number("eps", 0.0, 1.0)?.unwrap_or(1e-5),
        },
        "embedding" => LayerKind::Embedding {
            num_embeddings: size("num_embeddings")?,
            embedding_dim: size("embedding_dim")?,
        },
        _ => LayerKind::Add,
    })
}

/// A number or a list of numbers, as in PyTorch.
fn normalized_shape(fields: &Fields<'_>) -> Result<Option<Vec<u64>>, RequestError> {
    match fields.get("normalized_shape") {
        Some(Value::Number(_)) => Ok(fields.size("normalized_shape")?.map(|length| vec![length])),
        Some(Value::Array(lengths)) if lengths.is_empty() => Err(fields.wrong(
            "normalized_shape",
            "normalized_shape needs at least one length",
        )),
        _ => fields.sizes("normalized_shape"),
    }
}

fn window(fields: &Fields<'_>) -> Result<Window, RequestError> {
    let kernel = fields
        .pair("kernel_size", 1)?
        .ok_or_else(|| fields.missing("kernel_size"))?;
    Ok(Window {
        stride: planes(1, fields.pair("stride", 1)?.unwrap_or([1, 1])),
        padding: planes(0, fields.pair("padding", 0)?.unwrap_or([0, 0])),
        dilation: planes(1, fields.pair("dilation", 1)?.unwrap_or([1, 1])),
        ..Window::of(kernel)
    })
}

/// Numbers for height and width, and the one that planes have along their depth.
fn planes(depth: u64, [height, width]: [u64; 2]) -> [u64; 3] {
    [depth, height, width]
}
