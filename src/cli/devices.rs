//! `batchfit devices`, and the engine of this process with what records steps for it.

use super::Outcome;
use super::arguments::{Devices, ModuleFlags, RecorderFlags};
use super::error::CliError;
use super::python::interpreter;
use crate::cli::terminal::{output, style};
use crate::jobs::{Engine as _, FitEngine};
use crate::report;
use crate::worker::{Deadlines, RecorderCommand};

pub(super) fn run(arguments: &Devices) -> Result<Outcome, CliError> {
    let devices = engine(Deadlines::default())?.catalogue().devices();
    output::list(arguments.json, &devices, || {
        report::devices(&devices, &style::stdout(false))
    })?;
    Ok(Outcome::Answered)
}

/// The engine of this process, whose workers are this very binary.
pub(super) fn engine(deadlines: Deadlines) -> Result<FitEngine, CliError> {
    let program = std::env::current_exe().map_err(|error| {
        CliError::Broken(anyhow::Error::new(error).context("could not find this program's file"))
    })?;
    Ok(FitEngine::new(program).with_deadlines(deadlines))
}

/// What records, if an interpreter or a module is named. A module is trained by the interpreter that `batchfit export`
/// takes, unless one is named.
pub(super) fn recorder(
    flags: &RecorderFlags,
    module: &ModuleFlags,
) -> Result<Option<RecorderCommand>, CliError> {
    let module = module.named();
    let python = match (&flags.recorder, &module) {
        (Some(python), _) => python.clone(),
        (None, Some(_)) => interpreter(std::env::var_os("BATCHFIT_PYTHON").as_deref())?,
        (None, None) => return Ok(None),
    };
    Ok(Some(RecorderCommand { python, module }))
}

/// What records graphs.
pub(super) fn recorder_of_graphs(flags: &RecorderFlags) -> Option<RecorderCommand> {
    flags.recorder.clone().map(|python| RecorderCommand {
        python,
        module: None,
    })
}
