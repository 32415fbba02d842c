//! batchfit: the largest batch that fits a GPU safely.
pub mod device;
pub mod graph;
pub mod model;
pub mod program;
pub mod units;
