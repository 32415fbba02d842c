//! The child process that owns a GPU for one job; the parent's side is in `batchfit_fit::worker`.
//!
//! Workers take turns on a GPU, across processes, and measure before each probe what others leave of its memory. [`run_heuristics`] is the
//! child that asks cuDNN about cards that are not there.

mod available_memory;
mod card;
mod child;
mod choice;
mod fault;
mod gpu_lock;
mod handler;
mod heuristics;
mod injected_failure;

pub use batchfit_fit::worker::{
    Activity, BatchOutcome, Caller, Deadlines, Gpu, GpuLease, Heuristics, HeuristicsCommand, Loss,
    ModuleToRecord, NoHeuristics, Opening, ProbeOrder, Programs, Ready, RecordedBatch, Recorder,
    RecorderCommand, RecorderOpening, RecorderReady, Refusal, Supervisor, WorkerCommand,
    WorkerError, WorkerStats, protocol,
};
pub(crate) use batchfit_fit::worker::{SuspendAwareDeadline, reap, supervised};
pub use child::{Handler, run};
pub use fault::{Fault, FaultPlan};
pub use gpu_lock::{GpuLock, GpuLockError};
pub use handler::GpuHandler;
pub use heuristics::run_heuristics;
pub use injected_failure::{CROWDED, FakeGpu, InjectedFailure, run_misbehaving};
