//! What a fit asks of a device, simulated or real.

pub(crate) mod gpu;
pub(crate) mod runner;
pub(crate) mod simulator;
