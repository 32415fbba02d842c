//! What is remembered: fits, probes, recommendations, searches, uploads and runs, in one SQLite file, or in PostgreSQL where several servers
//! work on one queue.
//!
//! The only place with SQL. One function for each question, named after it; each is one statement or
//! one transaction, so that any number of tasks, and other processes, may ask at the same time. One server
//! at a time works on the queue of a file: see [`Ownership`]. How one text asks both engines: Note [One text] in `engine`.
//! Times come in as arguments. See `migrations/` for the tables, which may be read with `sqlite3`.

mod agent;
mod database;
mod engine;
mod error;
mod fit;
mod id;
mod key;
mod outcome;
mod probe;
mod recommendation;
mod request;
#[cfg(test)]
mod scenarios;
mod search;
mod text;
mod time;
mod upload;
mod virtual_run;

use std::env;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::SqlSafeStr as _;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};

pub use agent::{AGENT_LANE, Assignment, Registered, StoredAgent, holder};
pub use database::copy::CopiedRows;
pub use database::maintenance::{Checked, Pruned};
pub use database::ownership::Ownership;
use database::ownership::{FileIdentity, refuse_other_names, refuse_planted};
pub use database::row_counts::{Health, RowCounts};
pub use engine::{Listener, Payload, is_postgres, shown};
pub use error::{Fault, StoreError};
pub use fit::{
    Attempt, Claimed, Enqueued, Fit, FitAnswer, FitFilter, FitState, FitSummary, FitTerms,
    IdempotencyKey, IdempotentMatch, Lease, LeaseOwner, LeasedFit, NewFit, ParallelSimulated,
    Reuse, SIMULATED_LANE, UnfinishedFit, question_of,
};
pub use id::{Ids, chance};
pub use key::{ApiKey, NotAKeyName, Scope};
use outcome::Lessons;
pub use outcome::{
    Learning, LearntCount, LearntOn, NewOutcome, OutcomeKept, StoredLearnt, StoredOutcome,
};
pub use probe::Probe;
use recommendation::ResultIndex;
pub use recommendation::minor;
pub use recommendation::{
    FilterColumn, Nearest, NearestQuery, Outdated, RecommendationFilter, RecommendationPage, Stale,
    StoredHeadroom, StoredRecommendation, is_simulation,
};
pub use search::{
    AnsweredSearch, ObservationStatus, SearchAnswer, SearchBounds, SearchState, StoredSearch,
};
pub use text::JsonText;
pub use time::Time;
pub use upload::{Dropped, NewUpload, StoredUpload, UploadSpace, UploadStatus};
pub use virtual_run::VirtualRun;

use database::maintenance::make_private;
use engine::{Pool, open_postgres, query};

/// How long a statement waits for another process that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a task waits for a connection. Statements take milliseconds, so this means trouble.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a task waits for a connection to a server, which may have to be made, again and again, where that is away.
const ACQUIRE_TIMEOUT_OF_SERVER: Duration = Duration::from_secs(5);

/// Connections of a server. One writes at a time, and the others read meanwhile.
const MOST_CONNECTIONS: u32 = 4;

/// Connections of a server to PostgreSQL, where several can write, and one listens.
const MOST_CONNECTIONS_TO_SERVER: u32 = 9;

/// The schema in a file.
static SQLITE: LazyLock<Migrator> = LazyLock::new(|| migrator(""));

/// The schema in PostgreSQL.
static POSTGRES: LazyLock<Migrator> = LazyLock::new(|| migrator("postgres/"));

/// Those in this folder of `migrations`, each called `NUMBER_what_it_does.sql`.
fn migrator(folder: &str) -> Migrator {
    let files = migrations::FILES.iter().filter_map(|(path, sql)| {
        let (number, name) = path
            .strip_prefix(folder)?
            .strip_suffix(".sql")?
            .split_once('_')?;
        let name = name.replace('_', " ").into();
        let sql = sql.into_sql_str();
        Some(Migration::new(
            number.parse().ok()?,
            name,
            MigrationType::Simple,
            sql,
            false,
        ))
    });
    Migrator::with_migrations(files.collect())
}

