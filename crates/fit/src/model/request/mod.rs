//! The request: one document for a fit over HTTP, on the command line, and in the database.

mod changed;
mod document;
mod hardware;
mod lowered;
mod soak;
mod source;
mod training;
mod uploaded;

pub use document::{ModelFiles, RequestDocument};
pub use hardware::{
    CalibrationSource, DeviceChoice, HeadroomCalibration, is_host_name, nicknames,
    parse_memory_limit, parse_size, strategy,
};
pub use lowered::{ENGINE_DIGEST, Lowered, Workload};
pub use soak::{SoakSchedule, Validation};
pub use source::RECORDING_BOUNDS;
pub use training::DEEPSPEED;
pub(crate) use uploaded::hexadecimal;
pub use uploaded::{
    DIGEST_FORM, DetachedModel, Digest, Packed, Reference, Upload, UploadKind, Uploads, pack,
};

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::device::sim::Instance;
use crate::limits::{measured, shorten};

use crate::alloc::MemoryLimit;
use crate::units::{Bytes, Share};
use batchfit_models::exported::UnknownOps;
use batchfit_models::huggingface::HuggingFaceModel;
use batchfit_models::members::REQUEST;
pub use batchfit_models::members::{LARGEST_TARGET, MOST_RANKS, Priority, SearchMode};
use batchfit_models::{Fields, Generation, Lengths, RequestError, wrong};
use batchfit_step::{Compare, Objective, Variant};
use lowered::LoweredCell;
use source::ModelSource;

/// Longest allocator setting read, in bytes; the allocator reads no longer one.
const LONGEST_ALLOCATOR: usize = 4096;

/// Where a member stands.
fn beside(pointer: &str) -> &str {
    pointer.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Most values of a request that are said to be wrong, beside the first.
const MOST_WRONG: usize = 7;

/// The longest JSON text of a model that is read again for what else is wrong: not a graph.
const LARGEST_CORRECTED: usize = 1 << 20;

/// Which changes of a request are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Suggest {
    /// Those with which the target takes one micro-step, or without a target twice the micro-batch fits.
    More,
    /// Those with which a micro-batch of so many fits.
    MicroBatch(u64),
}

/// A valid request. What is serialized is its part of the fingerprint.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Request {
    /// Where the graph comes from, whose digest counts.
    #[serde(skip)]
    model: ModelSource,
    /// The lengths that samples have, where the request names several; the model is then that of the longest.
    #[serde(skip)]
    pub lengths: Option<Arc<Lengths>>,
    /// Every combination of precision, optimizer and checkpointing asked for; at least one.
    pub variants: Vec<Variant>,
    /// Where to run.
    pub device: DeviceChoice,
    /// The simulated cards of a job whose ranks have different ones; empty where they are alike.
    pub cards: Vec<String>,
    /// The machines of clouds that the request names, whose cards those are.
    #[serde(skip)]
    pub machines: Vec<&'static Instance>,
    /// How much memory the allocator may reserve; `None` for what is free on the device.
    pub memory_limit: Option<MemoryLimit>,
    /// What of that is to be left free, where the request says it.
    pub headroom: Option<Share>,
    /// What the host has for what is offloaded, by all processes together; `None` for enough.
    pub host_memory: Option<Bytes>,
    /// What outcomes of earlier answers teach about it; nothing where the request says it.
    #[serde(skip)]
    calibration: Vec<HeadroomCalibration>,
    /// Samples for each optimizer step over all ranks.
    pub target_batch: Option<u64>,
    /// Ranks that train together.
    pub world_size: u64,
    /// Whether the request says how they train together.
    #[serde(skip)]
    pub names_strategy: bool,
    /// Whether DDP is as transformers' Trainer makes it, since the model is of that library and the request does not say.
    pub trainer_wraps: bool,
    /// The text of a `PYTORCH_CUDA_ALLOC_CONF`; empty for PyTorch's defaults.
    pub allocator: String,
    /// How to search.
    pub search: SearchMode,
    /// Which variants are ranked against each other.
    pub compare: Compare,
    /// Which batch of a variant is looked for.
    pub objective: Objective,
    /// What becomes of operators of an exported graph that are not known.
    pub unknown_ops: UnknownOps,
    /// How many percent of what values of the batch may choose they are taken to choose.
    pub chosen_percent: Option<u64>,
    /// What is run with the batch that is found, to see whether it lasts.
    pub soak: Option<SoakSchedule>,
    /// Who is served first, where the request says it: when there is an answer, not which.
    #[serde(skip)]
    pub priority: Option<Priority>,
    /// For how many seconds it may be worked on.
    #[serde(skip)]
    pub timeout_seconds: Option<u64>,
    /// Whether changes of it are answered too.
    pub suggest: Option<Suggest>,
    /// The request as it was written.
    #[serde(skip)]
    pub document: RequestDocument,
    /// What a person would call the model.
    #[serde(skip)]
    model_name: String,
    /// The uploads that the model names, by the digests of their contents.
    #[serde(skip)]
    uploads: Vec<Digest>,
    /// Whether there is a recorder, which runs graphs that are not understood; all requests to one server have it, or none.
    #[serde(skip)]
    has_recorder: bool,
    #[serde(skip)]
    lowered: LoweredCell,
}

