//! What wrappers for several GPUs add to a step.

mod buckets;
mod ddp;
mod ranks;
mod zero;

pub(super) use ddp::{Model, Reducer, send_from};
pub use ranks::{RankClass, rank_classes};
pub(super) use zero::partition;
