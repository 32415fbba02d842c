//! `batchfit answer`: a fit in a process of its own.

use std::fs;
use std::io;
use std::io::BufReader;

use super::worker::watched_stdin;
use crate::cli::Outcome;
use crate::cli::arguments::Answer;
use crate::cli::engine;
use crate::cli::error::CliError;
use crate::jobs;

/// The most that a process can ask for: when memory ends, the kernel ends this process before any other.
const FIRST_TO_GO: &str = "1000";

pub(in crate::cli) fn run(arguments: &Answer) -> Result<Outcome, CliError> {
    // A courtesy to the server, which works without: there is no such file outside of Linux.
    let _ = fs::write("/proc/self/oom_score_adj", FIRST_TO_GO);
    let engine = engine(arguments.patience.deadlines())?;
    let mut input = BufReader::new(watched_stdin().map_err(CliError::writing)?);
    jobs::run_isolated(&engine, &mut input, io::stdout())
        .map(|()| Outcome::Answered)
        .map_err(CliError::writing)
}
