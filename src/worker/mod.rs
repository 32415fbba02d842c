//! The child process that owns a GPU for one job, and the parent's side of it.
//!
//! A driver fault, an illegal access or a hang ends the child, not the service: the [`Supervisor`] kills
//! it, starts another once, and says by name what happened. Both sides are plain synchronous code; call
//! the parent's from a blocking thread. Messages are one JSON object per line, see [`protocol`]. Workers
//! take turns on a GPU, across processes, and measure before each probe what others leave of its memory. A [`Recorder`] is
//! a child of another kind: PyTorch, which trains a graph for a few steps and writes down what its allocator is asked for; [`Heuristics`]
//! asks cuDNN about cards that are not there.

mod card;
mod child;
mod choice;
mod fault;
mod handler;
mod heuristics;
mod misbehave;
mod process;
mod programs;
pub mod protocol;
mod recorder;
mod room;
pub(crate) mod supervised;
mod supervisor;
mod turn;

pub use child::{Handler, run};
pub use fault::{Fault, FaultPlan};
pub use handler::GpuHandler;
pub use heuristics::{Heuristics, HeuristicsCommand, NoHeuristics, run_heuristics};
pub use misbehave::{CROWDED, FakeGpu, Misbehaviour, run_misbehaving};
pub use process::{Activity, Loss, WorkerError};
pub(crate) use process::{Patience, reap};
pub use programs::Programs;
pub use protocol::{Gpu, ProbeOrder, Ready, Refusal};
pub use recorder::{
    BatchOutcome, ModuleToRecord, RecordedBatch, Recorder, RecorderCommand, RecorderOpening,
    RecorderReady,
};
pub use supervisor::{Account, Caller, Deadlines, Hold, Opening, Supervisor, WorkerCommand};
pub use turn::{Turn, TurnError};
