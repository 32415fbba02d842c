//! What wrappers for several GPUs add to a step.

mod buckets;
mod ddp;

pub(super) use ddp::{Model, Reducer};
