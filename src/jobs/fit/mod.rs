//! Finds the largest batch: simulated probes bracket it, real ones confirm it.

mod advice;
mod answer;
mod apart;
mod devices;
mod doubts;
mod engine;
mod gpu;
mod maxima;
mod prober;
mod simulator;
mod watch;

#[cfg(test)]
mod tests;

pub use apart::answer_apart;
pub use engine::FitEngine;
