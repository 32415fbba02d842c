//! Where segments come from: the seam to whatever owns the memory, and memory that exists only as addresses.

pub(in crate::alloc) mod segment;
pub(in crate::alloc) mod simulated;
