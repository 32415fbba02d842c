//! `model`: where the graph comes from.

mod dtype;
mod recordings;
mod schema;

pub(super) use dtype::compare;
pub use recordings::RECORDING_BOUNDS;
pub(super) use recordings::Recordings;
pub(super) use schema::ModelSchema;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use super::document::read_members;
use super::{Lowered, ModelFiles, RequestDocument, Workload};
use crate::limits::{clause, shorten, with_budget};
use crate::model::{DIGEST_FORM, Digest, Reference, UploadKind, Uploads};
use batchfit_models::exported::{
    self, Assumptions, Exported, ExportedError, not_supported, not_understood,
};
use batchfit_models::huggingface::{self, HuggingFaceModel, Run};
use batchfit_models::layers::{self, Layers};
use batchfit_models::presets::{self, PresetModel};
use batchfit_models::{Fields, Generation, Length, LengthOf, RequestError};

/// Where a model is in a request, and an exported graph in it.
const MODEL: &str = "/model";
const EXPORTED: &str = "/model/exported";

/// Longest model, in bytes of JSON, that may name uploads: a few dozen digests.
const LONGEST_NAMING: usize = 16 << 10;

/// The ways to describe a model, of which a request uses one.
pub(super) const WAYS: [&str; 5] = ["preset", "layers", "exported", "hf", "recorded"];

/// The fields of an exported model.
const EXPORTED_FIELDS: [&str; 2] = ["exported", "seq_len"];

/// Longest sample of an exported graph whose length is left open.
const LONGEST: u64 = 1 << 24;

/// What a model's description may take in memory, apart from a graph and a list of layers: a config that names the 21,841 classes of
/// `ImageNet` in two tables takes half of it.
const MEMBERS_BYTES: usize = 16 << 20;

/// The members of a model's description. Those that may be megabytes stay text; `true` stands for them.
#[derive(Default)]
struct Members<'a> {
    values: Value,
    exported: Option<&'a str>,
    recorded: Option<&'a str>,
    layers: Option<&'a str>,
}

impl<'a> Members<'a> {
    fn read(text: &'a str, pointer: &str) -> Result<Members<'a>, RequestError> {
        const LONG: [&str; 3] = ["exported", "recorded", "layers"];
        let (members, excess) = with_budget(MEMBERS_BYTES, || read_members(text, LONG));
        let (mut values, texts) = members.map_err(|error| {
            RequestError::at(
                pointer,
                match excess {
                    Some(_) => format!(
                        "the model's description would take more than {} MiB of memory, beside a graph or layers",
                        MEMBERS_BYTES >> 20
                    ),
                    None => clause(&error),
                },
            )
        })?;
        let texts = texts.map(|text| text.filter(|text| *text != "null"));
        for (name, _) in LONG.iter().zip(texts).filter(|(_, text)| text.is_some()) {
            values[*name] = Value::Bool(true);
        }
        let [exported, recorded, layers] = texts;
        Ok(Members {
            values,
            exported,
            recorded,
            layers,
        })
    }
}

/// A model description that has been read but not lowered.
#[derive(Clone, PartialEq)]
pub(super) enum ModelSource {
    Preset(PresetModel),
    Layers(Layers),
    HuggingFace(Box<HuggingFaceModel>),
    /// An exported graph, and the length of its samples where it leaves that open.
    Exported(GraphText, Option<u64>),
    Recorded(Recordings),
}

/// The JSON text of an exported graph.
#[derive(Clone, PartialEq)]
pub(super) enum GraphText {
    /// Inside the text of the request.
    Inline(Arc<str>, Range<usize>),
    /// In a file or an upload, and the place in the request that stands for it.
    File(Arc<[u8]>, &'static str),
}

impl GraphText {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            GraphText::Inline(text, range) => &text.as_bytes()[range.clone()],
            GraphText::File(text, _) => text,
        }
    }

    /// The same without its text.
    pub(super) fn without_bytes(self) -> GraphText {
        match self {
            GraphText::Inline(..) => GraphText::Inline(Arc::from(""), 0..0),
            GraphText::File(_, at) => GraphText::File(Arc::from([]), at),
        }
    }

    /// Where it is in the request.
    fn pointer(&self) -> &'static str {
        match self {
            GraphText::Inline(..) => EXPORTED,
            GraphText::File(_, at) => at,
        }
    }
}

