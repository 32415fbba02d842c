//! Finds the largest batch: simulated probes bracket it, real ones confirm it.

mod answer;
mod composite;
mod devices;
mod engine;
mod isolated;
mod lengths;
mod memory_budget;
mod plan;
mod prediction;
mod probing;
mod recommendation;
mod recorded;
mod soak;
mod suggest;
mod variant_search;

#[cfg(test)]
mod tests;

pub use engine::FitEngine;
pub use isolated::run_isolated;
pub use recorded::FromRecordings;
pub(crate) use soak::check as check_soak;
pub use soak::{FailingStep, SafeBatch, SoakResult, SoakStep, StepKind, soak};
