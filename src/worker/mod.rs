//! The child process that owns a GPU for one job, and the parent's side of it.
//!
//! A driver fault, an illegal access or a hang ends the child, not the service: the [`Supervisor`] kills
//! it, starts another once, and says by name what happened. Both sides are plain synchronous code; call
//! the parent's from a blocking thread. Messages are one JSON object per line, see [`protocol`].

mod bench;
mod child;
mod line;
mod loss;
mod misbehave;
mod programs;
pub mod protocol;
mod supervisor;

pub use bench::Bench;
pub use child::{Workbench, run};
pub use loss::{Activity, Loss, WorkerError};
pub use misbehave::{Misbehaviour, run_misbehaving};
pub use programs::Programs;
pub use protocol::{Gpu, Opening, ProbeOrder, Ready, Refusal};
pub use supervisor::{Deadlines, Launch, Supervisor};
