//! What wrappers for several GPUs add to a step.

mod buckets;
mod ddp;
mod zero;

pub(super) use ddp::{Model, Reducer};
pub(super) use zero::partition;
