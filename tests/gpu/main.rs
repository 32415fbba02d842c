//! Tests that need an NVIDIA GPU: every kernel against plain arithmetic on the host.
//!
//! Run with `cargo test --test gpu -- --ignored --test-threads=1`. A missing GPU is then a failure.

// Reference arithmetic converts freely between indices and numbers, and compares what must be equal bit for
// bit; settings come from the environment because the standard harness passes nothing else on.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    clippy::float_cmp,
    clippy::too_many_lines,
    clippy::type_complexity,
    clippy::disallowed_methods,
    clippy::similar_names,
    clippy::many_single_char_names
)]

mod arithmetic;
mod attention;
mod card;
mod cases;
mod convolutions;
mod elementwise;
mod expandable;
mod formulas;
mod large;
mod losses;
mod normalizations;
mod numbers;
mod numerics;
mod optimizers;
mod pools;
mod products;
mod ranks;
mod speed;
mod sums;
