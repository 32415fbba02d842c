//! Keeps what a search came to where it can be kept.

use crate::cli::arguments::DatabaseFlags;
use crate::cli::storage;
use crate::cli::terminal::output;
use crate::jobs::{SearchDocument, record_search};
use crate::store::Db;

/// Stores a search. Its answer is printed even where that cannot be done.
pub(super) fn store(kept: &DatabaseFlags, document: &SearchDocument) {
    if let Err(error) = stored(kept, document) {
        output::warning(&format!("the search is not stored: {error:#}"));
    }
}

fn stored(kept: &DatabaseFlags, document: &SearchDocument) -> anyhow::Result<()> {
    let database = storage::database(kept)?;
    let runtime = storage::runtime()?;
    runtime.block_on(async {
        let db = Db::open_for_one(&database).await?;
        let recorded = record_search(&db, document).await;
        db.close().await;
        Ok(recorded?)
    })
}
