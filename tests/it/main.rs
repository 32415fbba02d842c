//! Integration tests: one binary, so that the crate is linked once.

mod alloc;
mod compile;
mod model;
mod properties;
