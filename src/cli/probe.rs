//! `batchfit probe`.

use std::sync::Arc;

use super::arguments::Probe;
use super::devices::engine;
use super::trouble::Trouble;
use super::{Outcome, explain, output, question};
use crate::jobs::Engine as _;
use crate::probe::Verdict;
use crate::report::{self, Style};

pub(super) fn run(arguments: &Probe) -> Result<Outcome, Trouble> {
    let request = question::read(&arguments.question)?;
    if arguments.explain {
        return explain::run(&request, arguments.batch, arguments.json);
    }
    let report = engine(arguments.patience.deadlines())?
        .probe(&request, arguments.batch, &Arc::default())
        .map_err(Trouble::Engine)?;
    if arguments.json {
        output::json(&report)?;
    } else {
        output::text(&report::probe(&report, &Style::default()))?;
    }
    Ok(match report.verdict {
        Verdict::OutOfMemory => Outcome::NothingFits,
        Verdict::Fits | Verdict::FitsWithRetries => Outcome::Answered,
        Verdict::Failed => Outcome::DeviceTrouble,
    })
}
