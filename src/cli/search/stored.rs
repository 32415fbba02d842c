//! Keeps what a search came to where it can be kept.

use crate::cli::arguments::DatabaseFlags;
use crate::cli::storage::with_database;
use crate::cli::terminal::output;
use crate::jobs::{SearchDocument, record_search};

/// Stores a search. Its answer is printed even where that cannot be done.
pub(super) fn store(kept: &DatabaseFlags, document: &SearchDocument) {
    let stored = with_database(kept, async |db| record_search(db, document).await);
    if let Err(error) = stored.and_then(|stored| Ok(stored?)) {
        output::warning(&format!("the search is not stored: {error:#}"));
    }
}
