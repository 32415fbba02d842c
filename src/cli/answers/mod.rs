//! What was answered before: `batchfit answers`, `fit --stored`, `fit --again`, and what came of it.

mod list;
pub(super) mod outcomes;
mod stored;

use super::arguments::DatabaseFlags;
use super::error::CliError;
use super::storage::with_database;
use crate::limits::shorten;
use crate::store::{Db, StoreError};

pub(super) use list::list;
pub(super) use stored::{again, stored};

/// Asks the database that answers are kept in.
fn query<T>(
    kept: &DatabaseFlags,
    question: impl AsyncFnOnce(&Db) -> Result<T, StoreError>,
) -> Result<T, CliError> {
    let found = with_database(kept, question)?;
    found.map_err(|error| CliError::Broken(error.into()))
}

/// There is no answer of this id, which this flag or argument gave.
fn unknown(flag: &str, id: &str) -> CliError {
    let problem = format!(
        "no answer {:?} is stored here; `batchfit answers` lists those that are, and --database names the database",
        shorten(id)
    );
    CliError::flag(flag, problem)
}
