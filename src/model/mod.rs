//! From what a user writes to a graph and a variant.

pub mod exported;
mod variant;

pub use variant::{Checkpointing, Mode, Optimizer, OptimizerImpl, Precision, Variant};
