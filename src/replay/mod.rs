//! Replays what PyTorch's allocator was recorded to do: to prove that [`crate::alloc`] does the same, and
//! to answer what it would have done with other settings or less memory.
//!
//! [`read`] takes a trace or a memory snapshot apart and checks that it makes sense. [`replay`] puts its
//! requests, and only those, to the allocator: with the driver's recorded answers, when limit and settings
//! are the recorded ones, or on simulated memory. No I/O, no clock.

mod check;
mod compare;
mod driver;
mod error;
mod exact;
mod history;
mod layout;
pub mod pickle;
mod plan;
mod player;
mod read;
mod rebuild;
mod recording;
mod report;
mod run;
mod simulate;
mod snapshot;
mod text;

pub use compare::Row;
pub use error::RecordingError;
pub use exact::{Comparison, Difference};
pub use history::Moment;
pub use layout::{Layout, Segment, Used};
pub use read::{Bounds, read};
pub use recording::{Entry, Format, RecordedLimit, Recording};
pub use report::{
    AddressSource, BlockReport, ComparisonReport, ComparisonRow, FirstDifference, PeakReport,
    RecordingFormat, RecordingSummary, ReplayMoment, ReplayReport, SegmentAction, SegmentReport,
    StopReport,
};
pub use run::{Addresses, Asked, Compared, FractionOfUnknown, Replay, replay};
pub use simulate::Stop;
