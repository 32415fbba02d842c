//! batchfit: the largest batch that fits a GPU safely.
pub mod graph;
pub mod model;
pub mod units;
