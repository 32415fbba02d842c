//! Which batch to probe next, and what to recommend once enough is known.
//!
//! Pure: no I/O, no clock, no device. The caller probes what [`Search::next_batch`] proposes and tells
//! [`Search::record`] what it found, until nothing is proposed.
#![doc = include_str!("NOTES.md")]

mod accumulation;
pub mod ask_tell;
mod buckets;
mod choice;
pub mod headroom;
mod state;

pub use accumulation::{Plan, closest_plans, exact_plans, one_step, short_plans};
pub use buckets::{LengthBatch, buckets, budget, padding};
pub use choice::{
    Bisections, ENOUGH, Knee, RankKey, SamplingDensity, edge, knee, rank, smallest_enough, unbeaten,
};
pub use state::{Above, Agreement, Goal, Largest, MAX_BATCH, PredictedBatches, Search};
