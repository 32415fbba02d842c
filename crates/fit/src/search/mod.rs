//! Which batch to probe next, and what to recommend once enough is known.
//!
//! Pure: no I/O, no clock, no device. The caller probes what [`Search::next_batch`] proposes and tells
//! [`Search::record`] what it found, until nothing is proposed.
#![doc = include_str!("NOTES.md")]

mod accumulation;
mod bracket;
mod buckets;
pub mod conversation;
mod edge;
pub mod headroom;
mod ranking;
mod state;
mod throughput;

pub use accumulation::{Plan, closest_plans, exact_plans, one_step, short_plans};
pub use buckets::{OfLength, buckets, budget, padding};
pub use edge::{Bisections, edge};
pub use ranking::{Standing, rank};
pub use state::{Above, Agreement, Goal, Largest, MAX_BATCH, Prediction, Search};
pub use throughput::{ENOUGH, Knee, Look, knee, smallest_enough, unbeaten};
