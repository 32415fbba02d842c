//! The child process that owns a GPU for one job, and the parent's side of it.
//!
//! A driver fault, an illegal access or a hang ends the child, not the service: the [`Supervisor`] kills
//! it, starts another once, and says by name what happened. Both sides are plain synchronous code; call
//! the parent's from a blocking thread. Messages are one JSON object per line, see [`protocol`]. Workers
//! take turns on a GPU, across processes, and measure before each probe what others leave of its memory.

mod card;
mod child;
mod choice;
mod fault;
mod handler;
mod line;
mod loss;
mod misbehave;
mod programs;
pub mod protocol;
mod room;
mod supervisor;
mod turn;

pub use child::{Handler, run};
pub use fault::{Fault, FaultPlan};
pub use handler::GpuHandler;
pub use loss::{Activity, Loss, WorkerError};
pub use misbehave::{CROWDED, FakeGpu, Misbehaviour, run_misbehaving};
pub use programs::Programs;
pub use protocol::{Gpu, ProbeOrder, Ready, Refusal};
pub use supervisor::{Account, Caller, Deadlines, Opening, Supervisor, WorkerCommand};
pub use turn::{Turn, TurnError};
