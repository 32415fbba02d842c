//! What a fit asks of a device, simulated or real.

pub(in crate::fitting) mod gpu;
pub(in crate::fitting) mod runner;
pub(in crate::fitting) mod simulator;
