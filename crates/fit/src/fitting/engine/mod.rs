//! The engine of this process.

mod placed;
mod ready;
mod simulated;

pub(super) use placed::is_of_kind;
pub(super) use simulated::{
    card, requested_limit, room_on, simulated_probe, simulated_step_time, simulation,
};

use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::{debug, warn};

use crate::device::sim::{self, Card, CardMemory};
use crate::engine::card_name;
use crate::limits::Cancel;
use crate::model::{Request, RequestError, SearchMode, Workload};
use crate::probe::{Detail, ProbeReport};
use crate::search::MAX_BATCH;
use crate::search::ask_tell::Prediction;
use crate::units::Bytes;
use crate::validate::{settings_in_force, validate_batch, validate_fit};
use crate::worker::{
    Deadlines, Gpu, Ready, RecorderCommand, Supervisor, WorkerCommand, WorkerError,
};
use crate::{
    DeviceSummary, Engine, EngineError, Environment, FitResult, Isolation, Progress, Runs, Work,
};

use super::answer::{Devices, FitSpec, SearchStrategy, answer};
use super::devices::{Inventory, Listed, Resolved, resolve, summaries, together};
use super::isolated::Subprocess;
use super::memory_budget::MemoryBudget;
use super::plan::BatchTarget;
use super::probing::gpu::{GpuProber, translated};
use super::probing::observer::Observer;
use super::probing::runner::{Runner as _, StepTime};
use super::probing::simulator::Simulator;
use super::{prediction, suggest};
use crate::fitting::recommendation::headroom_policy::HeadroomPolicy;
use crate::fitting::recommendation::notes::{
    data_parallelism, others, ran_together, restarted, settings_as_recorded,
};
pub(super) use placed::placed;
use ready::{capability, compile_all, environment, unopened};
pub(super) use ready::{is_to_be_recorded, lowered};
use simulated::{of_generation, simulated, strategies};

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

/// What is to be done where a GPU is there and its workers are lost before it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fallback {
    /// To answer by simulation, and say why.
    Simulate,
    /// To fail.
    Fail,
}

