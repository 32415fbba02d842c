//! `batchfit soak`.

use std::sync::Arc;

use super::arguments::Soak;
use super::trouble::Trouble;
use super::{Outcome, output, question, style};
use crate::jobs::{MOST_SOAKED_LENGTHS, Schedule, Validation, soak};
use crate::probe::Verdict;
use crate::report;

pub(super) fn run(arguments: &Soak) -> Result<Outcome, Trouble> {
    let asked = question::read_lengths(&arguments.question, MOST_SOAKED_LENGTHS)?;
    let course = &arguments.course;
    let schedule = Schedule {
        batch: arguments.batch.batch,
        steps: course.steps,
        epoch: course.epoch,
        last_batch: course.last_batch,
        validation: course.validation_batch.map(|batch| Validation {
            batch,
            steps: course.validation_steps,
        }),
        seed: course.seed,
    };
    let questions: Vec<_> = asked.questions.into_iter().map(|one| one.request).collect();
    let soaked = soak(&questions, &schedule, &Arc::default())
        .map_err(|error| asked.origin.blame(Trouble::Engine(error)))?;
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
