//! The parent's side of child processes: one that owns a GPU for one job, one that records in PyTorch, one that asks cuDNN.
//!
//! A driver fault, an illegal access or a hang ends the child, not the service: the [`Supervisor`] kills
//! it, starts another once, and says by name what happened. All of it is plain synchronous code; call
//! it from a blocking thread. Messages are one JSON object per line, see [`protocol`]. A [`Recorder`] is PyTorch, which trains a graph for a
//! few steps and writes down what its allocator is asked for; [`Heuristics`] asks cuDNN about cards that are not there.

pub mod heuristics;
pub mod process;
pub mod programs;
pub mod protocol;
mod rank_group;
mod recorder;
#[cfg(target_os = "linux")]
pub mod supervised;
#[cfg(not(target_os = "linux"))]
#[path = "unsupervised.rs"]
pub mod supervised;
mod supervisor;

pub use heuristics::{Heuristics, HeuristicsCommand, NoHeuristics};
pub use process::{Activity, Loss, SuspendAwareDeadline, WorkerError, reap};
pub use programs::Programs;
pub use protocol::{Gpu, ProbeOrder, Ready, Refusal};
pub use recorder::{
    BatchOutcome, ModuleToRecord, RecordedBatch, Recorder, RecorderCommand, RecorderOpening,
    RecorderReady,
};
pub use supervisor::{
    Caller, Deadlines, GpuLease, Opening, Supervisor, WorkerCommand, WorkerStats,
};
