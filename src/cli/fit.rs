//! `batchfit fit`.
use super::Outcome;
use super::arguments::Fit;
use super::trouble::Trouble;
pub(super) fn run(_: &Fit) -> Result<Outcome, Trouble> { Ok(Outcome::NothingFits) }
