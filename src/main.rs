//! The `batchfit` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    batchfit::cli::run()
}
