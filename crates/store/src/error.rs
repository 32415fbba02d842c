//! Why the database did not answer.

use std::io;
use std::path::PathBuf;

use sqlx::postgres::PgDatabaseError;

use crate::engine::{self, is_postgres};

/// PostgreSQL's `untranslatable_character` and `character_not_in_repertoire`: its texts cannot have a NUL.
const NOT_TEXT: [&str; 2] = ["22P05", "22021"];

/// SQLite's `SQLITE_TOOBIG`: a value is longer than a row may be.
const TOO_BIG: &str = "18";

/// Why the database did not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file could not be opened or created.
    #[error("could not open the database {database}{}", because(database, source))]
    Open {
        /// As the user gave it.
        database: String,
        /// SQLite's reason.
        source: sqlx::Error,
    },
    /// Another server uses the file, named as the user gave it.
    #[error(
        "another batchfit server uses the database {0}; stop it, or give this one a file of its own with \
         --database"
    )]
    InUse(String),
    /// The file that is locked to own the database could not be.
    #[error("could not lock {} beside the database", lock.display())]
    Lock {
        /// The file.
        lock: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The tables could not be brought up to date.
    #[error(
        "could not migrate the database {database}{}",
        of_a_later_version(database, source)
    )]
    Migrate {
        /// As the user gave it.
        database: String,
        /// Which migration, and why.
        source: sqlx::migrate::MigrateError,
    },
    /// The file, which was here, was moved or deleted while it was open.
    #[error(
        "the file of the database, {}, was moved or deleted while it was in use; put it back where it was, or stop the server \
         and start it again, which makes a new one", .0.display()
    )]
    Gone(PathBuf),
    /// The server's version is no longer maintained.
    #[error("the database {database} is PostgreSQL {version}; batchfit needs {oldest} or newer")]
    TooOld {
        /// As the user gave it, without a password.
        database: String,
        /// The server's version.
        version: String,
        /// The oldest that will do.
        oldest: i32,
    },
    /// PostgreSQL has a tool of its own for that.
    #[error("`batchfit db {what}` is for files of SQLite: {instead}")]
    NotHere {
        /// The command.
        what: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// A copy would be mixed with what is there.
    #[error(
        "there are {rows} rows of {table} already where the copy was to go; a copy needs a database of its own"
    )]
    NotEmpty {
        /// The first table that has rows.
        table: &'static str,
        /// How many.
        rows: i64,
    },
    /// Source and target are one file, named as the user gave the target.
    #[error("{0} would be copied onto itself; a copy needs a database of its own")]
    OntoItself(String),
    /// There is no database to look after, named as the user gave it.
    #[error("there is no database {0}; --database names another one")]
    Missing(String),
    /// A copy could not be made.
    #[error("could not write the copy {}", file.display())]
    Backup {
        /// Where to.
        file: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A statement failed.
    #[error("could not {question}")]
    Query {
        /// What was being asked, as a verb with its object.
        question: &'static str,
        /// SQLite's reason.
        source: sqlx::Error,
    },
    /// What a row says cannot be read: another program wrote it, or another version.
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

/// What to do about a file that cannot be opened.
fn because(database: &str, source: &sqlx::Error) -> &'static str {
    if is_postgres(database) {
        return engine::why_not(source).unwrap_or_default();
    }
    match Fault::of(source) {
        Fault::Damaged => {
            ": the file is no database, or is damaged; `batchfit db check` says more, and --database names another one"
        }
        Fault::Locked => ": another process keeps it locked; let that one end",
        Fault::Full => ": the disk is full",
        Fault::ReadOnly => ": it may not be written",
        Fault::Gone | Fault::Unreachable | Fault::Other => "",
    }
}

fn of_a_later_version(database: &str, source: &sqlx::migrate::MigrateError) -> &'static str {
    match source {
        sqlx::migrate::MigrateError::VersionMissing(_) => {
            ": a later version of batchfit has written it, and this one leaves it alone; start that version, or name another \
             file with --database"
        }
        sqlx::migrate::MigrateError::Execute(source)
        | sqlx::migrate::MigrateError::ExecuteMigration(source, _) => because(database, source),
        _others => "",
    }
}

/// What keeps a database from answering, as far as an administrator can mend it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// There is no room for what was to be written.
    Full,
    /// Another process keeps it locked.
    Locked,
    /// It may not be written.
    ReadOnly,
    /// Its file was moved or deleted.
    Gone,
    /// What is in the file is no database any more, or not all of it.
    Damaged,
    /// Its server cannot be reached.
    Unreachable,
    /// Anything else.
    Other,
}

impl Fault {
    pub(crate) fn of(source: &sqlx::Error) -> Fault {
        let of_server = match source {
            // A file that cannot be read or written is not another machine.
            sqlx::Error::Database(error)
                if error.try_downcast_ref::<PgDatabaseError>().is_none() =>
            {
                None
            }
            sqlx::Error::Io(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                Some(Fault::Locked)
            }
            _others => engine::fault(source),
        };
        if let Some(fault) = of_server {
            return fault;
        }
        let code = match source {
            sqlx::Error::Database(error) => error.code(),
            _not_of_sqlite => None,
        };
        let code: Option<u32> = code.and_then(|code| code.parse().ok());
        // `SQLITE_IOERR_SHMSIZE`: no room for the file beside it that readers share.
        if code == Some(4874) {
            return Fault::Full;
        }
        // The low byte is the primary result code: https://sqlite.org/rescode.html
        match code.map(|code| code & 0xff) {
            Some(5 | 6) => Fault::Locked,
            Some(8) => Fault::ReadOnly,
            Some(11 | 26) => Fault::Damaged,
            Some(13) => Fault::Full,
            _ => Fault::Other,
        }
    }
}

impl StoreError {
    /// What kind of failure it is.
    pub fn fault(&self) -> Fault {
        let source = match self {
            StoreError::Gone(_) => return Fault::Gone,
            StoreError::Query { source, .. } | StoreError::Open { source, .. } => source,
            _others => return Fault::Other,
        };
        Fault::of(source)
    }

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
                    || error.code().is_some_and(|code| NOT_TEXT.contains(&&*code))
            }
            StoreError::TooLarge { .. } => true,
            _others => false,
        }
    }
}