impl fmt::Debug for ModelSource {
    /// Leaves out the text of a graph.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelSource::Preset(preset) => f.debug_tuple("Preset").field(preset).finish(),
            ModelSource::Layers(layers) => f.debug_tuple("Layers").field(layers).finish(),
            ModelSource::HuggingFace(model) => f.debug_tuple("HuggingFace").field(model).finish(),
            ModelSource::Exported(text, _) => write!(f, "Exported({} bytes)", text.bytes().len()),
            ModelSource::Recorded(recordings) => {
                f.debug_tuple("Recorded").field(recordings).finish()
            }
        }
    }
}

/// The ways in which a model is described.
pub(super) fn ways(model: &str) -> Vec<&'static str> {
    let members = Members::read(model, MODEL).unwrap_or_default();
    let given = |way: &&str| {
        members
            .values
            .get(way)
            .is_some_and(|value| !value.is_null())
    };
    WAYS.into_iter().filter(given).collect()
}

/// The name of the preset that a model is.
pub(super) fn preset(model: &str) -> Option<String> {
    let members = Members::read(model, MODEL).ok()?;
    members.values.get("preset")?.as_str().map(str::to_owned)
}

/// The class that a model's Hugging Face config names.
pub(super) fn class(model: &str) -> Option<String> {
    let members = Members::read(model, MODEL).ok()?;
    let class = members.values.pointer("/hf/architectures/0")?.as_str()?;
    Some(shorten(class))
}

/// The class of the model in an exported graph: that of the first operator's outermost module, other than the exporter's own.
pub(super) fn exported_class(graph: &[u8]) -> Option<String> {
    /// As many operators are looked at, as some are the loss's.
    const MOST: usize = 64;
    const KEY: &[u8] = b"\"nn_module_stack\"";
    let starts = graph.windows(KEY.len()).enumerate();
    let stacks = starts.filter(|(_, window)| *window == KEY).take(MOST);
    let mut classes = stacks.filter_map(|(at, _)| {
        let stack = graph[at + KEY.len()..].split(|byte| *byte == b'"').nth(1)?;
        let modules = std::str::from_utf8(stack).ok()?.split(';');
        let mut classes = modules.filter_map(|module| module.rsplit(',').next());
        let class = classes
            .find(|class| !class.starts_with("batchfit.") && !class.starts_with("_empty_"))?;
        class.rsplit('.').next()
    });
    let class = classes.find(|class| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        !class.is_empty() && class.chars().all(is_part)
    });
    class.map(shorten)
}

impl ModelSource {
    /// Reads the description at `pointer`, which is this part of the document and may name `uploads`.
    pub(super) fn parse(
        document: &RequestDocument,
        model: &str,
        pointer: &str,
        uploads: &Uploads,
    ) -> Result<ModelSource, RequestError> {
        let members = Members::read(model, pointer)?;
        let value = &members.values;
        let fields = Fields::any(value, pointer, "the model")?;
        let given: Vec<&str> = WAYS
            .into_iter()
            .filter(|way| fields.get(way).is_some())
            .collect();
        match given.as_slice() {
            ["preset"] => presets::parse(value, pointer).map(ModelSource::Preset),
            ["layers"] => {
                let layers = members.layers.unwrap_or("null");
                layers::parse(value, layers, pointer).map(ModelSource::Layers)
            }
            ["exported"] => {
                let fields = Fields::of(value, pointer, "an exported model", &EXPORTED_FIELDS)?;
                let seq_len = fields.whole("seq_len", 1, LONGEST)?;
                let graph = members.exported.unwrap_or("null");
                if graph.starts_with('{') {
                    let (text, range) = document.locate(graph);
                    return Ok(ModelSource::Exported(
                        GraphText::Inline(text, range),
                        seq_len,
                    ));
                }
                let digest = named(graph, &fields.at("exported"))?;
                match uploads.get(&digest) {
                    Some(upload) => {
                        let text = GraphText::File(Arc::clone(&upload.contents), EXPORTED);
                        Ok(ModelSource::Exported(text, seq_len))
                    }
                    None => Err(RequestError::at(
                        fields.at("exported"),
                        format!(
                            "{digest} names a graph that was uploaded to a service; here, give the graph itself as \
                             {{\"exported\": ...}} or with --model FILE"
                        ),
                    )),
                }
            }
            ["hf"] => huggingface::parse(value, pointer)
                .map(|model| ModelSource::HuggingFace(Box::new(model))),
            ["recorded"] => {
                Fields::of(value, pointer, "a recorded model", &["recorded", "batches"])?;
                let list = members.recorded.unwrap_or("null");
                let batches = fields.get("batches");
                Recordings::parse(list, batches, pointer, uploads).map(ModelSource::Recorded)
            }
            [] => Err(match fields.unknown_key(&WAYS) {
                Some(key) => fields.unknown(key, "the model", &WAYS),
                None => RequestError::at(
                    pointer,
                    "the model needs one of preset, layers, exported, hf and recorded",
                ),
            }),
            both => Err(RequestError::at(
                pointer,
                format!(
                    "a model is described in one way, not by {}",
                    both.join(" and ")
                ),
            )),
        }
    }

