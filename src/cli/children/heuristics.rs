//! `batchfit heuristics`: asks cuDNN about cards that are not there, for a parent process.

use std::io::{self, BufReader};

use super::worker::watched_stdin;
use crate::cli::Outcome;
use crate::cli::trouble::Trouble;
use crate::worker;

pub(in crate::cli) fn run() -> Result<Outcome, Trouble> {
    let mut input = BufReader::new(watched_stdin().map_err(Trouble::writing)?);
    worker::run_heuristics(&mut input, io::stdout())
        .map(|()| Outcome::Answered)
        .map_err(Trouble::writing)
}
