//! Well-known models by name, with the few sizes that people change.
//!
//! Each is its Python code, line by line, traced by [`super::tracing`]. The exporter's graphs of some lie in
//! `tests/golden/presets`; a test compares the step programs of both. torchvision 0.26.
//!
//! Models are as torchvision makes them without weights. Default image sizes of classifiers are the crops that its weights
//! are evaluated with, those of segmenters the crops that its reference scripts train with.

mod blocks;
mod convolutional;
mod entry;
mod layers;
mod prelude;
mod segmenters;
mod transformers;

use serde_json::Value;

use super::fields::Fields;
use super::huggingface::{self, HuggingFaceModel, Run, hub};
use super::request_error::RequestError;
use super::{Generation, Length, LengthOf};
use crate::graph::Graph;
use crate::limits::shorten;
use entry::{Entry, Sizes};

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
    /// Its value without one; `None` where the request has to say it.
    pub default: Option<u64>,
    /// What it is.
    pub summary: &'static str,
}

impl Preset {
    /// How many parameters it has, in a few letters: `26 M`, `7.6 B`.
    pub fn size(&self) -> String {
        match self.parameters as f64 / 1e6 {
            millions @ ..1000.0 => format!("{millions:.0} M"),
            millions => format!("{:.1} B", millions / 1000.0),
        }
    }

    /// The value of a field that a request leaves out.
    fn default(&self, field: &str) -> u64 {
        let change = self.overrides.iter().find(|change| change.name == field);
        change.and_then(|change| change.default).unwrap_or(1)
    }
}

/// The families, in the order in which they are listed; smaller members first.
const FAMILIES: &[&[Entry]] = &[
    convolutional::resnet::PRESETS,
    convolutional::vgg::VGG,
    convolutional::mobilenet::PRESETS,
    convolutional::efficientnet::PRESETS,
    convolutional::convnext::PRESETS,
    convolutional::densenet::PRESETS,
    convolutional::regnet::PRESETS,
    convolutional::shufflenet::PRESETS,
    convolutional::mnasnet::PRESETS,
    convolutional::squeezenet::PRESETS,
    convolutional::vgg::ALEXNET,
    convolutional::googlenet::PRESETS,
    convolutional::inception::PRESETS,
    transformers::vit::PRESETS,
    transformers::swin::PRESETS,
    transformers::maxvit::PRESETS,
    segmenters::torchvision::PRESETS,
    segmenters::unet::PRESETS,
];

fn entries() -> impl Iterator<Item = &'static Entry> {
    FAMILIES.iter().copied().flatten()
}

/// All presets, in the order in which they are listed: torchvision's, then those of the Hugging Face hub.
pub fn presets() -> impl Iterator<Item = &'static Preset> {
    entries().map(|entry| &entry.preset).chain(hub::presets())
}

/// The preset that a person means by this name: by its own, without regard to case and punctuation and without its owner where no
/// other has it, or by one of [`ALIASES`].
pub fn preset(name: &str) -> Option<&'static Preset> {
    let exact = || presets().find(|preset| preset.name == name);
    let of_hub =
        || hub::find(name).and_then(|model| presets().find(|preset| preset.name == model.id));
    // `./resnet50` is a path.
    let is_name = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    // What letters and digits do not tell apart: `opt-1.3b` and `opt-13b`.
    let as_written = || {
        alone(|preset| {
            preset
                .name
                .rsplit('/')
                .next()
                .is_some_and(|own| own.eq_ignore_ascii_case(name))
        })
    };
    exact().or_else(of_hub).or_else(as_written).or_else(|| {
        // timm's `vit_base_patch16_224` is other code than `google/vit-base-patch16-224`.
        if !is_name || name.contains("_patch") {
            return None;
        }
        let wanted = plain(name);
        let is_alias = |line: &&str| {
            let mut names = line.split_whitespace().skip(2);
            names.any(|one| plain(one) == wanted || short(one) == wanted)
        };
        let uploaded = || {
            let (owner, own) = name.split_once('/')?;
            let mut known = UPLOADERS.split(' ');
            known
                .any(|one| one.eq_ignore_ascii_case(owner))
                .then(|| preset(own))?
        };
        let target = ALIASES
            .lines()
            .find(is_alias)
            .and_then(|line| line.split(' ').next());
        let target = target.and_then(|target| presets().find(|preset| preset.name == target));
        target
            .or_else(|| alone(|preset| short(preset.name) == wanted))
            .or_else(|| tuned(name))
            .or_else(uploaded)
    })
}

