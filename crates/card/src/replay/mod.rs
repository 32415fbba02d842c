//! Replays what PyTorch's allocator was recorded to do: to prove that [`crate::alloc`] does the same, and
//! to answer what it would have done with other settings or less memory.
//!
//! [`read`] takes a trace or a memory snapshot apart and checks that it makes sense. [`replay`] puts its
//! requests, and only those, to the allocator: with the driver's recorded answers, when limit and settings
//! are the recorded ones, or on simulated memory. No I/O, no clock.

mod compare;
mod driver;
mod events;
mod exact;
mod findings;
mod history;
mod layout;
mod plan;
mod reading;
mod rebuild;
mod replayer;
mod report;
mod run;
mod simulate;

pub use findings::{Finding, Findings, GrowthReport, LineBytes};
pub use layout::{Layout, Segment, Used};
pub use reading::error::RecordingError;
pub use reading::pickle;
pub use reading::read::decompress;
pub use reading::read::{Bounds, read, read_bare};
pub use reading::recording::{Entry, Format, RecordedLimit, Recording};
pub use report::{
    AddressSource, BlockReport, ComparisonReport, ComparisonRow, FirstDifference, PeakReport,
    RecordingFormat, RecordingSummary, ReplayMoment, ReplayReport, SegmentReport, StopReport,
};
pub use run::{FractionOfUnknown, Replay, ReplayOptions, replay};
