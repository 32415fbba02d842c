//! Everything that is tested from outside of the crate, in one binary.

mod alloc;
mod properties;
