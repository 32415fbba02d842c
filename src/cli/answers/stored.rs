//! `batchfit fit --stored` and `--again`: a question that was answered before.

use super::{query, unknown};
use crate::cli::Outcome;
use crate::cli::arguments::{DatabaseFlags, Fit, Format};
use crate::cli::error::CliError;
use crate::cli::storage::with_database;
use crate::cli::terminal::output;
use crate::jobs::{self, FitEngine, JobError};
use crate::model::{Request, RequestDocument};
use crate::report;

/// Shows the stored answer to a question, or the nearest one. Nothing is computed.
pub(in crate::cli) fn stored(
    arguments: &Fit,
    engine: &FitEngine,
    questions: Vec<Request>,
) -> Result<Outcome, CliError> {
    let Ok([request]) = <[Request; 1]>::try_from(questions) else {
        let problem = "one stored answer is looked for at a time; give one length";
        return Err(CliError::flag("--seq-len", problem));
    };
    let format = arguments.output.format();
    if !matches!(format, Format::Text | Format::Json) {
        let problem = format!("{} is for an answer that is computed", format.flag());
        return Err(CliError::flag("--stored", problem));
    }
    let near = with_database(&arguments.kept, async |db| {
        jobs::nearest(db, engine, request).await
    })?;
    let near = near.map_err(|error| match error {
        JobError::Engine(error) => CliError::Engine(error),
        other => CliError::Broken(other.into()),
    })?;
    let Some(near) = near else {
        let problem = "no answer for this model is stored here; without --stored one is computed";
        return Err(CliError::flag("--stored", problem));
    };
    output::answer(format == Format::Json, &near, || {
        report::near(&near, &output::style(false))
    })
}

/// The question that the answer of this id is to.
pub(in crate::cli) fn again(kept: &DatabaseFlags, id: &str) -> Result<RequestDocument, CliError> {
    let text = query(kept, async |db| jobs::question_of(db, id).await)?;
    let text = text.ok_or_else(|| unknown("--again", id))?;
    RequestDocument::read(text.into_shared())
        .map_err(|invalid| CliError::named(&"--again", invalid))
}
