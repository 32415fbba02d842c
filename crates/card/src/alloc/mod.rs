//! A behavioural twin of PyTorch's CUDA caching allocator.
//!
//! [`CachingAllocator`] takes whole segments from a [`SegmentSource`] (the CUDA driver, or
//! [`SimulatedMemory`]), cuts them into blocks, and keeps freed blocks for reuse. Given the same
//! requests and the same segment addresses it makes the same decisions as PyTorch 2.11, byte for
//! byte: the recorded traces in `tests/golden/traces` are replayed to prove it.
//!
//! Single-threaded, no I/O, no clock. Everything that `PYTORCH_CUDA_ALLOC_CONF` can say is here, except
//! the `cudaMallocAsync` backend and the private pools of CUDA graphs; [`Settings`] refuses the former by
//! name.
#![doc = include_str!("NOTES.md")]

mod block;
mod caching;
mod expandable;
mod free_set;
mod freeing;
mod history;
mod limit;
mod memory;
mod pool;
mod release;
mod repeat;
mod restore;
mod settings;
mod size;
mod streams;

pub use block::BlockId;
pub use caching::{CachingAllocator, OutOfMemory, Refusal};
pub use history::snapshot::{BlockState, BlockView, SegmentView, Snapshot};
pub use history::stats::{PoolStats, Stat, Stats};
pub use history::trace::{Event, Observer, SegmentAction};
pub use limit::MemoryLimit;
pub use memory::segment::{Address, Full, Reserved, SegmentSource, expandable_size};
pub use memory::simulated::SimulatedMemory;
pub use pool::PoolKind;
pub use repeat::Checkpoint;
pub use settings::config::Settings;
pub use settings::config_text::SettingsError;
pub use size::{
    LARGE_SEGMENT, MIN_BLOCK, MIN_EXACT, SMALL_MAX, SMALL_SEGMENT, limit_of_fraction, round_size,
    segment_size,
};
pub use streams::Stream;
