//! The two engines, SQLite and PostgreSQL, and how one text asks both.
//!
//! # Note [One text]
//!
//! Queries are written once, and a test prepares each against the migrations of SQLite (`texts`; `tests/service/postgres.sh` runs them
//! on PostgreSQL). What is checked when the code compiles, sqlx's `query!`, needs both drivers inside the compiler: a minute of each
//! build. PostgreSQL gets SQLite's `rowid` as the identity column `number`, and locks the rows `waiting` where a text says `/* LOCKED */`, by [`for_postgres`]. So a text stays within what both understand: `CASE` and not `max(a, b)`, `CAST(sum(..) AS BIGINT)`, `->` and then `->>` with
//! a single name, flags that are booleans (`NOT uploaded`, not `uploaded = 0`), and a conflict target where something is updated. Where
//! that is not enough there are two texts side by side: `["SQLite", "PostgreSQL"]`.
//!
//! # Note [Alone]
//!
//! In SQLite one transaction writes at a time. Who finds another one at work asks again after 1 to 100 ms, however many came later; so
//! what writes waits for one connection, in turn. In PostgreSQL many do, and two things here depend on that they do not: numbers
//! that are read as "everything after this one" have to appear in their order, and uploads must not go while another row begins to refer to
//! them. So every transaction of several statements begins with [`Pool::begin_alone`] and holds one lock of
//! its schema until its end, and so do the single statements that drop uploads.

mod notifications;
mod open;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod texts;

use std::fmt;
use std::io;

use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Either, PgConnection, PgPool, Postgres, Sqlite, SqlitePool};

use crate::{StoreError, with_context};
pub use notifications::{Listener, Payload};
pub(super) use open::{fault, in_time, open_postgres, why_not};
pub use open::{is_postgres, shown};

/// The open database of either engine. Cloning it shares the connections.
#[derive(Clone)]
pub(super) enum Pool {
    /// A file: what reads, and what writes.
    Sqlite(SqlitePool, SqlitePool),
    /// A server.
    Postgres(PgPool),
}

impl fmt::Debug for Pool {
    /// Without what it takes to connect.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pool::Sqlite(..) => "SQLite",
            Pool::Postgres(_) => "PostgreSQL",
        })
    }
}

impl Pool {
    /// For one statement that reads.
    pub(super) fn on(&self) -> Either<&SqlitePool, &PgPool> {
        match self {
            Pool::Sqlite(reading, _) => Either::Left(reading),
            Pool::Postgres(pool) => Either::Right(pool),
        }
    }

    /// For one statement that writes.
    pub(super) fn writing(&self) -> Either<&SqlitePool, &PgPool> {
        match self {
            Pool::Sqlite(_, writing) => Either::Left(writing),
            Pool::Postgres(pool) => Either::Right(pool),
        }
    }

    /// Begins a transaction that is the only one of its kind: see Note [Alone]. An error says what it was for.
    pub(super) async fn begin_alone(&self, what: &'static str) -> Result<Transaction, StoreError> {
        let begun = match self {
            Pool::Sqlite(_, writing) => {
                let transaction = writing.begin_with("BEGIN IMMEDIATE").await;
                transaction.map(Transaction::Sqlite).map_err(of_file)
            }
            Pool::Postgres(pool) => in_time(begin_alone(pool)).await,
        };
        begun.map_err(with_context(what))
    }

    pub(super) async fn close(&self) {
        match self {
            Pool::Sqlite(reading, writing) => {
                reading.close().await;
                writing.close().await;
            }
            Pool::Postgres(pool) => pool.close().await,
        }
    }
}

async fn begin_alone(pool: &PgPool) -> Result<Transaction, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    sqlx::query(ALONE).execute(&mut *transaction).await?;
    Ok(Transaction::Postgres(transaction))
}

/// Waits for, and takes, the lock of this schema's writers until the transaction ends.
const ALONE: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended('batchfit ' || current_schema(), 0))";

