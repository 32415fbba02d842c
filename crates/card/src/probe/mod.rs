//! Runs a step program on a device for its three steps and gives the verdict.
//!
//! The same code runs on simulated memory, where launches do nothing, and on a GPU. Out of memory is a
//! verdict, never an error.

mod events;
mod outline;
mod peak;
mod plans;
mod proof;
mod repeat;
mod report;
mod run;
mod run_state;
mod simulated;
mod soak;
mod timeline;

pub use crate::alloc::SegmentAction;
pub use batchfit_step::LARGEST_BATCH;
pub use events::EventLog;
pub use events::{
    BandColumns, BlockColumns, EventOwner, MOST_EVENTS, MemoryEvents, PendingColumns,
    RefusalColumns, RepeatColumns, SegmentColumns,
};
pub use outline::Outline;
pub use peak::{ModuleBytes, Peak, Phase, Shortage};
pub use report::is_nothing;
pub use report::{
    CategoryBytes, Evidence, FIRST_STEPS, PeakMemory, ProbeReport, RankReport, SpeedFrom,
    StepMemory, StepOutcome, TimelinePoint, Verdict,
};
pub use run::{Cancelled, Detail, MICRO_STEPS_ON_A_GPU, Probe, Resources, STEPS};
pub use simulated::SimulatedProcess;
pub use soak::{Growth, Shape, Soak, SoakReport};
