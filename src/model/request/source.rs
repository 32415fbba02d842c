//! `model`: where the graph comes from.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::Lowered;
use crate::model::exported::{self, Exported, ExportedError, UnknownOps, not_supported};
use crate::model::fields::Fields;
use crate::model::fingerprint::digest;
use crate::model::invalid::Invalid;
use crate::model::layers::{self, Layers};
use crate::model::presets::{self, PresetModel};

/// Where a model is in a request.
const MODEL: &str = "/model";

/// The ways to describe a model, of which a request uses one.
const WAYS: [&str; 4] = ["preset", "layers", "exported", "hf"];

/// A model description that has been read but not lowered.
#[derive(Clone, PartialEq)]
pub(super) enum ModelSource {
    Preset(PresetModel),
    Layers(Layers),
    /// An exported graph inside the request, which keeps it.
    Inline,
    /// The JSON text of a model file.
    File(Arc<[u8]>),
}

impl fmt::Debug for ModelSource {
    /// Leaves out the text of a model file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelSource::Preset(preset) => f.debug_tuple("Preset").field(preset).finish(),
            ModelSource::Layers(layers) => f.debug_tuple("Layers").field(layers).finish(),
            ModelSource::Inline => f.write_str("Inline"),
            ModelSource::File(text) => write!(f, "File({} bytes)", text.len()),
        }
    }
}

impl ModelSource {
    /// Reads the description at `pointer`.
    pub(super) fn parse(value: &Value, pointer: &str) -> Result<ModelSource, Invalid> {
        let fields = Fields::any(value, pointer, "the model")?;
        let given: Vec<&str> = WAYS
            .into_iter()
            .filter(|way| fields.get(way).is_some())
            .collect();
        match given.as_slice() {
            ["preset"] => presets::parse(value, pointer).map(ModelSource::Preset),
            ["layers"] => layers::parse(value, pointer).map(ModelSource::Layers),
            ["exported"] => {
                Fields::of(value, pointer, "an exported model", &["exported"])?;
                exported_inline(&fields)
            }
            ["hf"] => Err(Invalid::at(
                fields.at("hf"),
                "Hugging Face configs are read by batchfit's Python client: `batchfit export --hf config.json` \
                 writes the graph; give it as {\"exported\": ...} or with --model FILE",
            )),
            [] => Err(match fields.unknown_key(&WAYS) {
                Some(key) => fields.unknown(key, "the model", &WAYS),
                None => Invalid::at(
                    pointer,
                    "the model needs one of preset, layers, exported and hf",
                ),
            }),
            both => Err(Invalid::at(
                pointer,
                format!(
                    "a model is described in one way, not by {}",
                    both.join(" and ")
                ),
            )),
        }
    }

    /// The contents of a model file and the digest of its JSON.
    pub(super) fn file(file: &[u8]) -> Result<(ModelSource, String), Invalid> {
        let text = exported::unpack(file).map_err(|error| Invalid::at(MODEL, error.to_string()))?;
        let digest = digest(&text);
        Ok((ModelSource::File(text.into()), digest))
    }

    /// Whether PyTorch made the graph.
    pub(super) fn is_exported(&self) -> bool {
        match self {
            ModelSource::Inline | ModelSource::File(_) => true,
            ModelSource::Preset(_) | ModelSource::Layers(_) => false,
        }
    }

    /// The graph; `document` is the request that the description was read from.
    pub(super) fn lower(&self, document: &Value, unknown: UnknownOps) -> Result<Lowered, Invalid> {
        let plain = |graph| Lowered {
            graph,
            notes: Vec::new(),
        };
        match self {
            ModelSource::Preset(preset) => presets::lower(preset).map(plain),
            ModelSource::Layers(model) => layers::lower(model).map(plain),
            ModelSource::Inline => {
                let graph = document.pointer("/model/exported").unwrap_or(&Value::Null);
                exported::parse_value_with(graph, unknown)
                    .map(Lowered::from)
                    .map_err(|error| invalid(&error, "/model/exported"))
            }
            ModelSource::File(text) => exported::parse_with(text, unknown)
                .map(Lowered::from)
                .map_err(|error| invalid(&error, MODEL)),
        }
    }
}

impl From<Exported> for Lowered {
    fn from(exported: Exported) -> Lowered {
        Lowered {
            graph: exported.graph,
            notes: exported.notes,
        }
    }
}

fn exported_inline(model: &Fields<'_>) -> Result<ModelSource, Invalid> {
    match model.get("exported") {
        Some(Value::Object(_)) => Ok(ModelSource::Inline),
        Some(Value::String(text)) if text.starts_with("sha256:") => Err(Invalid::at(
            model.at("exported"),
            "uploaded graphs are not kept yet; give the graph itself as {\"exported\": ...} or with \
             --model FILE",
        )),
        _ => Err(Invalid::at(
            model.at("exported"),
            "exported must be the model JSON that torch.export serializes",
        )),
    }
}

/// A problem inside the graph, as one of the request.
fn invalid(error: &ExportedError, at: &str) -> Invalid {
    let problem = match error {
        ExportedError::UnknownOperators { operators } => {
            let helps = operators
                .iter()
                .all(|operator| operator.not_elementwise.is_none());
            let hint = if helps {
                "; with \"unknown_ops\": \"assume_elementwise\" in the request they are taken to save their \
                 inputs and to make their results"
            } else {
                ""
            };
            format!("{}{hint}", not_supported(operators))
        }
        ExportedError::Refused { problem, .. } => problem.clone(),
        other => other.to_string(),
    };
    Invalid::at(format!("{at}{}", error.pointer()), problem)
}
