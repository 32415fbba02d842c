//! `batchfit soak`.

use std::sync::Arc;

use super::arguments::Soak;
use super::trouble::Trouble;
use super::{Outcome, output, question, style};
use crate::jobs::soak;
use crate::probe::Verdict;
use crate::report;

pub(super) fn run(arguments: &Soak) -> Result<Outcome, Trouble> {
    let course = question::course(&arguments.course);
    let (request, origin) = question::read_and(&arguments.question, course)?.only();
    let soaked = soak(&request, arguments.batch.batch, &Arc::default())
        .map_err(|error| origin.blame(Trouble::Engine(error)))?;
    if arguments.json {
        output::json(&soaked)?;
    } else {
        output::text(&report::soak(&soaked, &style::stdout(false)))?;
    }
    Ok(match soaked.report.verdict {
        Verdict::Fits => Outcome::Answered,
        Verdict::FitsWithRetries | Verdict::OutOfMemory | Verdict::Failed => Outcome::NothingFits,
    })
}
