//! The documents that outsiders read: a fit, a probe, and why a fit failed.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{EngineError, FitResult, JobError, Progress, VariantResult};
use crate::model::{
    DeviceChoice, Digest, ENGINE_DIGEST, Mode, Priority, Request, RequestDocument, strategy,
};
use crate::probe::{MemoryEvents, ProbeReport};
use crate::store::{
    Db, Fit, FitState, FitTerms, Ids, JsonText, NewFit, NewUpload, SIMULATED_LANE, StoredHeadroom,
    StoredRecommendation, Time,
};
use crate::units::Share;
use batchfit_fit::{card_name, work};

/// The version that answers.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The lane of work on large models on simulated devices. Each takes up to some 400 MiB, so there is one at a time, and
/// those of ordinary models do not wait for it.
pub(super) const LARGE_LANE: &str = "simulated, large";

/// Size from which on a model is large: see `batchfit_torch::graph::Graph::size`. The largest models in use have
/// some thousand operations of three operands and results each. An operation takes 3 KiB, and up to 14 in convolutional nets under
/// autocast.
pub(super) const LARGE: usize = 20_000;

/// Work from which on it is large, in operations to simulate: see [`work`](batchfit_fit::work). Some ten seconds.
const LARGE_WORK: usize = 100_000;

/// How much of a model's digest is stored: accidents in 2^64 are rare enough.
const DIGITS: usize = 16;

/// A fit: the body of `GET /v1/fits/{id}` and the output of `fit --json`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct FitDocument {
    /// Its name; `/v1/fits/{id}` leads back to it.
    #[schema(example = "1mk3v7q0h5c2d8xw")]
    pub id: String,
    /// Where it stands.
    pub state: FitState,
    /// The request, as it was sent, with the digest of an exported graph, or of any other model of more than 64 KiB, in its place.
    #[schema(value_type = RequestDocument)]
    pub request: JsonText,
    /// The answer, when it is done.
    #[schema(value_type = Option<FitResult>)]
    pub result: Option<Value>,
    /// Why there is no answer, when it failed.
    #[schema(value_type = Option<FitError>)]
    pub error: Option<Value>,
    /// How far it is, while it runs.
    pub progress: Option<Progress>,
    /// When it was asked.
    pub created_at: Time,
    /// When it was last begun.
    pub started_at: Option<Time>,
    /// When it ended.
    pub finished_at: Option<Time>,
}

impl FitDocument {
    /// The document of a fit that was computed here and now.
    pub fn finished(
        request: &Request,
        result: &FitResult,
        started_at: Time,
        finished_at: Time,
    ) -> FitDocument {
        FitDocument {
            id: Ids::default().next(started_at),
            state: FitState::Done,
            request: request_json(request),
            result: Some(json(result)),
            error: None,
            progress: None,
            created_at: started_at,
            started_at: Some(started_at),
            finished_at: Some(finished_at),
        }
    }

    /// The answer; `None` where there is none, or an earlier version wrote it otherwise.
    pub(super) fn answer(self) -> Option<FitResult> {
        // As the formats read it: another reader would be compiled of every type in it.
        FitResult::deserialize(&self.result?).ok()
    }

    /// The limit that the answer is for.
    pub(super) fn limit_bytes(self) -> Option<u64> {
        Some(self.answer()?.recommendation.limit_bytes)
    }

    pub(super) fn of(fit: Fit, progress: Option<Progress>) -> FitDocument {
        FitDocument {
            id: fit.id,
            state: fit.state,
            request: fit.request,
            result: fit.result.map(|result| with_fits(result.0)),
            error: fit.error.map(|error| error.0),
            progress,
            created_at: fit.created_at,
            started_at: fit.started_at,
            finished_at: fit.finished_at,
        }
    }
}

/// An answer with `fits`, which those stored before it was a member say by `micro_batch` alone.
fn with_fits(mut result: Value) -> Value {
    let count = result
        .get("variants")
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    let variants = (0..count).map(|at| format!("/variants/{at}/recommendation"));
    for at in std::iter::once("/recommendation".to_owned()).chain(variants) {
        let found = result.pointer_mut(&at).and_then(Value::as_object_mut);
        if let Some(found) = found {
            let fits = found.get("micro_batch").and_then(Value::as_u64) > Some(0);
            found.entry("fits").or_insert(Value::Bool(fits));
        }
    }
    result
}

