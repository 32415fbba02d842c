//! `batchfit record-check`.

use std::path::Path;

use crate::cli::Outcome;
use crate::cli::arguments::RecordCheck;
use crate::cli::error::CliError;
use crate::cli::question::files::read_bytes;
use crate::cli::terminal::output;
use crate::model::RequestError;
use crate::recorded::{Check, Sequence, read};
use crate::replay::Bounds;
use crate::report;

pub(in crate::cli) fn run(arguments: &RecordCheck) -> Result<Outcome, CliError> {
    let batches = &arguments.batches;
    if !batches.is_empty() && batches.len() != arguments.files.len() {
        let problem = format!(
            "{} batches for {} recordings; give one for each, in the order of the files",
            batches.len(),
            arguments.files.len()
        );
        return Err(CliError::flag("--batches", problem));
    }
    let files = arguments.files.iter().enumerate();
    let sequences = files.map(|(index, path)| recording(path, batches.get(index).copied()));
    let sequences = sequences.collect::<Result<Vec<_>, _>>()?;
    let against = arguments.against.as_deref();
    let against = against.map(|path| recording(path, None)).transpose()?;
    let check = Check::of(sequences, against.as_ref())
        .map_err(|error| CliError::Invalid(RequestError::at("", error.to_string())))?;
    output::answer(arguments.json, &check, || {
        report::recordings(&check, &output::style(false))
    })
}

fn recording(path: &Path, batch: Option<u64>) -> Result<Sequence, CliError> {
    read(&read_bytes(path)?, batch, Bounds::default())
        .map_err(|error| CliError::flag(&path.display(), error.to_string()))
}
