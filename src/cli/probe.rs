//! `batchfit probe`.
use super::Outcome;
use super::arguments::Probe;
use super::trouble::Trouble;
pub(super) fn run(_: &Probe) -> Result<Outcome, Trouble> { Ok(Outcome::Answered) }