/// Whether the model is large, whatever work it is.
pub(super) fn is_large(request: &Request) -> bool {
    request.size().unwrap_or(0) >= LARGE
}

/// The lane of a fit, or of a probe, that is answered here; `card` is that of the device, none where it is simulated. `auto` is a lane of its
/// own: its worker takes a GPU that is free, and waits for its turn where none is.
pub(super) fn lane_of_fit(request: &Request, card: Option<&str>) -> String {
    let is_large = is_large(request) || work(request) >= LARGE_WORK;
    match (&request.device, card) {
        (DeviceChoice::Sim(_), _) | (DeviceChoice::Kind(_), None) if is_large => {
            LARGE_LANE.to_owned()
        }
        (DeviceChoice::Sim(_), _) | (DeviceChoice::Kind(_), None) => SIMULATED_LANE.to_owned(),
        (
            DeviceChoice::Auto
            | DeviceChoice::Cuda(_)
            | DeviceChoice::Kind(_)
            | DeviceChoice::Host(..),
            _,
        ) => request.device.to_string(),
    }
}

/// What names a model in the tables.
pub(super) fn short_digest(digest: &str) -> String {
    digest.get(..DIGITS).unwrap_or(digest).to_owned()
}

/// Stores a fit that was computed outside the queue. `document` is from [`FitDocument::finished`].
pub async fn record(
    db: &Db,
    request: &Request,
    result: &FitResult,
    document: &FitDocument,
) -> Result<(), JobError> {
    let finished_at = document.finished_at.unwrap_or(document.created_at);
    let ids = Ids::default();
    let lowered = request.lower()?;
    let digest = request.model_digest(lowered);
    let environment = &result.environment;
    let card = (!environment.device.starts_with("sim:"))
        .then(|| card_name(&environment.gpu, environment.driver.as_deref()));
    let lane = lane_of_fit(request, card.as_deref());
    let new = new_fit(
        document.id.clone(),
        request,
        document.request.clone(),
        (
            asked_by(
                &request.fingerprint_with((lowered, &digest), card.as_deref()),
                &request.shown().0,
            ),
            short_digest(&digest),
        ),
        None,
        (terms(request, false, card.is_none(), Duration::MAX), lane),
        document.created_at,
    );
    let digest = &new.model_digest;
    let rows = recommendations(&document.id, (request, digest), result, finished_at, || {
        ids.next(finished_at)
    })?;
    let result = json(result);
    Ok(db.record(&new, &result, &rows, finished_at).await?)
}

/// A probe: the body of `GET /v1/probes/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ProbeDocument {
    /// Its name; `/v1/probes/{id}` leads back to it.
    pub id: String,
    /// The request, as it was sent, with the digest of an exported graph, or of any other model of more than 64 KiB, in its place.
    #[schema(value_type = RequestDocument)]
    pub request: JsonText,
    /// When it ran.
    pub created_at: Time,
    /// What was found: the same members as `probe --json`.
    #[serde(flatten)]
    #[schema(value_type = ProbeReport)]
    pub report: Value,
    /// What is told once and not stored; the schema of the report has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub events: Option<Box<MemoryEvents>>,
}

/// Why a fit failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FitError {
    /// What kind of failure.
    pub code: FailureCode,
    /// What happened, for the person who has to act.
    pub detail: String,
    /// For `request-invalid`: where in the request, as a JSON pointer.
    pub pointer: Option<String>,
    /// For `device-unavailable`: devices that could be asked for instead.
    pub simulated: Option<Vec<String>>,
}

/// The kinds of failure. Names are part of the API: add, never rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FailureCode {
    /// The request turned out to be wrong.
    RequestInvalid,
    /// The device went away.
    DeviceUnavailable,
    /// Other processes used the device for longer than was to be waited.
    DeviceBusy,
    /// The device did not do its work.
    DeviceFailed,
    /// The fit ended the process that worked on it, and did so again when it ran in one of its own.
    Interrupted,
    /// It took longer than its `timeout_seconds`.
    TimedOut,
    /// A fault in batchfit; the log says more.
    Internal,
}

