//! Well-known models by name, with the few sizes that people change.

mod resnet;

use serde_json::Value;

use super::fields::Fields;
use super::invalid::Invalid;
use crate::graph::Graph;
use resnet::{Depth, Resnet};

/// A model known by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// The name in requests.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub summary: &'static str,
    /// Elements of its parameters, without overrides.
    pub parameters: u64,
    /// What a request may change.
    pub overrides: &'static [Override],
}

/// A size that a request may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Override {
    /// The field in requests.
    pub name: &'static str,
    /// Its value without one.
    pub default: u64,
    /// What it is.
    pub summary: &'static str,
}

/// What image classifiers let a request change.
const IMAGE: &[Override] = &[
    Override {
        name: "image_size",
        default: 224,
        summary: "height and width of the images: one number, or [height, width]",
    },
    Override {
        name: "num_classes",
        default: 1000,
        summary: "classes told apart",
    },
    Override {
        name: "in_channels",
        default: 3,
        summary: "channels of the images",
    },
];

const PRESETS: &[(Preset, Depth)] = &[
    (
        Preset {
            name: "resnet18",
            summary: "torchvision's ResNet-18",
            parameters: 11_689_512,
            overrides: IMAGE,
        },
        Depth::D18,
    ),
    (
        Preset {
            name: "resnet34",
            summary: "torchvision's ResNet-34",
            parameters: 21_797_672,
            overrides: IMAGE,
        },
        Depth::D34,
    ),
    (
        Preset {
            name: "resnet50",
            summary: "torchvision's ResNet-50",
            parameters: 25_557_032,
            overrides: IMAGE,
        },
        Depth::D50,
    ),
    (
        Preset {
            name: "resnet101",
            summary: "torchvision's ResNet-101",
            parameters: 44_549_160,
            overrides: IMAGE,
        },
        Depth::D101,
    ),
    (
        Preset {
            name: "resnet152",
            summary: "torchvision's ResNet-152",
            parameters: 60_192_808,
            overrides: IMAGE,
        },
        Depth::D152,
    ),
];

/// All presets, in the order in which they are listed.
pub fn presets() -> impl ExactSizeIterator<Item = &'static Preset> {
    PRESETS.iter().map(|(preset, _)| preset)
}

/// A preset with its overrides.
#[derive(Debug, Clone, PartialEq)]
pub struct PresetModel {
    resnet: Resnet,
    pointer: String,
}

/// Reads `{"preset": NAME, ...overrides}` at `pointer`.
pub(crate) fn parse(value: &Value, pointer: &str) -> Result<PresetModel, Invalid> {
    let any = Fields::any(value, pointer, "the model")?;
    let name = any.text("preset")?.ok_or_else(|| any.missing("preset"))?;
    let Some((preset, depth)) = PRESETS.iter().find(|(preset, _)| preset.name == name) else {
        let known = presets().map(|preset| preset.name);
        return Err(Invalid::unknown(any.at("preset"), "preset", name, known));
    };
    let mut known = vec!["preset"];
    known.extend(preset.overrides.iter().map(|change| change.name));
    let fields = Fields::of(value, pointer, preset.name, &known)?;
    Ok(PresetModel {
        resnet: Resnet {
            depth: *depth,
            image_size: fields.pair("image_size", 1)?.unwrap_or([224, 224]),
            num_classes: fields.size("num_classes")?.unwrap_or(1000),
            in_channels: fields.size("in_channels")?.unwrap_or(3),
        },
        pointer: pointer.to_owned(),
    })
}

/// The forward pass of a preset, with the loss.
pub(crate) fn lower(model: &PresetModel) -> Result<Graph, Invalid> {
    let lowered = resnet::lower(&model.resnet);
    lowered.map_err(|error| Invalid::at(&model.pointer, error.to_string()))
}
