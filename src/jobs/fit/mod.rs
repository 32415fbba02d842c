//! Finds the largest batch: simulated probes bracket it, real ones confirm it.

mod advice;
mod answer;
mod apart;
mod devices;
mod engine;
mod gpu;
mod inquiry;
mod maxima;
mod observer;
mod plan;
mod prober;
mod remarks;
mod simulator;
mod uncertainty;

#[cfg(test)]
mod tests;

pub use apart::answer_apart;
pub use engine::FitEngine;
