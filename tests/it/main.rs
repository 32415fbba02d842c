//! Everything that is tested from outside of the crate, in one binary.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod alloc;
mod properties;
