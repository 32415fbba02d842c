//! The engine of this process.

mod spec;

pub(super) use spec::{
    FitSpec, card, is_to_be_recorded, lowered, requested_limit, room_on, simulation,
};

use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::{debug, warn};

use crate::device::sim;
use crate::engine::card_name;
use crate::limits::Cancel;
use crate::model::{Request, RequestError, SearchMode, Workload};
use crate::probe::{Detail, ProbeReport};
use crate::search::MAX_BATCH;
use crate::search::ask_tell::Prediction;
use crate::validate::{validate_batch, validate_fit};
use crate::worker::{Deadlines, RecorderCommand, Supervisor, WorkerCommand, WorkerError};
use crate::{DeviceSummary, Engine, EngineError, FitResult, Isolation, Progress, Runs, Work};

use super::answer::{Devices, answer};
use super::devices::{Inventory, Listed, Resolved, placed, resolve, simulated_instead, summaries};
use super::isolated::Subprocess;
use super::memory_budget::MemoryBudget;
use super::probing::gpu::{GpuProber, translated};
use super::probing::runner::{Observer, Runner as _, StepTime};
use super::recommendation::notes::restarted;
use super::{prediction, suggest};
use spec::Fallback;

/// Answers requests with simulations, and with worker processes where there is a GPU.
///
/// Holds no GPU memory and loads no GPU library itself.
#[derive(Debug)]
pub struct FitEngine {
    /// The batchfit binary, whose `worker` command is a worker.
    program: PathBuf,
    deadlines: Deadlines,
    /// Who records steps of graphs that are not understood.
    recorder: Option<RecorderCommand>,
    /// What GPUs there were lately.
    listed: Listed,
}

/// How long GPUs that were listed are taken to be there when a request is checked. The answer looks again.
const LISTED: Duration = Duration::from_secs(2);

/// How long a single probe waits while other processes use its GPU: a client waits for the answer.
const PROBE_TURN: Duration = Duration::from_mins(1);
/// How often a fit begins again because other processes took memory that it counted on.
const FRESH_STARTS: u32 = 2;

impl FitEngine {
    /// An engine whose workers are `program worker`.
    pub fn new(program: PathBuf) -> FitEngine {
        FitEngine {
            program,
            deadlines: Deadlines::default(),
            recorder: None,
            listed: Listed::default(),
        }
    }

    /// The same with other deadlines for its workers.
    #[must_use]
    pub fn with_deadlines(self, deadlines: Deadlines) -> FitEngine {
        FitEngine { deadlines, ..self }
    }

    /// The same with a recorder.
    #[must_use]
    pub fn with_recorder(self, recorder: Option<RecorderCommand>) -> FitEngine {
        FitEngine { recorder, ..self }
    }

    pub(super) fn recorder(&self) -> Option<&RecorderCommand> {
        self.recorder.as_ref()
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    pub(super) fn deadlines(&self) -> Deadlines {
        self.deadlines
    }

    pub(super) fn inventory(&self) -> Inventory {
        let launch = WorkerCommand::this_binary(self.program.clone());
        let never = Cancel::default();
        match Supervisor::list(&launch, self.deadlines, &never) {
            Ok((gpus, missing)) => Inventory {
                gpus,
                missing,
                lost: None,
            },
            Err(lost @ WorkerError::Lost { .. }) => Inventory {
                gpus: Vec::new(),
                missing: None,
                lost: Some(lost.to_string()),
            },
            Err(error) => Inventory {
                gpus: Vec::new(),
                missing: Some(translated(error, "the worker").to_string()),
                lost: None,
            },
        }
    }

    /// The answer to a request, whatever changes of it are asked for.
    fn answer(&self, request: &Request, work: &Work<'_>) -> Result<FitResult, EngineError> {
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
            self.resolve(request, self.deadlines, fallback, &observer)?;
        let lowered = lowered(request, work.cancel)?;
        validate_fit(lowered).map_err(EngineError::Invalid)?;
        if let Workload::Recorded(steps) = &lowered.workload {
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

impl Engine for FitEngine {
    fn simulated(&self) -> Vec<String> {
        sim::names().into_iter().map(ToOwned::to_owned).collect()
    }

    fn records(&self) -> bool {
        self.recorder.is_some()
    }

    fn check(&self, request: &Request) -> Result<Option<String>, EngineError> {
        let inventory = || self.listed.no_older_than(LISTED, || self.inventory());
        let placed = placed(request, inventory)?;
        let resolved = resolve(&placed.device, inventory)?;
        request
            .fits_on(resolved.total())
            .map_err(EngineError::Invalid)?;
        Ok(match resolved {
            Resolved::Simulated(_) => None,
            Resolved::Cuda(_, gpu) => Some(card_name(&gpu.name, gpu.driver.as_deref())),
        })
    }

    fn fit(
        &self,
        request: &Request,
        isolation: Isolation,
        work: &Work<'_>,
    ) -> Result<FitResult, EngineError> {
        // What ends where steps are recorded is a recorder, and no process of ours.
        let is_apart =
            isolation == Isolation::OwnProcess && !is_to_be_recorded(request, work.cancel)?;
        let placed = placed(request, || self.inventory())?;
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
            match Subprocess::new(&self.program, self.deadlines).fit(&placed, work) {
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
    ) -> Result<ProbeReport, EngineError> {
        let placed = placed(request, || self.inventory())?;
        let mut report = self.probe_in(&placed, batch, detail, cancel)?;
        report.notes.extend(simulated_instead(request, &placed));
        Ok(report)
    }

    fn predict(
        &self,
        request: &Request,
        runs: &Runs,
        cancel: &Cancel,
    ) -> Result<Prediction, EngineError> {
        prediction::predict(request, runs, cancel)
    }

    fn devices(&self) -> Vec<DeviceSummary> {
        summaries(&self.inventory())
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
    ) -> Result<ProbeReport, EngineError> {
        let [variant] = request.variants.as_slice() else {
            let problem = format!(
                "a probe runs one variant, and this asks for {}; give single values",
                request.variants.len()
            );
            return Err(EngineError::Invalid(RequestError::at("/training", problem)));
        };
        if is_to_be_recorded(request, cancel)? {
            return self.probe_recorded(request, batch, detail, cancel);
        }
        validate_batch(lowered(request, cancel)?, batch).map_err(EngineError::Invalid)?;
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
            self.resolve(request, deadlines, Fallback::Fail, &observer)?;
        let ceiling = spec.ceiling;
        if batch > ceiling && ceiling < MAX_BATCH {
            let problem = format!(
                "the graph was exported for batches up to {ceiling}, and this asks for {batch}"
            );
            return Err(EngineError::Invalid(RequestError::at("/model", problem)));
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