/// A transaction, undone when it is dropped.
pub(super) enum Transaction {
    Sqlite(sqlx::Transaction<'static, Sqlite>),
    Postgres(sqlx::Transaction<'static, Postgres>),
}

impl Transaction {
    pub(super) fn on(&mut self) -> Either<&mut SqliteConnection, &mut PgConnection> {
        match self {
            Transaction::Sqlite(transaction) => Either::Left(transaction),
            Transaction::Postgres(transaction) => Either::Right(transaction),
        }
    }

    /// An error says what it was for.
    pub(super) async fn commit(self, what: &'static str) -> Result<(), StoreError> {
        let committed = match self {
            Transaction::Sqlite(transaction) => transaction.commit().await,
            Transaction::Postgres(transaction) => in_time(transaction.commit()).await,
        };
        committed.map_err(with_context(what))
    }
}

/// Asks either engine with one text, or with one for each: see Note [One text].
///
/// `query!(execute, on, text, values..)` says how many rows it changed. `query!(fetch_one Type, on, text, values..)` reads a row
/// (`fetch_optional`, `fetch_all`) by its columns' names, and with `scalar` for the type its one column. `query!("look for it": ..)` says
/// in an error what was asked for.
macro_rules! query {
    ($what:tt: $($asked:tt)*) => {
        query!($($asked)*).map_err($crate::with_context($what))
    };
    (execute, $on:expr, $text:tt $(, $value:expr)* $(,)?) => {
        match $on {
            sqlx::Either::Left(on) => query!(@ (query::<sqlx::Sqlite>) lite $text)$(.bind(&$value))*
                .execute(on).await.map(|done| done.rows_affected()).map_err($crate::engine::of_file),
            sqlx::Either::Right(on) => $crate::engine::in_time(query!(@ (query::<sqlx::Postgres>) postgres $text)$(.bind(&$value))*
                .execute(on)).await.map(|done| done.rows_affected()),
        }
    };
    // SQLite commits what one statement writes once all of its rows were asked for, and says no earlier that it cannot.
    (fetch_optional $row:tt, $of:ident.pool.writing(), $($rest:tt)*) => {
        query!(fetch_all $row, $of.pool.writing(), $($rest)*).map(|mut rows: Vec<_>| rows.pop())
    };
    ($fetch:ident scalar, $on:expr, $text:tt $(, $value:expr)* $(,)?) => {
        match $on {
            sqlx::Either::Left(on) => query!(@ (query_scalar::<sqlx::Sqlite, _>) lite $text)$(.bind(&$value))*.$fetch(on).await.map_err($crate::engine::of_file),
            sqlx::Either::Right(on) => $crate::engine::in_time(query!(@ (query_scalar::<sqlx::Postgres, _>) postgres $text)$(.bind(&$value))*.$fetch(on)).await,
        }
    };
    ($fetch:ident $row:ty, $on:expr, $text:tt $(, $value:expr)* $(,)?) => {
        match $on {
            sqlx::Either::Left(on) => query!(@ (query_as::<sqlx::Sqlite, $row>) lite $text)$(.bind(&$value))*.$fetch(on).await.map_err($crate::engine::of_file),
            sqlx::Either::Right(on) => $crate::engine::in_time(query!(@ (query_as::<sqlx::Postgres, $row>) postgres $text)$(.bind(&$value))*.$fetch(on)).await,
        }
    };
    (@ ($($query:tt)*) lite [$lite:literal, $postgres:literal]) => { sqlx::$($query)*($lite) };
    (@ ($($query:tt)*) lite $text:literal) => { sqlx::$($query)*($text) };
    (@ ($($query:tt)*) postgres [$lite:literal, $postgres:literal]) => { query!(@ ($($query)*) postgres $postgres) };
    (@ ($($query:tt)*) postgres $text:literal) => { sqlx::$($query)*($crate::engine::for_postgres($text)) };
}
pub(super) use query;

/// An error of a file: connections of which none is free wait for its lock, and for no server.
pub(super) fn of_file(error: sqlx::Error) -> sqlx::Error {
    match error {
        sqlx::Error::PoolTimedOut => sqlx::Error::Io(io::ErrorKind::ResourceBusy.into()),
        other => other,
    }
}

/// The same text for PostgreSQL: see Note [One text].
pub(super) fn for_postgres(text: &'static str) -> AssertSqlSafe<String> {
    let text = text.replace("rowid", "number");
    AssertSqlSafe(text.replace("/* LOCKED */", "FOR UPDATE OF waiting SKIP LOCKED"))
}
