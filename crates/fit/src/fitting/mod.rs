//! Finds the largest batch: simulated probes bracket it, real ones confirm it.

mod advice;
mod answer;
mod apart;
mod devices;
mod engine;
mod foreseen;
mod headroom_policy;
mod lengths;
mod max_batches;
mod memory_budget;
mod parts;
mod plan;
mod probing;
mod ranked;
mod recorded;
mod remarks;
mod replanned;
mod soak;
mod suggest;
mod uncertainty;
mod variant_search;
mod why;

#[cfg(test)]
mod tests;

pub use apart::answer_apart;
pub use engine::FitEngine;
pub use recorded::FromRecordings;
pub(crate) use soak::check as check_soak;
pub use soak::{FailingStep, SafeBatch, Soaked, Turn, TurnKind, soak};
