//! batchfit: the largest batch that fits a GPU safely.
pub mod alloc;
pub mod graph;
pub mod units;
