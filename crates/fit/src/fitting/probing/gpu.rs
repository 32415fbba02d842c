//! Real probes, by a worker process.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::fitting::Result;
use crate::graph::Graph;
use crate::model::{Request, RequestError, Variant};
use crate::probe::{Detail, Evidence, Verdict};
use crate::units::Bytes;
use crate::worker::{
    Deadlines, Opening, ProbeOrder, Ready, Refusal, Supervisor, WorkerCommand, WorkerError,
    WorkerStats,
};
use crate::{EngineError, GpuRun, GpuWork};

use super::runner::{Observer, ProbeOutcome, Runner, RunnerDevice};
use crate::fitting::recommendation::headroom::{Assumed, Uncertainty, VariantHeadroom, of_graph};

/// A GPU in the hands of a worker.
pub(crate) struct GpuProber<'a> {
    device: String,
    supervisor: Supervisor,
    observer: &'a Observer<'a>,
    runs: Vec<GpuRun>,
    lowered: Option<Lowered>,
    /// What is assumed of the model.
    uncertainties: Vec<Uncertainty>,
    is_lost: bool,
    assumed: Assumed,
}

/// The lowest limit that other processes left to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lowered {
    pub(crate) limit: Bytes,
    pub(crate) used_by_others: Bytes,
}

impl<'a> GpuProber<'a> {
    /// Starts a worker that opens its device for the probes of one request, as soon as it is its turn: a certain
    /// GPU, or with `auto` one that is free. For ranks that train together, one for each of their GPUs.
    pub(crate) fn open(
        program: &Path,
        deadlines: Deadlines,
        devices: &[String],
        (request, graph): (&Request, &Graph),
        observer: &'a Observer<'a>,
    ) -> Result<(GpuProber<'a>, Ready)> {
        let device = devices.join(",");
        let opening = Opening {
            devices: devices.to_vec(),
            together: request.is_parallel(),
            request: request.self_contained().text().to_string(),
        };
        let launch = WorkerCommand::this_binary(program.to_owned());
        let (supervisor, ready) = observer
            .call(|caller| Supervisor::open(launch, opening, deadlines, caller))
            .map_err(|error| translated(error, &device))?;
        let prober = GpuProber {
            device: match devices {
                [_] => format!("cuda:{}", ready.gpu.ordinal),
                _ => device,
            },
            supervisor,
            observer,
            runs: Vec::new(),
            lowered: None,
            uncertainties: of_graph(graph),
            is_lost: false,
            assumed: Assumed::of(graph),
        };
        Ok((prober, ready))
    }

    /// What was done so far.
    pub(crate) fn work(&self) -> GpuWork {
        gpu_work(self.supervisor.account(), &self.runs)
    }

    /// What other processes left at least, if that was less than probes were to have.
    pub(crate) fn take_lowered(&mut self) -> Option<Lowered> {
        self.lowered.take()
    }
}

/// What processes cost that ran these probes.
pub(crate) fn gpu_work(cost: WorkerStats, runs: &[GpuRun]) -> GpuWork {
    let is_out = |run: &&GpuRun| run.verdict == Verdict::OutOfMemory;
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    GpuWork {
        probes: count(runs.len()),
        out_of_memory: count(runs.iter().filter(is_out).count()),
        workers: cost.workers,
        worker_start_ms: milliseconds(cost.start),
        waited_ms: milliseconds(cost.waited),
        runs: runs.to_vec(),
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

impl Runner for GpuProber<'_> {
    fn device(&self) -> RunnerDevice<'_> {
        RunnerDevice {
            name: &self.device,
            evidence: Evidence::Probed,
            largest_recorded: None,
            is_lost: self.is_lost,
        }
    }

    fn probe(
        &mut self,
        variant: &Variant,
        batch: u64,
        limit: Bytes,
        _detail: Detail,
    ) -> Result<ProbeOutcome> {
        let began = Instant::now();
        let order = ProbeOrder {
            variant: variant.clone(),
            batch,
            limit_bytes: limit.0,
        };
        let supervisor = &mut self.supervisor;
        let probed = self
            .observer
            .call(|caller| supervisor.probe(&order, caller));
        let report = match probed {
            Ok(report) => report,
            Err(error) => {
                self.is_lost =
                    matches!(error, WorkerError::Lost { .. } | WorkerError::Spawn { .. });
                return Err(translated(error, &self.device));
            }
        };
        let wall_ms = milliseconds(began.elapsed());
        self.runs.push(GpuRun {
            batch,
            accumulation: variant.accumulation,
            verdict: report.verdict,
            wall_ms,
        });
        let had = Bytes(report.limit_bytes);
        if had < self.lowered.as_ref().map_or(limit, |lowered| lowered.limit) {
            self.lowered = Some(Lowered {
                limit: had,
                used_by_others: Bytes(report.used_by_others_bytes.unwrap_or(0)),
            });
        }
        Ok(ProbeOutcome {
            report,
            wall_ms,
            uncertainties: [&*self.uncertainties, self.assumed.at(batch).as_slice()].concat(),
            headroom: VariantHeadroom::default(),
        })
    }
}

/// A worker's trouble in the words of a job.
pub(crate) fn translated(error: WorkerError, device: &str) -> EngineError {
    let failed = |cause: String| EngineError::DeviceFailed {
        device: device.to_owned(),
        cause,
    };
    match error {
        WorkerError::Cancelled => EngineError::Cancelled,
        busy @ WorkerError::Busy { .. } => EngineError::DeviceBusy {
            device: device.to_owned(),
            holder: busy.to_string(),
        },
        WorkerError::Refused { refusal, detail } => match refusal {
            Refusal::Invalid => EngineError::Invalid(RequestError::at("", detail)),
            Refusal::DeviceUnavailable => EngineError::unavailable(device, detail),
            Refusal::DeviceFailed | Refusal::Lost | Refusal::OutOfTurn => failed(detail),
        },
        WorkerError::Spawn {
            who,
            program,
            source,
        } => failed(format!(
            "could not start the {who} {}: {source}",
            program.display()
        )),
        lost @ WorkerError::Lost { .. } => failed(lost.to_string()),
    }
}
