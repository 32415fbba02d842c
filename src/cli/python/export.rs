//! `batchfit export`, which is `python -m batchfit.export`.

use std::path::Path;
use std::process::Command;

use super::super::arguments::{Arguments, Export};
use super::super::error::CliError;
use super::super::{Outcome, output};
use super::{interpreter, without_python};

/// The module that exports; see `clients/python/src/batchfit/export/__main__.py`.
const MODULE: &str = "batchfit.export";

pub(in crate::cli) fn run(arguments: &Export) -> Result<Outcome, CliError> {
    let (named, passed_on) = without_python(&arguments.arguments);
    let named = named.as_ref().or(arguments.python.as_ref());
    let python = match interpreter(named.map(AsRef::as_ref)) {
        Ok(python) => python,
        // Help is an answer everywhere; this one says what is missing.
        Err(_) if passed_on.iter().any(|one| one == "--help" || one == "-h") => {
            let help = Arguments::help_of("export");
            output::text(&help)?;
            return Ok(Outcome::Answered);
        }
        Err(trouble) => return Err(trouble),
    };
    let mut command = Command::new(&python);
    command.args(["-m", MODULE]).args(passed_on);
    become_it(command, &python)
}

/// Runs a command in place of this process, so that its signals and its exit code are ours.
#[cfg(unix)]
fn become_it(mut command: Command, python: &Path) -> Result<Outcome, CliError> {
    use std::os::unix::process::CommandExt as _;

    // It only comes back when it fails.
    Err(not_run(python, command.exec()))
}

/// Runs a command, and ends with its exit code.
#[cfg(not(unix))]
fn become_it(mut command: Command, python: &Path) -> Result<Outcome, CliError> {
    let status = command.status().map_err(|error| not_run(python, error))?;
    std::process::exit(status.code().unwrap_or(1))
}

fn not_run(python: &Path, error: std::io::Error) -> CliError {
    let said = anyhow::Error::new(error).context(format!("could not run {}", python.display()));
    CliError::Broken(said)
}
