//! `batchfit probe`.

mod explain;

use std::fs;

use super::arguments::Probe;
use super::error::CliError;
use super::{Outcome, engine, question, recorder_of_graphs};
use crate::cli::terminal::output;
use crate::jobs::Engine as _;
use crate::limits::Cancel;
use crate::probe::{Detail, Verdict};
use crate::report;

pub(super) fn run(arguments: &Probe) -> Result<Outcome, CliError> {
    let recorder = recorder_of_graphs(&arguments.recorder);
    let asked = question::read(&arguments.question)?.with_recorder(recorder.is_some());
    let (request, origin) = asked.of_one_length()?;
    let (batch, json) = (arguments.batch.batch, arguments.output.json);
    if arguments.output.explain {
        return explain::run(&request, batch, json).map_err(|trouble| origin.blame(trouble));
    }
    let engine = engine(arguments.patience.deadlines())?.with_recorder(recorder);
    let detail = match arguments.output.events {
        None => Detail::Full,
        Some(_) => Detail::Events,
    };
    let report = engine.probe(&request, batch, detail, &Cancel::NEVER);
    let mut report = report.map_err(|error| origin.blame(CliError::Engine(error)))?;
    if let (Some(path), Some(events)) = (&arguments.output.events, report.events.take()) {
        output::json_file(path, &events)?;
    }
    if let Some(path) = &arguments.output.svg {
        let title = format!("{} on {}", request.model_name(), request.device);
        let svg = report::probe_svg(&title, &report);
        fs::write(path, svg).map_err(CliError::unwritable(path))?;
    }
    if json {
        output::json(&report)?;
    } else {
        output::text(&report::probe(&report, &output::style(false)))?;
    }
    Ok(match report.verdict {
        Verdict::OutOfMemory => Outcome::NothingFits,
        Verdict::Fits | Verdict::FitsWithRetries => Outcome::Answered,
        Verdict::Failed => Outcome::DeviceTrouble,
    })
}