mod migrations {
    include!(concat!(env!("OUT_DIR"), "/migrations.rs"));
}

/// The open database. Cloning it is cheap and shares the connections.
#[derive(Debug, Clone)]
pub struct Db {
    pool: Pool,
    /// The file; `None` in memory and on a server.
    place: Option<Arc<FileIdentity>>,
    shelf: ResultIndex,
    lessons: Lessons,
    ahead: time::Ahead,
}

impl Db {
    /// Opens the file behind `database` (a path, or a `sqlite:` URL), creates it when it is missing,
    /// and brings its tables up to date; or the database of a `postgres:` URL, which is there.
    pub async fn open(database: &str) -> Result<Db, StoreError> {
        Db::open_with(database, MOST_CONNECTIONS).await
    }

    /// The same for callers that ask one thing after the other: each further connection costs a millisecond or two.
    pub async fn open_for_one(database: &str) -> Result<Db, StoreError> {
        Db::open_with(database, 1).await
    }

    /// The same where there is a file already.
    pub async fn open_existing(database: &str) -> Result<Db, StoreError> {
        if is_postgres(database) {
            return Db::open_with(database, 1).await;
        }
        existing(database)?;
        Db::open_with(database, 1).await
    }

    /// Where temporary files are put: beside the database, which has a disk of its own, or where it has none, where the
    /// system has them.
    pub fn folder(&self) -> PathBuf {
        let place = self.place.as_ref().and_then(|place| place.path().parent());
        place.map_or_else(env::temp_dir, Path::to_owned)
    }

    /// Fails where the file is not there any more: what is written to it then is lost.
    fn in_place(&self) -> Result<(), StoreError> {
        let missing = self.place.as_ref().and_then(|place| place.missing());
        missing.map_or(Ok(()), |path| Err(StoreError::Gone(path)))
    }

    async fn open_with(database: &str, most_connections: u32) -> Result<Db, StoreError> {
        if is_postgres(database) {
            return Db::open_server(database, most_connections).await;
        }
        let failed = |source| StoreError::Open {
            database: database.to_owned(),
            source,
        };
        let options = options(database)
            .map_err(failed)?
            // Made below: a connection that finds it gone makes no other, which would not be the same database.
            .create_if_missing(is_in_memory(database))
            // The kernel keeps what a killed process wrote, so a commit need not wait for the disk.
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT);
        let file = options.get_filename().to_owned();
        let is_file = !is_in_memory(database);
        if is_file {
            let ours = make_private(&file).and_then(|()| refuse_other_names(&file));
            ours.map_err(|source| failed(sqlx::Error::Io(source)))?;
        }
        // One whose transaction a full disk ended counts it as open still, and begins no other.
        let pool = |most_connections| {
            SqlitePoolOptions::new()
                .max_connections(most_connections)
                .after_release(|connection, _| {
                    Box::pin(async move {
                        let is_free = !connection.is_in_transaction();
                        // What was dropped is undone first.
                        Ok(is_free
                            || connection.ping().await.is_ok() && !connection.is_in_transaction())
                    })
                })
                .acquire_timeout(ACQUIRE_TIMEOUT)
                // A file does not hang up. To ask first would take as long as to ask.
                .test_before_acquire(false)
        };
        // Each connection to `:memory:` is a database of its own, gone when it closes.
        let writing = if is_file {
            pool(1)
        } else {
            pool(1).idle_timeout(None).max_lifetime(None)
        };
        let writing = writing.connect_with(options.clone()).await;
        let writing = writing.map_err(failed)?;
        let migrating = |source| StoreError::Migrate {
            database: database.to_owned(),
            source,
        };
        // WAL is set in the file itself: one of a later version is left as it is.
        refuse_later(&writing).await.map_err(migrating)?;
        sqlx::query("PRAGMA journal_mode = WAL")
            .execute(&writing)
            .await
            .map_err(failed)?;
        let reading = if is_file && most_connections > 1 {
            let reading = pool(most_connections).connect_with(options).await;
            reading.map_err(failed)?
        } else {
            writing.clone()
        };
        SQLITE.run(&writing).await.map_err(migrating)?;
        let place = is_file.then(|| FileIdentity::of(&file)).transpose();
        let place = place.map_err(|source| failed(sqlx::Error::Io(source)))?;
        Ok(Db::of(Pool::Sqlite(reading, writing), place))
    }

    fn of(pool: Pool, place: Option<FileIdentity>) -> Db {
        Db {
            pool,
            place: place.map(Arc::new),
            shelf: ResultIndex::default(),
            lessons: Lessons::default(),
            ahead: time::Ahead::default(),
        }
    }

    async fn open_server(database: &str, most_connections: u32) -> Result<Db, StoreError> {
        let most_connections = match most_connections {
            MOST_CONNECTIONS => MOST_CONNECTIONS_TO_SERVER,
            fewer => fewer,
        };
        let pool = open_postgres(database, most_connections).await?;
        POSTGRES
            .run(&pool)
            .await
            .map_err(|source| StoreError::Migrate {
                database: shown(database),
                source,
            })?;
        let db = Db::of(Pool::Postgres(pool), None);
        db.look_at_clock().await?;
        Ok(db)
    }

    /// Writes a row to test that it can. Fails where nothing can be stored: the disk is full, another process
    /// keeps the file locked.
    pub async fn write_readiness(&self, now: Time) -> Result<(), StoreError> {
        self.in_place()?;
        query!("write to the database": execute, self.pool.writing(),
            "UPDATE readiness SET checked_at = $1", now)?;
        if let (Some(place), Pool::Sqlite(_, pool)) = (&self.place, &self.pool)
            && place.loses_wal()
        {
            // What it has would be gone with the process.
            let _ = sqlx::query("PRAGMA wal_checkpoint").execute(pool).await;
        }
        self.in_place()
    }

    /// The last moment that was written by [`Db::write_readiness`]; `None` where it never was.
    pub async fn last_noted(&self) -> Result<Option<Time>, StoreError> {
        let noted: Time = query!("read when the database was last written": fetch_one scalar, self.pool.on(),
                "SELECT checked_at FROM readiness")?;
        Ok(Some(noted).filter(|noted| noted.0 > 0))
    }

    /// Waits for the statements under way and closes the file.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// Fails where a later version has migrated the tables.
