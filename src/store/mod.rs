//! What is remembered: fits, probes, recommendations, searches and uploads, in one SQLite file.
//!
//! The only place with SQL. One function for each question, named after it; each is one statement or
//! one transaction, so that any number of tasks, and other processes, may ask at the same time. One server
//! at a time works on the queue: see [`Ownership`].
//! Times come in as arguments. See `migrations/` for the tables, which may be read with `sqlite3`.

mod counted;
mod fit;
mod id;
#[cfg(test)]
mod migrated;
mod ownership;
mod probe;
mod recommendation;
mod search;
mod text;
mod time;
mod upload;

use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};

pub use counted::{Counted, Health};
pub use fit::{
    Claimed, Enqueued, Fit, FitFilter, FitState, FitSummary, NewFit, ParallelSimulated, Reuse,
    SIMULATED_LANE,
};
pub use id::Ids;
pub use ownership::Ownership;
pub use probe::Probe;
pub use recommendation::{Facet, RecommendationFilter, RecommendationPage, StoredRecommendation};
use recommendation::{Readers, Shelf};
pub use search::{AnsweredSearch, Noted, SearchAnswer, SearchBounds, SearchState, StoredSearch};
pub use text::JsonText;
pub use time::Time;
pub use upload::{Dropped, Kept, NewUpload, StoredUpload, UploadSpace};

/// How long a statement waits for another process that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a task waits for a connection. Statements take milliseconds, so this means trouble.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections of a server. One writes at a time, and the others read meanwhile.
const MOST_CONNECTIONS: u32 = 4;

/// SQLite's `SQLITE_TOOBIG`: a value is longer than a row may be.
const TOO_BIG: &str = "18";

/// The open database. Cloning it is cheap and shares the connections.
#[derive(Debug, Clone)]
pub struct Db {
    pool: SqlitePool,
    readers: Readers,
    shelf: Shelf,
}

/// Why the database did not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file could not be opened or created.
    #[error("could not open the database {database}")]
    Open {
        /// As the user gave it.
        database: String,
        /// SQLite's reason.
        source: sqlx::Error,
    },
    /// Another server uses the file.
    #[error(
        "another batchfit server uses the database {database}; stop it, or give this one a file of its own with \
         --database"
    )]
    InUse {
        /// As the user gave it.
        database: String,
    },
    /// The file that is locked to own the database could not be.
    #[error("could not lock {} beside the database", lock.display())]
    Lock {
        /// The file.
        lock: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The tables could not be brought up to date.
    #[error("could not migrate the database {database}")]
    Migrate {
        /// As the user gave it.
        database: String,
        /// Which migration, and why.
        source: sqlx::migrate::MigrateError,
    },
    /// A statement failed.
    #[error("could not {question}")]
    Query {
        /// What was being asked, as a verb with its object.
        question: &'static str,
        /// SQLite's reason.
        source: sqlx::Error,
    },
    /// What a row says cannot be read: somebody else wrote it, or another version.
    #[error("could not read {what}: {problem}")]
    Unreadable {
        /// What was being read.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A number does not fit SQLite's signed integers.
    #[error("{value} is too large for the column {column}")]
    TooLarge {
        /// The column.
        column: &'static str,
        /// The number.
        value: u64,
    },
}

impl StoreError {
    /// Whether the tables do not take these values, now or ever: trying again is of no use.
    pub fn is_refusal(&self) -> bool {
        match self {
            StoreError::Query {
                source: sqlx::Error::Database(error),
                ..
            } => {
                error.is_check_violation()
                    || error.is_unique_violation()
                    || error.is_foreign_key_violation()
                    || error.code().as_deref() == Some(TOO_BIG)
            }
            StoreError::TooLarge { .. } => true,
            StoreError::Query { .. }
            | StoreError::Open { .. }
            | StoreError::InUse { .. }
            | StoreError::Lock { .. }
            | StoreError::Unreadable { .. }
            | StoreError::Migrate { .. } => false,
        }
    }
}

impl Db {
    /// Opens the file behind `database` (a path, or a `sqlite:` URL), creates it when it is missing,
    /// and brings its tables up to date.
    pub async fn open(database: &str) -> Result<Db, StoreError> {
        Db::open_with(database, MOST_CONNECTIONS).await
    }

    /// The same for whoever asks one thing after the other: each further connection costs a millisecond or two.
    pub async fn open_for_one(database: &str) -> Result<Db, StoreError> {
        Db::open_with(database, 1).await
    }

    async fn open_with(database: &str, most_connections: u32) -> Result<Db, StoreError> {
        let failed = |source| StoreError::Open {
            database: database.to_owned(),
            source,
        };
        let options = options(database)
            .map_err(failed)?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT);
        // Each connection to `:memory:` is a database of its own, gone when it closes.
        let pool = if is_in_memory(database) {
            SqlitePoolOptions::new()
                .max_connections(1)
                .idle_timeout(None)
                .max_lifetime(None)
        } else {
            SqlitePoolOptions::new().max_connections(most_connections)
        };
        let pool = pool
            .acquire_timeout(ACQUIRE_TIMEOUT)
            // A file does not hang up. To ask first would take as long as to ask.
            .test_before_acquire(false)
            .connect_with(options)
            .await
            .map_err(failed)?;
        sqlx::migrate!()
            .run(&pool)
            .await
            .map_err(|source| StoreError::Migrate {
                database: database.to_owned(),
                source,
            })?;
        let db = Db {
            pool,
            readers: Readers::default(),
            shelf: Shelf::default(),
        };
        db.write_recommendation_documents().await?;
        Ok(db)
    }

    /// Writes a row that nobody reads. Fails where nothing can be stored: the disk is full, another process
    /// keeps the file locked.
    pub async fn write_readiness(&self, now: Time) -> Result<(), StoreError> {
        sqlx::query!("UPDATE readiness SET checked_at = ?1", now)
            .execute(&self.pool)
            .await
            .map(|_| ())
            .map_err(asking("write to the database"))
    }

    /// Waits for the statements under way and closes the file.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// Which file `database` names: a path, or a `sqlite:` URL.
fn options(database: &str) -> Result<SqliteConnectOptions, sqlx::Error> {
    if database.starts_with("sqlite:") {
        SqliteConnectOptions::from_str(database)
    } else {
        Ok(SqliteConnectOptions::new().filename(database))
    }
}

/// Whether there is no file at all.
fn is_in_memory(database: &str) -> bool {
    database.contains(":memory:") || database.contains("mode=memory")
}

/// Turns a failed statement into an error that says what it was for.
fn asking(question: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| StoreError::Query { question, source }
}

/// A count or a size as SQLite stores it.
fn integer(column: &'static str, value: u64) -> Result<i64, StoreError> {
    i64::try_from(value).map_err(|_| StoreError::TooLarge { column, value })
}
