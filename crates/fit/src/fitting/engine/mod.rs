//! The engine of this process.

mod spec;

pub(super) use spec::{
    FitSpec, WITH_BF16, card, is_to_be_recorded, lowered, requested_limit, room_on, simulation,
};

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::{debug, warn};

use crate::limits::Cancel;
use crate::model::{DeviceChoice, Request, RequestError, SearchMode, Workload};
use crate::probe::{Detail, ProbeReport, Verdict};
use crate::search::MAX_BATCH;
use crate::validate::{Purpose, resolve};
use crate::worker::{Deadlines, RecorderCommand};
use crate::{Engine, EngineError, FitResult, Isolation, Progress, Work};

use super::answer::{Devices, answer};
use super::devices::{Catalogue, placed, simulated_instead};
use super::isolated::fit_isolated;
use super::memory_budget::MemoryBudget;
use super::probing::gpu::GpuProber;
use super::probing::runner::{Observer, Runner as _, StepTime};
use super::probing::simulator::Simulator;
use super::recommendation::notes::restarted;
use super::suggest;
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
    catalogue: Catalogue,
    /// How many suggestions are answered at a time.
    threads: usize,
}

/// How long a single probe waits while other processes use its GPU: a client waits for the answer.
const PROBE_TURN: Duration = Duration::from_mins(1);
/// How often a fit begins again because other processes took memory that it counted on.
const FRESH_STARTS: u32 = 2;

impl FitEngine {
    /// An engine whose workers are `program worker`.
    pub fn new(program: PathBuf) -> FitEngine {
        FitEngine::of(program, Deadlines::default(), None)
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

    pub(super) fn recorder(&self) -> Option<&RecorderCommand> {
        self.recorder.as_ref()
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    pub(super) fn deadlines(&self) -> Deadlines {
        self.deadlines
    }

    /// The same request where it is right, on a device of this machine or a simulated one.
    fn resolve<'a>(
        &self,
        request: &'a Request,
        purpose: Purpose,
        cancel: &Cancel,
    ) -> Result<Cow<'a, Request>, EngineError> {
        resolve(request, purpose, cancel, |_| {
            let placed = placed(request, || self.catalogue.inventory())?;
            let is_simulated = matches!(placed.device, DeviceChoice::Sim(_));
            Ok((placed, is_simulated))
        })
    }

    /// The answer to a request that was resolved, whatever changes of it are asked for.
    pub(super) fn answer(
        &self,
        request: &Request,
        work: &Work<'_>,
    ) -> Result<FitResult, EngineError> {
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

impl Engine for FitEngine {
    fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    fn fit(
        &self,
        request: &Request,
        isolation: Isolation,
        work: &Work<'_>,
    ) -> Result<FitResult, EngineError> {
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
    ) -> Result<ProbeReport, EngineError> {
        let placed = self.resolve(request, Purpose::Probe(batch), cancel)?;
        let mut report = self.probe_in(&placed, batch, detail, cancel)?;
        report.notes.extend(simulated_instead(request, &placed));
        Ok(report)
    }
}

/// A request about a simulated card that has one variant, looked at a sample at a time.
pub(super) struct One<'a> {
    engine: &'a FitEngine,
    request: &'a Request,
    spec: FitSpec<'a>,
    simulator: Simulator,
}

impl One<'_> {
    /// How one sample runs, and whether it leaves headroom.
    pub(super) fn sample(&mut self) -> Result<(Verdict, bool), EngineError> {
        let One {
            spec, simulator, ..
        } = self;
        let variant = &spec.request.variants[0];
        let limit = spec.budget.limit(&variant.parallel);
        simulator.safety(&spec.request, variant, 1, limit)
    }

    /// The answer, where the request is right.
    pub(super) fn answer(mut self, observer: &Observer<'_>) -> Result<FitResult, EngineError> {
        let cancel = observer.cancel();
        self.engine.resolve(self.request, Purpose::Fit, cancel)?;
        let devices = Devices {
            simulated: &mut self.simulator,
            real: None,
        };
        answer(&self.spec, devices, observer)
    }
}

impl FitEngine {
    /// Opens such a request; `None` where it is another one, or is wrong.
    pub(super) fn one<'a>(
        &'a self,
        request: &'a Request,
        observer: &'a Observer<'a>,
    ) -> Result<Option<One<'a>>, EngineError> {
        let is_alone = request.lengths.is_none() && request.soak.is_none();
        if !is_alone || request.variants.len() > 1 {
            return Ok(None);
        }
        let is_recorded = is_to_be_recorded(request, observer.cancel());
        let opened = is_recorded.and_then(|is_recorded| {
            let open = || self.open(request, self.deadlines, Fallback::Fail, observer);
            (!is_recorded).then(open).transpose()
        });
        match opened {
            Ok(opened) => Ok(opened.map(|(spec, simulator, _)| One {
                engine: self,
                request,
                spec,
                simulator,
            })),
            Err(EngineError::Cancelled) => Err(EngineError::Cancelled),
            Err(_) => Ok(None),
        }
    }

    /// Runs one batch; what is told of a GPU's own steps is never their events.
    pub(super) fn probe_in(
        &self,
        request: &Request,
        batch: u64,
        detail: Detail,
        cancel: &Cancel,
    ) -> Result<ProbeReport, EngineError> {
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