/// Other names of presets, one preset a line.
const ALIASES: &str = include_str!("aliases.txt");

/// Whose models tuned for chats have the shape of the ones that they began as.
const TUNERS: [&str; 5] = ["", "meta-llama/", "qwen/", "google/", "huggingfacetb/"];

/// Who uploads models of others again, in their own names.
const UPLOADERS: &str =
    "unsloth nousresearch huggyllama llm-research ai-modelscope modelscope redhatai neuralmagic";

/// A name in small letters and digits, and the sign of another model: UNet++.
fn plain(name: &str) -> String {
    let kept = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '+');
    kept.map(|c| c.to_ascii_lowercase()).collect()
}

/// The same without its owner.
fn short(name: &str) -> String {
    plain(name.rsplit('/').next().unwrap_or(name))
}

fn alone(is_it: impl Fn(&Preset) -> bool) -> Option<&'static Preset> {
    let mut all = presets().filter(|preset| is_it(preset));
    let found = all.next()?;
    all.next().is_none().then_some(found)
}

/// The model that one for chats began as: `Qwen/Qwen2.5-7B-Instruct` is as `Qwen/Qwen2.5-7B`.
fn tuned(name: &str) -> Option<&'static Preset> {
    let owner = name[..name.rfind('/').map_or(0, |at| at + 1)].to_lowercase();
    let base = |name: &str| {
        let mut base = short(name).trim_start_matches("meta").to_owned();
        for suffix in ["hf", "instruct", "chat", "it", "pt", "base"] {
            base.truncate(base.strip_suffix(suffix).unwrap_or(&base).len());
        }
        base
    };
    let wanted = base(name);
    let is_owned = |preset: &Preset| {
        preset.name.contains('/') && preset.name.to_lowercase().starts_with(&owner)
    };
    TUNERS
        .contains(&&*owner)
        .then(|| alone(|preset| is_owned(preset) && base(preset.name) == wanted))?
}

/// The models that a name without a size could mean, such as `llama`, as a clause; nothing where it means one or none.
pub fn of_family(name: &str) -> Option<String> {
    /// Most that are named.
    const MOST: usize = 16;
    let wanted = short(name);
    let is_meant = |preset: &&Preset| {
        let known = short(preset.name);
        let mut parts = preset.name.split(['/', '-', '_']);
        // `8b`
        parts.any(|part| part.eq_ignore_ascii_case(name))
            || wanted.len() > 2 && known.trim_start_matches("meta").starts_with(&wanted)
    };
    let found: Vec<&Preset> = presets().filter(is_meant).collect();
    if found.len() < 2 {
        return None;
    }
    let named = found.iter().take(MOST);
    let named = named.map(|preset| format!("{} ({})", preset.name, preset.size()));
    let named: Vec<String> = named.collect();
    let more = match found.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {more} more, which `batchfit presets` lists"),
    };
    Some(format!("name one of these: {}{more}", named.join(", ")))
}

/// Whether a preset is a model of transformers.
pub fn is_of_transformers(name: &str) -> bool {
    preset(name).is_some_and(|preset| hub::find(preset.name).is_some())
}

/// A preset with its overrides.
#[derive(Debug, Clone, PartialEq)]
pub struct PresetModel(Kind);

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Torchvision(TorchvisionModel),
    HuggingFace(Box<HuggingFaceModel>),
}

#[derive(Debug, Clone)]
struct TorchvisionModel {
    entry: &'static Entry,
    sizes: Sizes,
    pointer: String,
}

impl PartialEq for TorchvisionModel {
    fn eq(&self, other: &TorchvisionModel) -> bool {
        let key = |model: &TorchvisionModel| (model.entry.preset.name, model.sizes.clone());
        key(self) == key(other)
    }
}

/// What segmentation libraries call `num_classes`.
const CLASSES: &str = "classes";

