//! The engine of this process, and the seam to whatever answers requests: it, or a script in a test.

mod spec;

pub(super) use spec::{
    Fallback, FitSpec, MemoryBudget, WITH_BF16, card, for_others, is_to_be_recorded, lowered,
    outside, requested_limit, room_on, simulation,
};

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::{debug, warn};
use utoipa::ToSchema;

use crate::FitResult;
use crate::device::sim::CARDS;
use crate::fitting::Result;
use crate::limits::Cancel;
use crate::model::{DeviceChoice, Request, RequestError, SearchMode, Workload};
use crate::probe::{Detail, ProbeReport};
use crate::search::MAX_BATCH;
use crate::validate::{Purpose, resolve};
use crate::worker::{Deadlines, RecorderCommand};

use super::answer::{Devices, answer};
use super::devices::{Listed, placed};
use super::isolated::fit_isolated;
use super::probing::gpu::GpuProber;
use super::probing::runner::{Observer, Runner as _, StepTime};
use super::recommendation::notes::restarted;
use super::suggest;

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
    fn fit(&self, request: &Request, isolation: Isolation, work: &Work<'_>) -> Result<FitResult>;

    /// Runs one batch; `Detail::Events` has each allocation and free in the report's `events`, where the engine knows them.
    fn probe(
        &self,
        request: &Request,
        batch: u64,
        detail: Detail,
        cancel: &Cancel,
    ) -> Result<ProbeReport>;
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
    #[error("{} is not available: {missing}", match device.as_str() { "auto" => "a GPU", other => other })]
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

/// What requests are answered with: the GPUs of this machine, and what records steps there. The cards that are simulated are the same
/// everywhere.
#[derive(Debug)]
pub struct Catalogue {
    /// The program whose workers list GPUs; where none does, why there are none.
    pub(super) lister: Result<(PathBuf, Deadlines), String>,
    pub(super) listed: Listed,
    /// Whether steps of graphs that are not understood can be recorded.
    pub records: bool,
}

impl Catalogue {
    /// The GPUs that workers of this program list.
    fn new(program: &Path, deadlines: Deadlines, records: bool) -> Catalogue {
        Catalogue {
            lister: Ok((program.to_owned(), deadlines)),
            listed: Listed(Mutex::default()),
            records,
        }
    }

    /// Of a machine that has no GPU, and why.
    pub fn without_gpus(missing: &str) -> Catalogue {
        Catalogue {
            lister: Err(missing.to_owned()),
            listed: Listed(Mutex::default()),
            records: false,
        }
    }
}

/// Answers requests with simulations, and with worker processes where there is a GPU.
///
/// Holds no GPU memory and loads no GPU library itself.
#[derive(Debug)]
pub struct FitEngine {
    /// The batchfit binary, whose `worker` command is a worker.
    pub(super) program: PathBuf,
    pub(super) deadlines: Deadlines,
    /// Who records steps of graphs that are not understood.
    pub(super) recorder: Option<RecorderCommand>,
    catalogue: Catalogue,
    /// How many suggestions are answered at a time.
    pub(super) threads: usize,
}

/// How long a single probe waits while other processes use its GPU: a client waits for the answer.
const PROBE_TURN: Duration = Duration::from_mins(1);
/// How often a fit begins again because other processes took memory that it counted on.
const FRESH_STARTS: u32 = 2;

impl FitEngine {
    /// An engine whose workers are `program worker`.
    pub fn new(program: PathBuf) -> FitEngine {
        FitEngine::of(program, Deadlines::USUAL, None)
    }

    fn of(program: PathBuf, deadlines: Deadlines, recorder: Option<RecorderCommand>) -> FitEngine {
        FitEngine {
            catalogue: Catalogue::new(&program, deadlines, recorder.is_some()),
            program,
            deadlines,
            recorder,
            threads: 1,
        }
    }

    /// The same with suggestions answered on several threads, for a process that has nothing else to do.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> FitEngine {
        FitEngine { threads, ..self }
    }

    /// The same with other deadlines for its workers.
    #[must_use]
    pub fn with_deadlines(self, deadlines: Deadlines) -> FitEngine {
        let threads = self.threads;
        FitEngine::of(self.program, deadlines, self.recorder).with_threads(threads)
    }

    /// The same with a recorder.
    #[must_use]
    pub fn with_recorder(self, recorder: Option<RecorderCommand>) -> FitEngine {
        let threads = self.threads;
        FitEngine::of(self.program, self.deadlines, recorder).with_threads(threads)
    }

    /// The same request where it is right, on a device of this machine or a simulated one.
    pub(super) fn resolve<'a>(
        &self,
        request: &'a Request,
        purpose: Purpose,
        cancel: &Cancel,
    ) -> Result<Cow<'a, Request>> {
        resolve(request, purpose, cancel, |_| {
            if let DeviceChoice::Sim(_) = request.device {
                return Ok((Cow::Borrowed(request), true));
            }
            let placed = placed(request, || self.catalogue.inventory())?;
            let is_simulated = matches!(placed.device, DeviceChoice::Sim(_));
            Ok((placed, is_simulated))
        })
    }

    /// The answer to a request that was resolved, whatever changes of it are asked for.
    pub(super) fn answer(&self, request: &Request, work: &Work<'_>) -> Result<FitResult> {
        if request.lengths.is_some() || request.soak.is_some() {
            return self.fit_in_parts(request, work);
        }
        let observer = Observer::new(work);
        if is_to_be_recorded(request, work.cancel)? {
            return Ok(self.fit_recorded(request, work)?.result);
        }
        let fallback = match request.search {
            SearchMode::Auto | SearchMode::Recorded => Fallback::Simulate,
            SearchMode::Probes => Fallback::Fail,
        };
        let (mut spec, mut simulator, mut gpu) =
            self.open(request, self.deadlines, fallback, &observer)?;
        if let Workload::Recorded(steps) = &lowered(request, work.cancel)?.workload {
            for variant in &mut spec.request.to_mut().variants {
                variant.accumulation = variant.accumulation.max(steps.accumulation);
            }
        }
        let mut fresh_starts = 0;
        loop {
            let devices = Devices {
                simulated: &mut simulator,
                real: match &mut gpu {
                    Some(gpu) => Some(gpu),
                    None => None,
                },
            };
            let mut result = answer(&spec, devices, &observer)?;
            let lowered = gpu.as_mut().and_then(GpuProber::take_lowered);
            if let (Some(lowered), true) = (lowered, fresh_starts < FRESH_STARTS) {
                fresh_starts += 1;
                let limit = spec.budget.limit(&spec.request.variants[0].parallel);
                spec.notes.push(restarted(limit, &lowered));
                spec.budget = MemoryBudget {
                    asked: Some(lowered.limit),
                    available: lowered.limit,
                    is_of_rank: true,
                };
                continue;
            }
            result.gpu_work = gpu.as_ref().map(GpuProber::work);
            return Ok(result);
        }
    }
}