impl FitError {
    pub(crate) fn new(code: FailureCode, detail: impl Into<String>) -> FitError {
        FitError {
            code,
            detail: detail.into(),
            pointer: None,
            simulated: None,
        }
    }
}

impl From<EngineError> for FitError {
    fn from(error: EngineError) -> FitError {
        let detail = error.to_string();
        match error {
            EngineError::Invalid(invalid) => FitError {
                pointer: Some(invalid.pointer),
                ..FitError::new(FailureCode::RequestInvalid, detail)
            },
            EngineError::DeviceUnavailable { simulated, .. } => FitError {
                simulated: Some(simulated),
                ..FitError::new(FailureCode::DeviceUnavailable, detail)
            },
            EngineError::DeviceBusy { .. } => FitError::new(FailureCode::DeviceBusy, detail),
            EngineError::DeviceFailed { .. } => FitError::new(FailureCode::DeviceFailed, detail),
            EngineError::TimedOut { .. } => FitError::new(FailureCode::TimedOut, detail),
            EngineError::Died { .. } | EngineError::Cancelled => {
                FitError::new(FailureCode::Interrupted, detail)
            }
        }
    }
}

/// A row for a request, under `id`; `shown` is its document as [`request_json`] gives it.
pub(super) fn new_fit(
    id: String,
    request: &Request,
    shown: JsonText,
    (fingerprint, model_digest): (String, String),
    aside: Option<NewUpload>,
    (terms, lane): (FitTerms, String),
    now: Time,
) -> NewFit {
    let device = request.device.to_string();
    NewFit {
        id,
        fingerprint,
        batchfit_version: VERSION.to_owned(),
        model: request.model_name().to_owned(),
        model_digest,
        taught: JsonText::from(json(&request.calibration()).to_string().as_str()),
        lane,
        device,
        request: shown,
        uploads: request.uploads().to_vec(),
        aside,
        terms,
        key: None,
        owner: String::new(),
        created_at: now,
    }
}

/// The terms of a request; without a word of its own, it goes first where a client waits for the answer.
///
/// What is simulated here is worked on for `deadline` at most; where GPUs, agents or recorders take part, for ten times that unless it says so.
pub(super) fn terms(
    request: &Request,
    interactive: bool,
    is_simulated: bool,
    deadline: Duration,
) -> FitTerms {
    let unsaid = if interactive {
        Priority::Interactive
    } else {
        Priority::Batch
    };
    let deadline = deadline.as_secs();
    let seconds = if is_simulated && !request.has_recorder() {
        request.timeout_seconds.unwrap_or(deadline).min(deadline)
    } else {
        let unsaid = deadline.saturating_mul(10);
        request.timeout_seconds.unwrap_or(unsaid)
    };
    FitTerms {
        priority: request.priority.unwrap_or(unsaid),
        timeout_seconds: Some(u32::try_from(seconds).unwrap_or(u32::MAX)),
    }
}

/// The request document as stored and shown. Not on the threads that serve connections: it may be megabytes.
pub(super) fn request_json(request: &Request) -> JsonText {
    JsonText::from(request.shown().0.text())
}

/// What makes two requests the same fit: the question, and the document that asks it as far as it says more than when. An equal question in other
/// words, or by another name, has a document of its own, with the same answer.
pub(super) fn asked_by(question: &str, shown: &RequestDocument) -> String {
    let mut members = shown.members().clone();
    if let Some(members) = members.as_object_mut() {
        members.retain(|name, _| !matches!(name.as_str(), "priority" | "timeout_seconds"));
    }
    let model = shown.model().unwrap_or_default();
    let model = serde_json::from_str::<Value>(model)
        .map_or_else(|_| model.to_owned(), |model| model.to_string());
    let digest = Digest::of(format!("{members}{model}").as_bytes());
    format!("{question}-{}", short_digest(digest.digits()))
}