/// Reads `{"preset": NAME, ...overrides}` at `pointer`.
pub fn parse(value: &Value, pointer: &str) -> Result<PresetModel, RequestError> {
    let any = Fields::any(value, pointer, "the model")?;
    let name = any.text("preset")?.ok_or_else(|| any.missing("preset"))?;
    let name = preset(name).map_or(name, |preset| preset.name);
    if let Some(model) = hub::find(name) {
        let model = huggingface::parse_hub(model, value, pointer)?;
        return Ok(PresetModel(Kind::HuggingFace(Box::new(model))));
    }
    let Some(entry) = entries().find(|entry| entry.preset.name == name) else {
        if let Some(choices) = of_family(name) {
            let problem = format!("unknown preset {:?}; {choices}", shorten(name));
            return Err(any.wrong("preset", problem));
        }
        let known = presets().map(|preset| preset.name);
        let mut error = RequestError::unknown(any.at("preset"), "preset", name, known);
        if error.nearest.is_none() {
            error.problem = format!(
                "unknown preset {:?}; a model of transformers is {{\"hf\": CONFIG}} with its config.json, any other {{\"exported\": GRAPH}} \
                 with what `batchfit export` writes",
                shorten(name)
            );
        }
        return Err(error);
    };
    let preset = &entry.preset;
    let mut known = vec!["preset"];
    known.extend(preset.overrides.iter().map(|change| change.name));
    known.push(CLASSES);
    let fields = Fields::of(value, pointer, preset.name, &known)?;
    let size = |field| -> Result<u64, RequestError> {
        Ok(fields.size(field)?.unwrap_or(preset.default(field)))
    };
    let classes = match (fields.size("num_classes")?, fields.size(CLASSES)?) {
        (Some(_), Some(_)) => {
            let problem = "it is given as num_classes too; one of them is enough";
            return Err(fields.wrong(CLASSES, problem));
        }
        (None, Some(classes)) => classes,
        (_, None) => size("num_classes")?,
    };
    let image = fields.pair("image_size", 1)?;
    Ok(PresetModel(Kind::Torchvision(TorchvisionModel {
        entry,
        sizes: Sizes {
            image: image.unwrap_or([preset.default("image_size"); 2]),
            classes,
            channels: size("in_channels")?,
        },
        pointer: pointer.to_owned(),
    })))
}

impl PresetModel {
    /// The model of transformers that it is, if it is one.
    pub fn of_transformers(&self) -> Option<&HuggingFaceModel> {
        match &self.0 {
            Kind::HuggingFace(model) => Some(model),
            Kind::Torchvision(_) => None,
        }
    }

    /// The same with samples of this length; `None` where it has no such length.
    pub fn at(&self, of: LengthOf, length: Length) -> Option<PresetModel> {
        match (&self.0, of) {
            (Kind::HuggingFace(model), _) => Some(PresetModel(Kind::HuggingFace(Box::new(
                model.at(of, length),
            )))),
            (Kind::Torchvision(model), LengthOf::ImageSize) => {
                Some(PresetModel(Kind::Torchvision(TorchvisionModel {
                    sizes: Sizes {
                        image: length.sides(),
                        ..model.sizes.clone()
                    },
                    ..model.clone()
                })))
            }
            (Kind::Torchvision(_), LengthOf::SeqLen) => None,
        }
    }

    /// The same generating text; `None` where it is no model of text.
    pub fn generating(&self, generation: &Generation) -> Option<Result<PresetModel, RequestError>> {
        match &self.0 {
            Kind::HuggingFace(model) => {
                let model = model.generating(generation);
                Some(model.map(|model| PresetModel(Kind::HuggingFace(Box::new(model)))))
            }
            Kind::Torchvision(_) => None,
        }
    }

    /// Whether casts of the model's code may be in the graph, which are made for one dtype of parameters.
    pub fn has_casts(&self) -> bool {
        matches!(self.0, Kind::HuggingFace(_))
    }
}

/// The forward pass of a preset, with the loss, and sentences for the answer.
pub fn lower(model: &PresetModel, run: Run) -> Result<(Graph, Vec<String>), RequestError> {
    match &model.0 {
        Kind::Torchvision(model) => (model.entry.build)(&model.sizes)
            .map(|graph| (graph, Vec::new()))
            .map_err(|error| RequestError::at(&model.pointer, error.to_string())),
        Kind::HuggingFace(model) => huggingface::lower(model, run),
    }
}
