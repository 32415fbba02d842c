//! What was answered before: `batchfit answers`, `fit --stored`, `fit --again`, and what came of it.

mod list;
pub(super) mod outcomes;
mod stored;

use super::arguments::DatabaseFlags;
use super::error::CliError;
use super::storage;
use crate::limits::shorten;
use crate::store::{Db, StoreError};

pub(super) use list::list;
pub(super) use stored::{again, stored};

/// Asks the database that answers are kept in.
fn with_database<T, E>(
    kept: &DatabaseFlags,
    question: impl AsyncFnOnce(&Db) -> Result<T, E>,
) -> Result<Result<T, E>, CliError> {
    let database = storage::database(kept).map_err(CliError::Broken)?;
    let runtime = storage::runtime().map_err(CliError::Broken)?;
    let opened = runtime.block_on(Db::open_for_one(&database));
    let db = opened.map_err(|error| CliError::Broken(error.into()))?;
    Ok(runtime.block_on(async {
        let found = question(&db).await;
        db.close().await;
        found
    }))
}

/// The same, where nothing but the database can go wrong.
fn query<T>(
    kept: &DatabaseFlags,
    question: impl AsyncFnOnce(&Db) -> Result<T, StoreError>,
) -> Result<T, CliError> {
    with_database(kept, question)?.map_err(|error| CliError::Broken(error.into()))
}

/// There is no answer of this id, which this flag or argument gave.
fn unknown(flag: &str, id: &str) -> CliError {
    let problem = format!(
        "no answer {:?} is stored here; `batchfit answers` lists those that are, and --database names the database",
        shorten(id)
    );
    CliError::flag(flag, problem)
}
