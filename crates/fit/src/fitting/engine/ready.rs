//! What is known before anything is probed: the graph, the card, the environment.

use crate::device::Capability;
use crate::device::sim::{CARDS, PROCESS_OVERHEAD};
use crate::fitting::probing::simulator::not_compiled;
use crate::limits::{Cancel, with_cancel};
use crate::model::{Lowered, PYTORCH, Request, SearchMode, Workload};
use crate::units::Bytes;
use crate::worker::{Gpu, Programs, Ready};
use crate::{EngineError, Environment};

/// Finds what is wrong with a request whose device is not here: that is told first.
pub(super) fn compile_all(
    request: &Request,
    workload: Workload,
    cancel: &Cancel,
) -> Result<(), EngineError> {
    let mut programs = Programs::simulated(workload, CARDS[0].capability);
    for variant in &request.variants {
        let compiled = programs.of(variant, cancel);
        compiled.map_err(|error| not_compiled(&error))?;
    }
    Ok(())
}

/// What is known of a GPU that no worker could open.
pub(super) fn unopened(gpu: Gpu) -> Ready {
    Ready {
        available_bytes: Bytes(gpu.free_bytes).saturating_sub(PROCESS_OVERHEAD).0,
        used_by_others_bytes: Some(gpu.total_bytes.saturating_sub(gpu.free_bytes)),
        cuda: None,
        cudnn: None,
        no_room: None,
        gpu,
    }
}

/// The request's graph, unless `cancel` becomes true while it is read.
pub(in crate::fitting) fn lowered<'a>(
    request: &'a Request,
    cancel: &Cancel,
) -> Result<&'a Lowered, EngineError> {
    let read = with_cancel(cancel, || request.lower()).ok_or(EngineError::Cancelled)?;
    read.map_err(EngineError::Invalid)
}

/// Whether steps have to be recorded, unless `cancel` becomes true while the graph is read.
pub(in crate::fitting) fn is_to_be_recorded(
    request: &Request,
    cancel: &Cancel,
) -> Result<bool, EngineError> {
    if request.search == SearchMode::Recorded {
        return Ok(true);
    }
    Ok(lowered(request, cancel)?.not_understood.is_some())
}

pub(super) fn capability(ready: &Ready) -> Capability {
    Capability {
        compute: ready.gpu.compute,
        multiprocessors: ready.gpu.multiprocessors,
        threads_per_multiprocessor: ready.gpu.threads_per_multiprocessor,
    }
}

pub(super) fn environment(device: String, gpu: String) -> Environment {
    Environment {
        device,
        gpu,
        driver: None,
        cuda: None,
        cudnn: None,
        batchfit: env!("CARGO_PKG_VERSION").to_owned(),
        pytorch: PYTORCH.to_owned(),
    }
}
