//! `batchfit heuristics`: asks cuDNN about cards that are not there, for a parent process.

use std::io::{self, BufReader};

use super::worker::watched_stdin;
use crate::cli::Outcome;
use crate::cli::error::CliError;
use crate::worker;

pub(in crate::cli) fn run() -> Result<Outcome, CliError> {
    let mut input = BufReader::new(watched_stdin().map_err(CliError::writing)?);
    worker::run_heuristics(&mut input, io::stdout())
        .map(|()| Outcome::Answered)
        .map_err(CliError::writing)
}
