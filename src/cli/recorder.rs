//! The Python process that records steps.

use super::arguments::{ModuleFlags, RecorderFlags};
use super::error::CliError;
use super::python::interpreter;
use crate::worker::RecorderCommand;

/// What records, if an interpreter or a module is named. A module is trained by the interpreter that `batchfit export`
/// takes, unless one is named.
pub(super) fn command(
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
pub(super) fn of_graphs(flags: &RecorderFlags) -> Option<RecorderCommand> {
    flags.recorder.clone().map(|python| RecorderCommand {
        python,
        module: None,
    })
}
