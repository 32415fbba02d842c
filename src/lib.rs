//! batchfit: the largest batch that fits a GPU safely.
pub mod units;

pub mod graph;

pub mod model;

pub mod program;

pub mod compile;

pub mod alloc;

pub mod device;

pub mod probe;

pub mod search;

pub mod worker;

pub mod store;

pub mod jobs;

pub mod report;

pub mod http;

pub mod cli;