/// What a reader is told where the device is not the one that was meant.
fn simulated_instead(meant: &Request, placed: &Request) -> Option<String> {
    match (&meant.device, &placed.device) {
        (DeviceChoice::Kind(kind), DeviceChoice::Sim(_)) => Some(format!(
            "simulated: neither this machine nor any agent of the service has a card of the kind {kind}"
        )),
        _ => None,
    }
}

impl Engine for FitEngine {
    fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    fn fit(&self, request: &Request, isolation: Isolation, work: &Work<'_>) -> Result<FitResult> {
        let placed = self.resolve(request, Purpose::Fit, work.cancel)?;
        // What ends where steps are recorded is a recorder, and no process of ours.
        let is_apart =
            isolation == Isolation::OwnProcess && !is_to_be_recorded(request, work.cancel)?;
        let noted = |mut result: FitResult| {
            if let Some(note) = simulated_instead(request, &placed) {
                result.recommendation.notes.push(note.clone());
                for variant in &mut result.variants {
                    variant.recommendation.notes.push(note.clone());
                }
            }
            result
        };
        if is_apart {
            match fit_isolated((&self.program, self.deadlines), &placed, work) {
                Ok(outcome) => return outcome.map(noted),
                Err(error) => warn!("{error}; the fit runs in this process"),
            }
        }
        let mut result = self.answer(&placed, work)?;
        if request.suggest.is_some() {
            suggest::add(self, &placed, &mut result, &Observer::new(work))?;
        }
        Ok(noted(result))
    }

    fn probe(
        &self,
        request: &Request,
        batch: u64,
        detail: Detail,
        cancel: &Cancel,
    ) -> Result<ProbeReport> {
        let placed = self.resolve(request, Purpose::Probe(batch), cancel)?;
        let mut report = self.probe_in(&placed, batch, detail, cancel)?;
        report.notes.extend(simulated_instead(request, &placed));
        Ok(report)
    }
}

impl FitEngine {
    /// Runs one batch; what is told of a GPU's own steps is never their events.
    pub(super) fn probe_in(
        &self,
        request: &Request,
        batch: u64,
        detail: Detail,
        cancel: &Cancel,
    ) -> Result<ProbeReport> {
        let variant = &request.variants[0];
        if is_to_be_recorded(request, cancel)? {
            return self.probe_recorded(request, batch, detail, cancel);
        }
        let progress = |progress: Progress| debug!("{}", progress.note);
        let work = Work {
            cancel,
            progress: &progress,
        };
        let observer = Observer::new(&work);
        let deadlines = Deadlines {
            turn: self.deadlines.turn.min(PROBE_TURN),
            ..self.deadlines
        };
        let (spec, mut simulator, mut gpu) =
            self.open(request, deadlines, Fallback::Fail, &observer)?;
        let ceiling = spec.ceiling;
        if batch > ceiling && ceiling < MAX_BATCH {
            let problem = format!(
                "the graph was exported for batches up to {ceiling}, and this asks for {batch}"
            );
            return Err(RequestError::at("/model", problem).into());
        }
        let limit = spec.budget.limit(&variant.parallel);
        let simulated = simulator.probe(variant, batch, limit, detail)?;
        let steps = u64::from(variant.accumulation);
        let mut report = match &mut gpu {
            None => {
                let mut report = simulated.report;
                simulator
                    .step_time(variant, batch, steps)?
                    .write_to(&mut report);
                report
            }
            Some(gpu) => {
                let probed = gpu.probe(variant, batch, limit, Detail::Full)?;
                let mut report = ProbeReport {
                    simulated_peak_reserved_bytes: Some(simulated.report.peak_reserved_bytes),
                    events: simulated.report.events,
                    ..probed.report
                };
                StepTime::measured(&report, variant.accumulation, steps).write_to(&mut report);
                report
            }
        };
        report.notes.splice(0..0, spec.notes);
        report.assumptions = spec.assumptions;
        Ok(report)
    }
}
