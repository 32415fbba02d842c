//! Tests that need an NVIDIA GPU: every kernel against plain arithmetic on the host.
//!
//! Run with `cargo test --test gpu -- --ignored --test-threads=1`. A missing GPU is then a failure.

mod arithmetic;
mod card;
mod convolutions;
mod elementwise;
mod losses;
mod normalizations;
mod numbers;
mod numerics;
mod optimizers;
mod pools;
mod products;
mod speed;
mod sums;
