//! The `batchfit` command.

use std::process::ExitCode;

use mimalloc::MiMalloc;

#[global_allocator]
static HEAP: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    batchfit::cli::run()
}
