//! What the allocator tells of itself: its numbers, what is where, and what it did, under PyTorch's names.

pub(in crate::alloc) mod snapshot;
pub(in crate::alloc) mod stats;
pub(in crate::alloc) mod trace;