/// A document of ours as a JSON value.
pub(super) fn json(document: &impl Serialize) -> Value {
    serde_json::to_value(document).expect("documents have text keys and finite numbers")
}

/// A result's variants as rows.
pub(super) fn recommendations(
    fit_id: &str,
    (request, model_digest): (&Request, &str),
    result: &FitResult,
    now: Time,
    mut next_id: impl FnMut() -> String,
) -> Result<Vec<StoredRecommendation>, JobError> {
    let integer = StoredRecommendation::integer;
    let row = |variant: &VariantResult| -> Result<StoredRecommendation, JobError> {
        let training = &variant.training;
        let found = &variant.recommendation;
        // What was recorded says no words.
        let said =
            |name: &'static str| if training.recorded { "recorded" } else { name }.to_owned();
        let of_training = |name: &'static str| match training.mode {
            Mode::Train => Some(said(name)),
            Mode::Inference => None,
        };
        Ok(StoredRecommendation {
            id: next_id(),
            fit_id: fit_id.to_owned(),
            rank: i64::from(variant.rank),
            model: request.model_name().to_owned(),
            model_kind: request.model_kind().to_owned(),
            device: device_of(request, result),
            gpu: result.environment.gpu.clone(),
            precision: said(training.precision.name()),
            optimizer: of_training(training.optimizer.name()),
            optimizer_impl: of_training(training.optimizer_impl.name()),
            checkpointing: said(training.checkpointing.name()),
            mode: training.mode.name().to_owned(),
            limit_bytes: integer("limit_bytes", found.limit_bytes)?,
            world_size: integer("world_size", request.world_size)?,
            micro_batch: integer("micro_batch", found.micro_batch)?,
            accumulation_steps: integer("accumulation_steps", found.accumulation_steps)?,
            global_batch: integer("global_batch", found.global_batch)?,
            max_batch: integer("max_batch", found.max_batch)?,
            max_batch_without_retries: integer(
                "max_batch_without_retries",
                found.max_batch_without_retries,
            )?,
            peak_allocated_bytes: integer("peak_allocated_bytes", found.peak_allocated_bytes)?,
            peak_reserved_bytes: integer("peak_reserved_bytes", found.peak_reserved_bytes)?,
            headroom_bytes: integer("headroom_bytes", found.headroom_bytes)?,
            limited_by: found.limited_by.clone(),
            evidence: found.evidence.name().to_owned(),
            step_ms: found.step_ms,
            optimizer_step_ms: found.optimizer_step_ms,
            samples_per_second: found.samples_per_second,
            speed_from: found.speed_from.map(|from| from.name().to_owned()),
            pareto: variant.pareto,
            objective: request.objective.name().to_owned(),
            batchfit_version: result.environment.batchfit.clone(),
            strategy: strategy(&training.parallel).to_owned(),
            driver: result.environment.driver.clone(),
            cudnn: result.environment.cudnn.clone(),
            pytorch: result.environment.pytorch.clone(),
            headroom: Some(StoredHeadroom {
                share: share(found.headroom.fraction),
                from: found.headroom.from.name().to_owned(),
                outcomes: integer("outcomes", found.headroom.outcomes)?,
                doubts: found
                    .headroom
                    .doubts
                    .iter()
                    .map(|(doubt, fraction)| (*doubt, share(*fraction)))
                    .collect(),
            }),
            created_at: now,
            stale: None,
            model_digest: model_digest.to_owned(),
            training: request.training_digest(training),
            rules: ENGINE_DIGEST.to_owned(),
        })
    };
    result.variants.iter().map(row).collect()
}

/// What an answer is about: the kind of card, where that was asked about and any real one would do.
fn device_of(request: &Request, result: &FitResult) -> String {
    let device = &result.environment.device;
    match &request.device {
        DeviceChoice::Kind(kind) if !device.starts_with("sim:") => kind.clone(),
        _one_card => device.clone(),
    }
}

/// A part of a limit as it is stored.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to millionths of one"
)]
fn share(fraction: f64) -> Share {
    Share((fraction.clamp(0.0, 1.0) * f64::from(Share::ALL.0)).round() as u32)
}
