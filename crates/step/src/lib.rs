//! What the other crates speak in: sizes in bytes, shapes with a symbolic batch, step programs, and what a variant of a training is. No I/O
//! and no clock.
//!
//! A step program is compiled once for a graph and a variant, and runs at any batch size: a flat list of allocations, launches and frees,
//! with sizes as functions of the batch.

#[macro_use]
mod listed;

mod glob;
pub mod limits;
pub mod order;
mod parallel;
pub mod program;
pub mod shape;
pub mod units;
mod variant;

pub use glob::{Glob, Globs, unwrapped};
pub use parallel::{CommHook, Ddp, FullyShard, MixedPrecision, Parallel};
pub use variant::{
    Checkpointing, Compare, Mode, Norm, Objective, Optimizer, OptimizerImpl, Precision, Variant,
};

/// Largest batch that may be asked for: more samples than any memory holds bytes for; keeps sizes within 64 bits.
pub const LARGEST_BATCH: u64 = 1 << 32;
