//! What wrappers for several GPUs add to a step.

mod buckets;
mod ddp;
mod zero;

pub(super) use ddp::{Model, Reducer, send_from};
pub(super) use zero::partition;
