//! What a fit asks of a device, simulated or real.

pub(in crate::jobs::fit) mod gpu;
pub(in crate::jobs::fit) mod observer;
pub(in crate::jobs::fit) mod prober;
mod ranks;
pub(in crate::jobs::fit) mod simulator;