    /// What is in files, by whose digests the document names it from then on. Samples of a graph that leaves their length open are as long as
    /// the document says.
    pub(super) fn of_files(
        files: ModelFiles,
        document: &mut RequestDocument,
    ) -> Result<ModelSource, RequestError> {
        let (model, named) = match files {
            ModelFiles::Graph(file) => {
                let seq_len = document.model().and_then(seq_len_alone);
                let text = exported::unpack(&file)
                    .map_err(|error| RequestError::at(MODEL, error.to_string()))?;
                let digest = Digest::of(&text);
                let named = exported_text(&format!("\"{digest}\""), seq_len);
                (
                    ModelSource::Exported(GraphText::File(text.into(), MODEL), seq_len),
                    named,
                )
            }
            ModelFiles::Recordings(files, batches) => {
                let recordings = Recordings::of_files(files, &batches);
                let named = Arc::from(recordings.named().to_string());
                (ModelSource::Recorded(recordings), named)
            }
        };
        document.set_model(named);
        Ok(model)
    }

    /// A model of transformers that batchfit builds.
    pub(super) fn of_transformers(&self) -> Option<&HuggingFaceModel> {
        match self {
            ModelSource::HuggingFace(model) => Some(model),
            ModelSource::Preset(preset) => preset.of_transformers(),
            ModelSource::Layers(_) | ModelSource::Exported(..) | ModelSource::Recorded(_) => None,
        }
    }

    /// The JSON text of an exported graph, wherever it is from.
    pub(super) fn exported(&self) -> Option<&[u8]> {
        match self {
            ModelSource::Exported(text, _) => Some(text.bytes()),
            ModelSource::Preset(_)
            | ModelSource::Layers(_)
            | ModelSource::HuggingFace(_)
            | ModelSource::Recorded(_) => None,
        }
    }

    /// The same generating text.
    pub(super) fn generating(&self, generation: &Generation) -> Result<ModelSource, RequestError> {
        let found = match self {
            ModelSource::Preset(preset) => {
                let preset = preset.generating(generation);
                preset.map(|preset| preset.map(ModelSource::Preset))
            }
            ModelSource::HuggingFace(model) => {
                let model = model.generating(generation);
                Some(model.map(|model| ModelSource::HuggingFace(Box::new(model))))
            }
            ModelSource::Layers(_) | ModelSource::Exported(..) | ModelSource::Recorded(_) => None,
        };
        found.unwrap_or_else(|| {
            let problem = "generation is of a language model that is described by a preset or a Hugging Face config";
            Err(RequestError::at(generation.pointer(), problem))
        })
    }

    /// The same with samples of this length, which is at `pointer` in the request.
    pub(super) fn at(
        &self,
        of: LengthOf,
        length: Length,
        pointer: &str,
    ) -> Result<ModelSource, RequestError> {
        let refused = |problem: String| Err(RequestError::at(pointer, problem));
        let name = of.name();
        match (self, of) {
            (ModelSource::Preset(preset), _) => preset.at(of, length).map_or_else(
                || refused(format!("this model has no {name} that could differ; it has {}", of.other())),
                |preset| Ok(ModelSource::Preset(preset)),
            ),
            (ModelSource::HuggingFace(model), _) => {
                Ok(ModelSource::HuggingFace(Box::new(model.at(of, length))))
            }
            (ModelSource::Exported(text, _), LengthOf::SeqLen) => {
                Ok(ModelSource::Exported(text.clone(), Some(length.units(of))))
            }
            (ModelSource::Exported(..), LengthOf::ImageSize) => refused(
                "an exported graph has the sizes that it was exported with; export one for each size".to_owned(),
            ),
            (ModelSource::Layers(_), _) => refused(format!(
                "a model of layers has one {name}, that of `input`; ask for each by itself, or describe the model by a preset \
                 or a Hugging Face config"
            )),
            (ModelSource::Recorded(_), _) => refused(format!(
                "recordings are of steps of one {name}; describe the model instead, or record each by itself"
            )),
        }
    }

    /// Whether casts of the model's code may be in the graph, which are made for one dtype of parameters.
    pub(super) fn has_casts(&self) -> bool {
        match self {
            ModelSource::Exported(..) | ModelSource::HuggingFace(_) => true,
            ModelSource::Preset(preset) => preset.has_casts(),
            ModelSource::Layers(_) | ModelSource::Recorded(_) => false,
        }
    }