impl Request {
    /// Whether ranks train together in a way that is known.
    pub fn is_parallel(&self) -> bool {
        self.variants
            .iter()
            .any(|variant| !variant.parallel.is_none())
    }

    /// Reads a request that names no uploads.
    pub fn parse(document: RequestDocument) -> Result<Request, RequestError> {
        Request::parse_with_uploads(document, &Uploads::default())
    }

    /// Reads a request. `uploads` are those that [`RequestDocument::references`] names. Of files in the place of its model the document
    /// kept has the digests.
    ///
    /// # Errors
    ///
    /// All values that are wrong, as far as each is wrong by itself.
    pub fn parse_with_uploads(
        document: RequestDocument,
        uploads: &Uploads,
    ) -> Result<Request, RequestError> {
        let is_small = document.files.is_none()
            && document
                .model()
                .is_none_or(|model| model.len() <= LARGEST_CORRECTED);
        let mut rest = is_small.then(|| document.clone());
        let (request, parsed) = measured(|| Request::parse_once(document, uploads));
        let counted = |mut request: Request| {
            request.document.parsed += parsed;
            request
        };
        request.map(counted).map_err(|mut refused| {
            let mut also = Vec::<RequestError>::new();
            while let (Some(rest), last) = (&mut rest, also.last().unwrap_or(&refused))
                && also.len() < MOST_WRONG
                && last.value.is_some()
                && rest.correct(last).is_some()
                && let Err(next) = Request::parse_once(rest.clone(), uploads)
                && next.value.is_some()
                && next.pointer != last.pointer
                // What is read as absent may make others beside it seem wrong.
                && (last.nearest.is_some() || beside(&next.pointer) != beside(&last.pointer))
            {
                also.push(next);
            }
            refused.also = also.into();
            refused
        })
    }

    fn parse_once(
        mut document: RequestDocument,
        uploads: &Uploads,
    ) -> Result<Request, RequestError> {
        let of_files = match document.files.take() {
            Some(files) => Some(ModelSource::of_files(files, &mut document)?),
            None => None,
        };
        let is_of_files = of_files.is_some();
        let fields = Fields::of_object(document.members(), "", &REQUEST)?;
        let text = document.model().ok_or_else(|| fields.missing("model"))?;
        let model = match of_files {
            Some(model) => model,
            None => ModelSource::parse(&document, text, &fields.at("model"), uploads)?,
        };
        let name = match model.exported() {
            Some(graph) => exported_name(graph),
            None => model_name(text),
        };
        let request = Request::around(model, &fields)?;
        if let (Some(lengths), false) = (&request.lengths, is_of_files) {
            lengths.stand_alone(text)?;
        }
        Ok(Request {
            document,
            model_name: name,
            uploads: uploads.digests().cloned().collect(),
            ..request
        })
    }

