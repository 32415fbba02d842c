//! Finds the largest batch: simulated probes bracket it, real ones confirm it.

mod answer;
mod composite;
mod devices;
mod engine;
mod isolated;
mod lengths;
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

pub use devices::{DeviceKind, DeviceSummary, card_name, named_card};
pub(crate) use engine::NO_RECORDER;
pub use engine::{Catalogue, Engine, EngineError, FitEngine, Isolation, Progress, Runs, Work};
pub use isolated::run_isolated;
pub use prediction::predict;
pub use recorded::FromRecordings;
pub use soak::{FailingStep, SafeBatch, SoakResult, SoakStep, StepKind, soak};
pub(crate) use soak::{check as check_soak, on_a_gpu as soak_on_a_gpu};

/// What comes of a part of a fit.
type Result<T, E = EngineError> = std::result::Result<T, E>;