    /// The graph; `run` says the dtype of parameters, where that is not the graph's own.
    pub(super) fn lower(
        &self,
        assumptions: Assumptions,
        run: Run,
    ) -> Result<Lowered, RequestError> {
        let noted = |(graph, notes)| Lowered {
            workload: Workload::Graph(Arc::new(graph)),
            notes,
            assumptions: Vec::new(),
            not_understood: None,
            held: 0,
        };
        match self {
            ModelSource::Preset(preset) => presets::lower(preset, run).map(noted),
            ModelSource::Layers(model) => {
                layers::lower(model).map(|graph| noted((graph, Vec::new())))
            }
            ModelSource::HuggingFace(model) => huggingface::lower(model, run).map(noted),
            ModelSource::Exported(text, seq_len) => {
                let assumptions = Assumptions {
                    seq_len: *seq_len,
                    ..assumptions
                };
                exported::parse_text(text.bytes(), assumptions)
                    .map(Lowered::from)
                    .map_err(|error| invalid(&error, text.pointer()))
            }
            ModelSource::Recorded(recordings) => recordings.lower(),
        }
    }
}

impl From<Exported> for Lowered {
    fn from(exported: Exported) -> Lowered {
        Lowered {
            workload: Workload::Graph(Arc::new(exported.graph)),
            notes: exported.notes,
            assumptions: exported.assumptions,
            not_understood: exported.not_understood,
            held: 0,
        }
    }
}

/// The length of samples, of a description that says nothing else: the graph itself is in a file.
pub(super) fn seq_len_alone(model: &str) -> Option<u64> {
    let members = Members::read(model, MODEL).ok()?;
    let fields = Fields::of(&members.values, MODEL, "the model", &["seq_len"]).ok()?;
    fields.whole("seq_len", 1, LONGEST).ok()?
}

/// The JSON text of an exported model: this graph, or what names it.
pub(super) fn exported_text(graph: &str, seq_len: Option<u64>) -> Arc<str> {
    let length = seq_len.map_or_else(String::new, |length| format!(",\"seq_len\":{length}"));
    Arc::from(format!("{{\"exported\":{graph}{length}}}"))
}

/// The uploads that a model's description names.
pub(super) fn references(model: &str) -> Result<Vec<Reference>, RequestError> {
    if model.len() > LONGEST_NAMING {
        return Ok(Vec::new());
    }
    // What is wrong with the rest is said where it is read.
    let members = Members::read(model, MODEL).unwrap_or_default();
    if let Some(list) = members.recorded {
        return recordings::references(list);
    }
    match members.exported {
        Some(graph) if graph.starts_with('"') => Ok(vec![Reference {
            digest: named(graph, EXPORTED)?,
            pointer: EXPORTED.to_owned(),
            kind: UploadKind::Exported,
        }]),
        Some(_) | None => Ok(Vec::new()),
    }
}

/// The digest that stands at `pointer` in the place of a graph.
fn named(text: &str, pointer: &str) -> Result<Digest, RequestError> {
    let Ok(word) = serde_json::from_str::<String>(text) else {
        return Err(RequestError::at(
            pointer,
            "exported must be the model JSON that torch.export serializes, or the digest of an uploaded one",
        ));
    };
    Digest::parse(&word).ok_or_else(|| {
        let said = format!("is neither a graph nor a digest; {DIGEST_FORM}");
        RequestError::at(pointer, format!("{:?} {said}", shorten(&word))).with_text(&word)
    })
}

/// A problem inside the graph, as one of the request.
fn invalid(error: &ExportedError, at: &str) -> RequestError {
    let problem = match error {
        ExportedError::UnknownOperators { operators } => {
            let helps = operators
                .iter()
                .all(|operator| operator.not_elementwise.is_none());
            let hint = if helps {
                "; with \"unknown_ops\": \"assume_elementwise\" in the request, batchfit assumes that each keeps its \
                 inputs for the backward pass and allocates its results"
            } else {
                ""
            };
            format!("{}{hint}", not_supported(operators))
        }
        ExportedError::Refused { problem, .. } => problem.clone(),
        ExportedError::NotUnderstood { problems, unknown } => match (&**problems, &**unknown) {
            ([only], []) => format!("{}; `unknown_ops` does not help", only.problem),
            _ => not_understood(problems, unknown, at),
        },
        other => other.to_string(),
    };
    RequestError::at(format!("{at}{}", error.pointer()), problem)
}
