//! A card through its driver: context and facts, memory, which libraries there are, what is used by whom.

pub(crate) mod error;
pub(crate) mod expandable;
pub(crate) mod gpu;
pub(crate) mod libraries;
pub(crate) mod mapped_ranges;
pub(crate) mod memory;
pub(crate) mod nvml;
