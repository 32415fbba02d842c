//! Real probes, by a worker process.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::jobs::EngineError;
use crate::model::{Invalid, Request, Variant};
use crate::probe::{Detail, Evidence};
use crate::units::Bytes;
use crate::worker::{
    Deadlines, Launch, Opening, ProbeOrder, Ready, Refusal, Supervisor, WorkerError,
};

use super::prober::{Probed, Prober};

/// A GPU in the hands of a worker.
pub(super) struct GpuProber<'a> {
    device: String,
    supervisor: Supervisor,
    cancel: &'a AtomicBool,
}

impl<'a> GpuProber<'a> {
    /// Starts a worker that opens `device` for the probes of one request.
    pub(super) fn open(
        program: &Path,
        device: String,
        request: &Request,
        cancel: &'a AtomicBool,
    ) -> Result<(GpuProber<'a>, Ready), EngineError> {
        let opening = Opening {
            device: device.clone(),
            request: request.self_contained().0,
        };
        let launch = Launch::this_binary(program.to_owned());
        let (supervisor, ready) = Supervisor::open(launch, opening, Deadlines::default(), cancel)
            .map_err(|error| translated(error, &device))?;
        let prober = GpuProber {
            device,
            supervisor,
            cancel,
        };
        Ok((prober, ready))
    }
}

impl Prober for GpuProber<'_> {
    fn probe(
        &mut self,
        variant: &Variant,
        batch: u64,
        limit: Bytes,
        _detail: Detail,
    ) -> Result<Probed, EngineError> {
        let began = Instant::now();
        let order = ProbeOrder {
            variant: variant.clone(),
            batch,
            limit_bytes: limit.0,
        };
        let report = self
            .supervisor
            .probe(&order, self.cancel)
            .map_err(|error| translated(error, &self.device))?;
        let wall_ms = began.elapsed().as_secs_f64() * 1000.0;
        Ok(Probed { report, wall_ms })
    }

    fn evidence(&self) -> Evidence {
        Evidence::Probed
    }

    fn device(&self) -> &str {
        &self.device
    }
}

/// A worker's trouble in the words of a job.
pub(super) fn translated(error: WorkerError, device: &str) -> EngineError {
    let failed = |cause: String| EngineError::DeviceFailed {
        device: device.to_owned(),
        cause,
    };
    match error {
        WorkerError::Cancelled => EngineError::Cancelled,
        WorkerError::Refused { refusal, detail } => match refusal {
            Refusal::Invalid => EngineError::Invalid(Invalid::at("", detail)),
            Refusal::DeviceUnavailable => super::devices::unavailable(device, detail),
            Refusal::DeviceFailed | Refusal::OutOfTurn => failed(detail),
        },
        WorkerError::Spawn { program, source } => failed(format!(
            "could not start the worker {}: {source}",
            program.display()
        )),
        lost @ WorkerError::Lost { .. } => failed(lost.to_string()),
    }
}
