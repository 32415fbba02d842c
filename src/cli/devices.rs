//! `batchfit devices`.

use super::Outcome;
use super::arguments::Devices;
use super::error::CliError;
use crate::cli::terminal::{output, style};
use crate::jobs::{Engine as _, FitEngine};
use crate::report;
use crate::worker::Deadlines;

pub(super) fn run(arguments: &Devices) -> Result<Outcome, CliError> {
    let devices = engine(Deadlines::default())?.devices();
    if arguments.json {
        output::json(&serde_json::json!({ "items": devices, "next": null }))?;
    } else {
        output::text(&report::devices(&devices, &style::stdout(false)))?;
    }
    Ok(Outcome::Answered)
}

/// The engine of this process, whose workers are this very binary.
pub(super) fn engine(deadlines: Deadlines) -> Result<FitEngine, CliError> {
    let program = std::env::current_exe().map_err(|error| {
        CliError::Broken(anyhow::Error::new(error).context("could not find this program's file"))
    })?;
    Ok(FitEngine::new(program).with_deadlines(deadlines))
}
