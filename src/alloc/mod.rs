//! A behavioural twin of PyTorch's CUDA caching allocator.
//!
//! [`CachingAllocator`] takes whole segments from a [`SegmentSource`] (the CUDA driver, or
//! [`SimulatedMemory`]), cuts them into blocks, and keeps freed blocks for reuse. Given the same
//! requests and the same segment addresses it makes the same decisions as PyTorch 2.11, byte for
//! byte: the recorded traces in `tests/golden/traces` are replayed to prove it.
//!
//! Single-threaded, no I/O, no clock. Not yet here: expandable segments, `max_split_size_mb`,
//! garbage collection, rounding divisions, more than one stream; [`Settings`] refuses them by name.
#![doc = include_str!("NOTES.md")]

mod block;
mod caching;
mod config;
mod free_set;
mod pool;
mod segment;
mod simulated;
mod size;
mod snapshot;
mod stats;
mod trace;

pub use block::BlockId;
pub use caching::{CachingAllocator, OutOfMemory, Refusal};
pub use config::{Settings, SettingsError};
pub use pool::PoolKind;
pub use segment::{Address, Full, SegmentSource};
pub use simulated::SimulatedMemory;
pub use size::{
    LARGE_SEGMENT, MIN_BLOCK, MIN_EXACT, SMALL_MAX, SMALL_SEGMENT, limit_of_fraction, round_size,
    segment_size,
};
pub use snapshot::{BlockView, SegmentView, Snapshot};
pub use stats::{PoolStats, Stat, Stats};
pub use trace::{Event, Observer};
