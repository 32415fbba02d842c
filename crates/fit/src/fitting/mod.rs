//! Finds the largest batch: simulated probes bracket it, real ones confirm it.

mod advice;
mod answer;
mod apart;
mod devices;
mod engine;
mod foreseen;
mod inquiry;
mod kept;
mod lengths;
mod maxima;
mod parts;
mod plan;
mod probing;
mod ranked;
mod recorded;
mod remarks;
mod replanned;
mod room;
mod soak;
mod suggest;
mod uncertainty;
mod why;

#[cfg(test)]
mod tests;

pub use apart::answer_apart;
pub use engine::FitEngine;
pub use recorded::FromRecordings;
pub(crate) use soak::check as check_soak;
pub use soak::{FailingStep, SafeBatch, Soaked, Turn, TurnKind, soak};
