//! A card through its driver: context and facts, memory, which libraries there are, what is used by whom.

pub(in crate::device::cuda) mod error;
pub(in crate::device::cuda) mod expandable;
pub(in crate::device::cuda) mod gpu;
pub(in crate::device::cuda) mod held;
pub(in crate::device::cuda) mod libraries;
pub(in crate::device::cuda) mod memory;
pub(in crate::device::cuda) mod nvml;
