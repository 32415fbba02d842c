//! Finds the largest batch: simulated probes bracket it, real ones confirm it.

mod advice;
mod answer;
mod engine;
mod maxima;
mod prober;
mod watch;

#[cfg(test)]
mod tests;

pub use engine::FitEngine;