    /// Everything but the model and the document.
    fn around(model: ModelSource, fields: &Fields<'_>) -> Result<Request, RequestError> {
        let limit = fields.get("memory_limit");
        let target_batch = fields.read("target_batch")?;
        let lengths = Lengths::read(fields)?;
        let model = match &lengths {
            Some(lengths) => model.at(lengths.of, lengths.longest(), &lengths.pointer())?,
            None => model,
        };
        let machines = hardware::machines(fields);
        let ranks = hardware::ranks(fields, &machines);
        let (mut variants, world_size) = training::variants(fields, ranks)?;
        let (device, cards) = hardware::read(fields, world_size)?;
        let memory_limit = limit
            .map(|limit| parse_memory_limit(limit, &fields.at("memory_limit")))
            .transpose()?;
        if let DeviceChoice::Sim(name) = &device
            && let Some(card) = crate::device::sim::Card::find(name)
        {
            hardware::of_card(memory_limit, card.total_memory)?;
        }
        let model = match Generation::of_request(fields)? {
            None => model,
            Some(generation) => {
                let is_simulated = matches!(device, DeviceChoice::Sim(_));
                Generation::check(&variants, is_simulated, lengths.is_some())
                    .map_err(|problem| RequestError::at(generation.pointer(), problem))?;
                model.generating(&generation)?
            }
        };
        let is_adapted = model.of_transformers().map(HuggingFaceModel::is_adapted);
        if is_adapted.is_some() {
            training::without_smoothing(&variants)?;
        }
        let trainer_wraps = match is_adapted {
            Some(is_adapted) => training::as_trainer_wraps(&mut variants, fields, is_adapted),
            None => false,
        };
        if let Some(target) = target_batch.filter(|target| *target < world_size) {
            let problem = format!(
                "{target} samples leave some of the {world_size} ranks of `world_size` without any; at least \
                 {world_size} are needed"
            );
            let value = Value::from(target);
            return Err(RequestError::at(fields.at("target_batch"), problem).with_value(&value));
        }
        if matches!(&model, ModelSource::Recorded(recordings) if !recordings.is_empty()) {
            variants.truncate(1);
            for variant in &mut variants {
                variant.recorded = true;
                // The recorded run trained as it is.
                variant.parallel = crate::model::Parallel::None;
            }
        }
        Ok(Request {
            model,
            lengths: lengths.map(Arc::new),
            variants,
            device,
            cards,
            machines,
            memory_limit,
            headroom: hardware::requested(fields)?,
            host_memory: (fields.get("host_memory"))
                .map(|size| hardware::bytes(size, &fields.at("host_memory"), "host_memory"))
                .transpose()?,
            calibration: Vec::new(),
            target_batch,
            world_size,
            names_strategy: names_strategy(fields),
            trainer_wraps,
            allocator: allocator(fields)?,
            search: fields.read("search")?.unwrap_or_default(),
            compare: fields.read("compare")?.unwrap_or_default(),
            objective: fields.read("objective")?.unwrap_or_default(),
            chosen_percent: fields.read("chosen_percent")?,
            soak: (fields.object("soak")?)
                .map(|soak| SoakSchedule::read(&soak))
                .transpose()?,
            priority: fields.read("priority")?,
            timeout_seconds: fields.read("timeout_seconds")?,
            suggest: suggest(fields)?,
            unknown_ops: fields.read("unknown_ops")?.unwrap_or_default(),
            document: RequestDocument::from(Value::Null),
            model_name: String::new(),
            uploads: Vec::new(),
            has_recorder: false,
            lowered: LoweredCell::default(),
        })
    }

    /// The same where a recorder is there, or not: it decides whether a graph with operators that are not known is refused.
    #[must_use]
    pub fn with_recorder(self, has_recorder: bool) -> Request {
        Request {
            has_recorder,
            lowered: LoweredCell::default(),
            ..self
        }
    }

    /// The same with what outcomes of earlier answers teach, unless the request says itself what is to be left free.
    #[must_use]
    pub fn with_calibration(self, mut calibration: Vec<HeadroomCalibration>) -> Request {
        if self.headroom.is_some() {
            calibration.clear();
        }
        Request {
            calibration,
            ..self
        }
    }

