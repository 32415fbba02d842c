//! The seam to whatever answers requests: the search over devices, or a script in a test.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::FitResult;
use super::fitting::Catalogue;
use crate::device::sim::CARDS;
use crate::limits::Cancel;
use crate::model::{Request, RequestError};
use crate::probe::{Detail, ProbeReport};

/// The error where steps are to be recorded and no recorder was named.
pub const NO_RECORDER: &str = "steps are recorded by a Python process, and none was named: start batchfit with --recorder PYTHON, an \
     interpreter that has PyTorch and batchfit's package, on a machine with a GPU";

/// What goes along with work that may take long.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// Looked at often: the work ends soon after.
    pub cancel: &'a Cancel,
    /// Called as the work goes on.
    pub progress: &'a dyn Fn(Progress),
}

impl Work<'_> {
    /// It is never cancelled, and progress goes nowhere.
    pub const UNWATCHED: Work<'static> = Work {
        cancel: &Cancel::NEVER,
        progress: &|_| {},
    };

    /// Progress goes nowhere.
    pub fn quiet(cancel: &Cancel) -> Work<'_> {
        Work {
            cancel,
            ..Work::UNWATCHED
        }
    }
}

/// Where a fit runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// In this process.
    Shared,
    /// In a process of its own, for a fit that may have ended a server: whatever it does to its process, this one goes on.
    OwnProcess,
}

impl Isolation {
    /// In a process of its own where that `is_suspect`.
    pub fn of(is_suspect: bool) -> Isolation {
        if is_suspect {
            Isolation::OwnProcess
        } else {
            Isolation::Shared
        }
    }
}

/// Answers requests. Every method blocks: call it from a blocking thread.
pub trait Engine: Send + Sync + 'static {
    /// What it answers with.
    fn catalogue(&self) -> &Catalogue;

    /// Finds the largest batch. Returns `Cancelled` soon after the work is cancelled, and `Died` where a process of its own ended more than once.
    fn fit(
        &self,
        request: &Request,
        isolation: Isolation,
        work: &Work<'_>,
    ) -> Result<FitResult, EngineError>;

    /// Runs one batch; `Detail::Events` has each allocation and free in the report's `events`, where the engine knows them.
    fn probe(
        &self,
        request: &Request,
        batch: u64,
        detail: Detail,
        cancel: &Cancel,
    ) -> Result<ProbeReport, EngineError>;
}

/// What runs of a search came to, besides their recordings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runs {
    /// The largest batch that is looked for.
    pub ceiling: u64,
    /// The largest recorded batch that fits, and the bytes that it reserved where they were told.
    pub largest: Option<(u64, u64)>,
}

/// How far a fit is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// Probes finished so far.
    pub probes_done: u32,
    /// The batch being probed, or probed last.
    pub batch: u64,
    /// What is being done, for a person to read.
    pub note: String,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum EngineError {
    /// The request turns out to be wrong, for example in a shape.
    #[error("{0}")]
    Invalid(RequestError),
    /// Each process that worked on it alone died.
    #[error("each process that worked on this fit alone died; the last one {cause}")]
    Died {
        /// How the last one ended.
        cause: String,
    },
    /// The device of the request is not there.
    #[error("{device} is not available: {missing}")]
    DeviceUnavailable {
        /// As in the request.
        device: String,
        /// What is missing: a driver, a library, a GPU of that number.
        missing: String,
        /// Devices that could be asked for instead.
        simulated: Vec<String>,
    },
    /// The device has been in other hands for longer than was to be waited.
    #[error("{device} is busy: {holder}")]
    DeviceBusy {
        /// As resolved.
        device: String,
        /// Who uses it, and for how long it was waited for.
        holder: String,
    },
    /// The device is there and did not do its work.
    #[error("{device} failed: {cause}")]
    DeviceFailed {
        /// As resolved.
        device: String,
        /// What happened where.
        cause: String,
    },
    /// It was not done within the time that its request and the service give it.
    #[error(
        "it was stopped after {seconds} s; ask for fewer variants, or give it more with `timeout_seconds` (on a service up to its --fit-deadline)"
    )]
    TimedOut {
        /// The time.
        seconds: u64,
    },
    /// It was asked to stop.
    #[error("cancelled")]
    Cancelled,
}

impl EngineError {
    /// That of a request for a GPU that is not there: any card can be simulated instead.
    pub fn unavailable(device: &str, missing: String) -> EngineError {
        let simulated = CARDS.iter().map(|card| format!("sim:{}", card.name));
        EngineError::DeviceUnavailable {
            device: device.to_owned(),
            missing,
            simulated: simulated.collect(),
        }
    }
}

impl From<RequestError> for EngineError {
    fn from(invalid: RequestError) -> EngineError {
        EngineError::Invalid(invalid)
    }
}

/// What a device is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// A GPU of this machine.
    Cuda,
    /// The memory of a card, without the card.
    Simulated,
}

/// One entry of `GET /v1/devices` and of `batchfit devices`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceSummary {
    /// What a request's `device` says: `cuda:0`, `sim:h200`, `node7/cuda:0`.
    #[schema(example = "sim:h200")]
    pub device: String,
    /// Real or simulated.
    pub kind: DeviceKind,
    /// Its name in the catalogue of cards, which as a request's `device` means any such card; null for one that is not there.
    #[schema(example = "h200")]
    pub card: Option<String>,
    /// The card's name; null when it is not known.
    pub gpu: Option<String>,
    /// All of its memory.
    pub memory_bytes: Option<u64>,
    /// What of it is free, less the framework's own context: the default limit.
    pub usable_bytes: Option<u64>,
    /// Its compute capability, like `9.0`.
    pub compute_capability: Option<String>,
    /// Streaming multiprocessors.
    pub multiprocessors: Option<u32>,
    /// Driver version; null on a simulated device.
    pub driver: Option<String>,
    /// cuDNN version; null on a simulated device.
    pub cudnn: Option<String>,
    /// Whether requests for it can be answered.
    pub available: bool,
    /// When it is not available: what is missing.
    pub missing: Option<String>,
    /// Where the numbers are from: a data sheet, a measurement, the driver.
    pub source: String,
}

/// A card as fingerprints name it.
pub fn card_name(gpu: &str, driver: Option<&str>) -> String {
    format!("{gpu}, driver {}", driver.unwrap_or("unknown"))
}

/// The card's name and driver in what [`card_name`] gives.
pub fn named_card(card: &str) -> (&str, Option<&str>) {
    match card.rsplit_once(", driver ") {
        Some((gpu, "unknown")) => (gpu, None),
        Some((gpu, driver)) => (gpu, Some(driver)),
        None => (card, None),
    }
}