async fn refuse_later(pool: &sqlx::SqlitePool) -> Result<(), MigrateError> {
    let applied = sqlx::query_scalar::<_, i64>("SELECT version FROM _sqlx_migrations")
        .fetch_all(pool)
        .await
        // No table yet, or damage that the migration names.
        .unwrap_or_default();
    let mut applied = applied.into_iter();
    let later = applied.find(|version| !SQLITE.version_exists(*version));
    later.map_or(Ok(()), |later| Err(MigrateError::VersionMissing(later)))
}

/// Which file `database` names: a path, or a `sqlite:` URL. One that another user may have put there is refused.
fn options(database: &str) -> Result<SqliteConnectOptions, sqlx::Error> {
    let options = if database.starts_with("sqlite:") {
        SqliteConnectOptions::from_str(database)?
    } else {
        SqliteConnectOptions::new().filename(database)
    };
    if !is_in_memory(database) {
        refuse_planted(options.get_filename()).map_err(sqlx::Error::Io)?;
    }
    Ok(options)
}

/// The options of a file of SQLite that is there. A device or a folder is no database.
fn existing(database: &str) -> Result<SqliteConnectOptions, StoreError> {
    let options = options(database).map_err(|source| StoreError::Open {
        database: database.to_owned(),
        source,
    })?;
    if options.get_filename().is_file() {
        return Ok(options);
    }
    Err(StoreError::Missing(database.to_owned()))
}

/// Whether there is no file at all.
fn is_in_memory(database: &str) -> bool {
    database.contains(":memory:") || database.contains("mode=memory")
}

/// Turns a failed statement into an error that says what it was for.
fn with_context(question: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| StoreError::Query { question, source }
}

/// A count or a size as SQLite stores it.
fn integer(column: &'static str, value: u64) -> Result<i64, StoreError> {
    i64::try_from(value).map_err(|_| StoreError::TooLarge { column, value })
}

use batchfit_fit::model;
use batchfit_step::{limits, units};