    /// Refuses a limit above the memory of the card that its device turned out to be.
    pub fn fits_on(&self, total: Bytes) -> Result<(), RequestError> {
        hardware::of_card(self.memory_limit, total)
    }

    /// What outcomes of earlier answers teach.
    pub fn calibration(&self) -> &[HeadroomCalibration] {
        &self.calibration
    }

    /// Whether there is a recorder.
    pub fn has_recorder(&self) -> bool {
        self.has_recorder
    }

    /// The JSON text of the exported graph that the model is, if it is one.
    pub fn exported(&self) -> Option<&[u8]> {
        self.model.exported()
    }

    /// The uploads that the model names, by the digests of their contents.
    pub fn uploads(&self) -> &[Digest] {
        &self.uploads
    }

    /// In which way the model is described.
    pub fn model_kind(&self) -> &'static str {
        match &self.model {
            ModelSource::Preset(_) => "preset",
            ModelSource::Layers(_) => "layers",
            ModelSource::HuggingFace(_) => "hf",
            ModelSource::Exported(..) => "exported",
            ModelSource::Recorded(_) => "recorded",
        }
    }

    /// Whether PEFT has adapted the model, where it is one of transformers that batchfit builds.
    pub fn is_adapted(&self) -> Option<bool> {
        let model = self.model.of_transformers()?;
        Some(model.is_adapted())
    }

    /// The type that it says of the weights of a model of transformers.
    pub fn param_dtype(&self) -> Option<crate::shape::DType> {
        self.model.of_transformers()?.param_dtype()
    }

    /// What a person would call the model: the preset's name, or else its class or the kind of description, and the beginning
    /// of its digest.
    pub fn model_name(&self) -> &str {
        &self.model_name
    }

    /// The same by another name.
    #[must_use]
    pub fn with_model_name(self, name: &str) -> Request {
        let model_name = shorten(name);
        Request { model_name, ..self }
    }
}

/// The name of an exported graph, by whatever way its JSON text came here: what surrounds the text does not count.
fn exported_name(graph: &[u8]) -> String {
    let graph = graph.trim_ascii();
    let class = source::exported_class(graph);
    named(class.as_deref().unwrap_or("exported"), &Digest::of(graph))
}

/// The name of the model that this JSON text describes.
fn model_name(model: &str) -> String {
    let way = source::ways(model).first().copied().unwrap_or("exported");
    let digest = Digest::of(model.as_bytes());
    match (way, source::preset(model), source::class(model)) {
        ("preset", Some(preset), _) => preset,
        ("hf", _, Some(class)) => named(&class, &digest),
        _ => named(way, &digest),
    }
}

fn named(way: &str, digest: &Digest) -> String {
    let digits = digest.digits();
    format!("{way}-{}", digits.get(..8).unwrap_or(digits))
}

fn allocator(fields: &Fields<'_>) -> Result<String, RequestError> {
    let text = fields.text("allocator")?.unwrap_or_default();
    if text.len() > LONGEST_ALLOCATOR {
        return Err(wrong(
            &fields.at("allocator"),
            &Value::from(text),
            "allocator must be the text of a PYTORCH_CUDA_ALLOC_CONF",
        ));
    }
    Ok(text.to_owned())
}

/// Whether changes are asked for: a truth value, or the micro-batch that is wanted.
fn suggest(fields: &Fields<'_>) -> Result<Option<Suggest>, RequestError> {
    match fields.get("suggest") {
        Some(Value::Number(_)) => {
            let micro_batch = fields.whole("suggest", 1, LARGEST_TARGET)?;
            Ok(micro_batch.map(Suggest::MicroBatch))
        }
        _ => Ok(fields
            .flag("suggest")?
            .filter(|asked| *asked)
            .map(|_| Suggest::More)),
    }
}

/// Whether `training.parallel` is there.
fn names_strategy(fields: &Fields<'_>) -> bool {
    let parallel = fields
        .get("training")
        .and_then(|training| training.get("parallel"));
    parallel.is_some_and(|parallel| !parallel.is_null())
}

#[cfg(test)]
mod synonyms;
#[cfg(test)]
mod tests;
