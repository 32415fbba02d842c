//! batchfit: the largest batch that fits a GPU safely.
pub mod alloc;
pub mod compile;
pub mod device;
pub mod graph;
pub mod jobs;
pub mod model;
pub mod probe;
pub mod program;
pub mod units;
