//! Integration tests: one binary, so that the crate is linked once.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

use std::alloc::System;

use batchfit::limits::Counted;

/// As in the program, whose service bounds what each thread holds.
#[global_allocator]
static HEAP: Counted<System> = Counted(System);

mod accumulation;
mod alloc;
mod cli;
mod compile;
mod events;
mod http;
mod layering;
mod model;
mod outline;
mod parallel;
mod properties;
mod ranks;
mod recorded;
mod recorder;
mod replay;
mod report;
mod sample;
mod steady;
mod suggestions;
mod truth;
mod wait;
mod waiting;
mod why;
mod worker;
mod workspaces;