/// What a request is answered with.
struct FitContext<'a> {
    simulator: Simulator,
    gpu: Option<GpuProber<'a>>,
    budget: MemoryBudget,
    environment: Environment,
    notes: Vec<String>,
    assumptions: Vec<String>,
}

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

    /// Reads the model, then opens the device: a wrong body is told before a missing device.
    fn prepare<'a>(
        &self,
        request: &Request,
        deadlines: Deadlines,
        fallback: Fallback,
        observer: &'a Observer<'a>,
    ) -> Result<FitContext<'a>, EngineError> {
        let cancel = observer.cancel();
        let lowered = lowered(request, cancel)?;
        let workload = &lowered.workload;
        let settings = settings_in_force(request, workload).map_err(EngineError::Invalid)?;
        let mut notes = lowered.notes.clone();
        notes.extend(settings_as_recorded(request, workload));
        let assumptions = lowered.assumptions.clone();
        let mut listed = Vec::new();
        let inventory = || {
            let inventory = self.inventory();
            listed.clone_from(&inventory.gpus);
            inventory
        };
        let device = match resolve(&request.device, inventory) {
            Ok(device) => device,
            Err(absent) => {
                compile_all(request, workload.clone(), cancel)?;
                return Err(absent);
            }
        };
        request
            .fits_on(device.total())
            .map_err(EngineError::Invalid)?;
        match device {
            Resolved::Simulated(card) => {
                notes.extend(data_parallelism(request, workload));
                let found = (notes, assumptions);
                Ok(simulated(request, workload, card, settings, found, cancel))
            }
            Resolved::Cuda(name, gpu) => {
                let place = (name, listed.as_slice(), gpu);
                let with = (deadlines, fallback, observer);
                let (gpu, ready) = self.open(request, workload, place, with, &mut notes)?;
                let device = match &gpu {
                    Some(gpu) => gpu.device().to_owned(),
                    None => format!("cuda:{}", ready.gpu.ordinal),
                };
                notes.extend(of_generation(ready.gpu.compute, request));
                let available = Bytes(ready.available_bytes);
                let memory = CardMemory {
                    total: Bytes(ready.gpu.total_bytes),
                    available,
                };
                notes.extend(match &gpu {
                    Some(_) if request.is_parallel() => {
                        vec![ran_together(request.world_size, &device)]
                    }
                    Some(_) | None => data_parallelism(request, workload),
                });
                let asked = requested_limit(request, &settings, memory);
                match &ready.no_room {
                    Some(why) => notes.push(why.clone()),
                    None if asked.is_none_or(|asked| asked > memory.available) => {
                        notes.extend(others(&ready));
                    }
                    None => {}
                }
                let budget = MemoryBudget {
                    asked,
                    available: memory.available,
                    // What ranks need to talk was measured where they do.
                    is_of_rank: gpu.is_some(),
                };
                notes.extend(budget.note(strategies(request)));
                Ok(FitContext {
                    simulator: Simulator::new(
                        device.clone(),
                        workload.clone(),
                        capability(&ready),
                        settings,
                        memory,
                        cancel,
                    )
                    .of_card(Card::of_product(&ready.gpu.name)),
                    // Without room for a process on the card, only simulation can say how much is missing.
                    gpu: gpu.filter(|_| ready.no_room.is_none()),
                    budget,
                    environment: Environment {
                        driver: ready.gpu.driver,
                        cuda: ready.cuda,
                        cudnn: ready.cudnn,
                        ..environment(device, ready.gpu.name)
                    },
                    notes,
                    assumptions,
                })
            }
        }
    }

    /// Opens the GPU of this name, or one for each rank, where what is asked can run there; tells why not where it cannot.
    fn open<'a>(
        &self,
        request: &Request,
        workload: &Workload,
        (name, listed, gpu): (String, &[Gpu], Gpu),
        (deadlines, fallback, observer): (Deadlines, Fallback, &'a Observer<'a>),
        notes: &mut Vec<String>,
    ) -> Result<(Option<GpuProber<'a>>, Ready), EngineError> {
        let devices = if request.is_parallel() {
            together(&request.device, listed, request.world_size)
        } else {
            Ok(vec![name])
        };
        let opened = match (workload, &devices) {
            (Workload::Graph(graph), Ok(devices)) => {
                let question = (request, &**graph);
                GpuProber::open(&self.program, deadlines, devices, question, observer).map(Some)
            }
            (Workload::Graph(_), Err(why)) => {
                notes.push(why.clone());
                Ok(None)
            }
            // What was recorded cannot be run here.
            (Workload::Recorded(_), _) => Ok(None),
        };
        match opened {
            Ok(Some((prober, ready))) => Ok((Some(prober), ready)),
            Ok(None) => Ok((None, unopened(gpu))),
            Err(EngineError::DeviceFailed { cause, .. }) if fallback == Fallback::Simulate => {
                notes.push(format!(
                    "simulated, because no worker could open the GPU: {cause}"
                ));
                Ok((None, unopened(gpu)))
            }
            Err(error) => Err(error),
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
        let mut setting = self.prepare(request, self.deadlines, fallback, &observer)?;
        let lowered = lowered(request, work.cancel)?;
        validate_fit(lowered).map_err(EngineError::Invalid)?;
        let mut variants = request.variants.clone();
        if let Workload::Recorded(steps) = &lowered.workload {
            for variant in &mut variants {
                variant.accumulation = variant.accumulation.max(steps.accumulation);
            }
        }
        let mut question = FitSpec {
            variants,
            target: BatchTarget {
                target_batch: request.target_batch,
                world_size: request.world_size,
                objective: request.objective,
            },
            budget: setting.budget,
            headroom: HeadroomPolicy::of(request),
            ceiling: setting.simulator.ceiling(),
            method: match request.search {
                SearchMode::Auto | SearchMode::Recorded => SearchStrategy::SimulateFirst,
                SearchMode::Probes => SearchStrategy::ProbesAlone,
            },
            compare: request.compare,
            host_memory: request.host_memory,
            notes: setting.notes,
            assumptions: setting.assumptions,
        };
        let mut fresh_starts = 0;
        loop {
            let devices = Devices {
                simulated: &mut setting.simulator,
                real: match &mut setting.gpu {
                    Some(gpu) => Some(gpu),
                    None => None,
                },
            };
            let mut result = answer(&question, devices, setting.environment.clone(), &observer)?;
            let lowered = setting.gpu.as_mut().and_then(GpuProber::take_lowered);
            if let (Some(lowered), true) = (lowered, fresh_starts < FRESH_STARTS) {
                fresh_starts += 1;
                let first = &question.variants[0].parallel;
                question
                    .notes
                    .push(restarted(question.budget.limit(first), &lowered));
                question.budget = MemoryBudget {
                    asked: Some(lowered.limit),
                    available: lowered.limit,
                    is_of_rank: true,
                };
                continue;
            }
            result.gpu_work = setting.gpu.as_ref().map(GpuProber::work);
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
        let resolved = resolve(&placed.request.device, inventory)?;
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
        if is_apart {
            match Subprocess::new(&self.program, self.deadlines).fit(&placed.request, work) {
                Ok(outcome) => return outcome.map(|result| placed.with_note(result)),
                Err(error) => warn!("{error}; the fit runs in this process"),
            }
        }
        let mut result = self.answer(&placed.request, work)?;
        if request.suggest.is_some() {
            suggest::add(self, &placed.request, &mut result, &Observer::new(work))?;
        }
        Ok(placed.with_note(result))
    }

    fn probe(
        &self,
        request: &Request,
        batch: u64,
        detail: Detail,
        cancel: &Cancel,
    ) -> Result<ProbeReport, EngineError> {
        let placed = placed(request, || self.inventory())?;
        let report = self.probe_in(&placed.request, batch, detail, cancel)?;
        Ok(placed.told_of_probe(report))
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
        let mut setting = self.prepare(request, deadlines, Fallback::Fail, &observer)?;
        let ceiling = setting.simulator.ceiling();
        if batch > ceiling && ceiling < MAX_BATCH {
            let problem = format!(
                "the graph was exported for batches up to {ceiling}, and this asks for {batch}"
            );
            return Err(EngineError::Invalid(RequestError::at("/model", problem)));
        }
        let simulator = &mut setting.simulator;
        let limit = setting.budget.limit(&variant.parallel);
        let simulated = simulator.probe(variant, batch, limit, detail)?;
        let steps = u64::from(variant.accumulation);
        let mut report = match &mut setting.gpu {
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
        report.notes.splice(0..0, setting.notes);
        report.assumptions = setting.assumptions;
        Ok(report)
    }
}
