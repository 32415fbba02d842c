//! Models that have a name.

use serde::Serialize;
use utoipa::ToSchema;

use crate::model;

/// A model that a request may name.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Preset)]
pub struct PresetDocument {
    /// What `model.preset` says: a name of torchvision's, or an id of the Hugging Face hub.
    #[schema(example = "resnet50")]
    name: &'static str,
    /// What it is, in a sentence.
    summary: &'static str,
    /// Elements of its parameters, without overrides.
    parameters: u64,
    /// What a request may say beside `preset`.
    overrides: Vec<Override>,
}

/// A size that a request may change.
#[derive(Debug, Serialize, ToSchema)]
pub struct Override {
    /// The member beside `preset`.
    #[schema(example = "num_classes")]
    name: &'static str,
    /// Its value when it is absent; null where the request has to say it, unless the model's config does.
    default: Option<u64>,
    /// Its value where `model` is nothing but the name; missing where there is a default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    assumed: Option<u64>,
    /// What it is.
    summary: &'static str,
}

impl From<&model::Preset> for PresetDocument {
    fn from(preset: &model::Preset) -> PresetDocument {
        let overrides = preset.overrides.iter().map(|size| Override {
            name: size.name,
            default: size.default,
            assumed: model::assumed_tokens_of(preset.name).filter(|_| size.name == "seq_len"),
            summary: size.summary,
        });
        PresetDocument {
            name: preset.name,
            summary: preset.summary,
            parameters: preset.parameters,
            overrides: overrides.collect(),
        }
    }
}
