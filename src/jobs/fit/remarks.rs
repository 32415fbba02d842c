//! What readers are told besides figures.

use crate::graph::ParameterKind;
use crate::model::{Mode, Request, Workload};
use crate::shape::numel;
use crate::units::Bytes;
use crate::worker::Ready;

use super::probing::gpu::Lowered;

/// What others have to hold before it is worth a word: more than a driver keeps for itself.
const WORTH_A_NOTE: Bytes = Bytes::mib(256);

/// What a reader is told of the memory that several ranks need and one does not.
pub(super) fn data_parallelism(request: &Request, workload: &Workload) -> Option<String> {
    let ranks = request.world_size;
    if ranks == 1 {
        return None;
    }
    let Workload::Graph(graph) = workload else {
        return Some(format!(
            "these figures are those of the recorded process; if it did not train with others when it was recorded, \
             each of {ranks} ranks also needs gradient buckets and the buffers of NCCL"
        ));
    };
    let trained = graph
        .parameters
        .iter()
        .filter(|parameter| parameter.kind == ParameterKind::Trained)
        .map(|parameter| graph.value(parameter.value));
    let elements: u64 = trained.map(|value| numel(&value.shape).at(1)).sum();
    let training = request
        .variants
        .iter()
        .filter(|variant| variant.mode == Mode::Train);
    let widest = training
        .map(|variant| variant.precision.parameters().size())
        .max();
    let missing = match widest {
        Some(bytes) => format!(
            "gradient buckets of DistributedDataParallel (up to {}, unless `gradient_as_bucket_view=True`) and the \
             buffers of NCCL",
            Bytes(elements * bytes)
        ),
        None => "the buffers of NCCL, if ranks communicate at all".to_owned(),
    };
    Some(format!(
        "these figures are those of a single process; each of {ranks} ranks also needs {missing}"
    ))
}

/// What a reader is told where the recordings say the allocator's settings, and the request does not.
pub(super) fn settings_as_recorded(request: &Request, workload: &Workload) -> Option<String> {
    let Workload::Recorded(steps) = workload else {
        return None;
    };
    let settings = steps.allocator.as_deref();
    let settings = settings.filter(|_| request.allocator.is_empty())?;
    Some(format!(
        "the allocator's settings are those that were recorded: {settings}"
    ))
}

/// What a reader is told of memory that other processes hold.
pub(super) fn others(ready: &Ready) -> Option<String> {
    let used = Bytes(ready.used_by_others_bytes?);
    (used >= WORTH_A_NOTE).then(|| {
        format!(
            "other processes use {used} of the GPU's {}; the limit is what they leave",
            Bytes(ready.gpu.total_bytes)
        )
    })
}

/// What a reader is told of a fit whose limit did not last.
pub(super) fn began_anew(limit: Bytes, lowered: &Lowered) -> String {
    format!(
        "other processes took memory of the GPU during the fit and use {} now; it was started again with a limit of \
         {} instead of {limit}",
        lowered.used_by_others, lowered.limit
    )
}
