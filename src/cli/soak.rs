//! `batchfit soak`.

use super::arguments::Soak;
use super::error::CliError;
use super::{Outcome, question};
use crate::cli::terminal::output;
use crate::jobs::soak;
use crate::limits::Cancel;
use crate::probe::Verdict;
use crate::report;

pub(super) fn run(arguments: &Soak) -> Result<Outcome, CliError> {
    if arguments.question.gives("target_batch") {
        let problem = "a soak is of one batch, which --batch says; `batchfit fit --target N --soak` finds the batch that lasts and its steps";
        return Err(CliError::flag("--target", problem));
    }
    let course = question::course(&arguments.course)?;
    let (request, origin) = question::read_and(&arguments.question, None, course)?.only();
    let soaked = soak(&request, arguments.batch.batch, &Cancel::NEVER)
        .map_err(|error| origin.blame(CliError::Engine(error)))?;
    output::answer(arguments.json, &soaked, || {
        report::soak(&soaked, &output::style(false))
    })?;
    Ok(match soaked.report.verdict {
        Verdict::Fits => Outcome::Answered,
        Verdict::FitsWithRetries | Verdict::OutOfMemory | Verdict::Failed => Outcome::NothingFits,
    })
}
