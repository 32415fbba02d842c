//! The two engines, SQLite and PostgreSQL, and how one text asks both.
//!
//! # Note [One text]
//!
//! Queries are written once, for SQLite, where they are checked against the migrations when they are compiled. PostgreSQL
//! gets the same text with three differences, made by [`for_postgres`]: parameters are `$1` and not `?1`; the types that `query_as!`
//! reads behind a column's name (`AS "state: FitState"`) are cut off; and SQLite's `rowid` is the identity column `number`.
//! So a text stays within what both understand: `CASE` and not `max(a, b)`, `CAST(sum(..) AS BIGINT)`, `->` and then `->>` with
//! a single name, flags that are booleans (`NOT uploaded`, not `uploaded = 0`), and a conflict target where something is updated. Where
//! that is not enough there are two texts side by side: `["SQLite", "PostgreSQL"]`.
//!
//! # Note [Alone]
//!
//! In SQLite one transaction writes at a time. In PostgreSQL many do, and two things here depend on that they do not: numbers
//! that are read as "everything after this one" have to appear in their order, and uploads must not go while somebody begins to refer to
//! them. So every transaction of several statements begins with [`Connection::begin_alone`] and holds one lock of
//! its schema until its end, and so do the single statements that drop uploads.

mod news;
mod open;
#[cfg(test)]
mod schema;

use std::fmt;

use sqlx::pool::PoolConnection;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection as _, Either, PgConnection, PgPool, Postgres, Sqlite, SqlitePool};

pub use news::{Told, Wire};
pub(super) use open::{fault, open_postgres, why_not};
pub use open::{is_postgres, shown};

/// The open database of either engine. Cloning it shares the connections.
#[derive(Clone)]
pub(super) enum Pool {
    /// A file.
    Sqlite(SqlitePool),
    /// A server.
    Postgres(PgPool),
}

impl fmt::Debug for Pool {
    /// Without what it takes to connect.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pool::Sqlite(_) => "SQLite",
            Pool::Postgres(_) => "PostgreSQL",
        })
    }
}

impl Pool {
    /// For one statement.
    pub(super) fn on(&self) -> Either<&SqlitePool, &PgPool> {
        match self {
            Pool::Sqlite(pool) => Either::Left(pool),
            Pool::Postgres(pool) => Either::Right(pool),
        }
    }

    /// For several statements.
    pub(super) async fn acquire(&self) -> Result<Connection, sqlx::Error> {
        Ok(match self {
            Pool::Sqlite(pool) => Connection::Sqlite(pool.acquire().await?),
            Pool::Postgres(pool) => Connection::Postgres(pool.acquire().await?),
        })
    }

    pub(super) async fn close(&self) {
        match self {
            Pool::Sqlite(pool) => pool.close().await,
            Pool::Postgres(pool) => pool.close().await,
        }
    }
}

/// A connection of a pool.
#[derive(Debug)]
pub(super) enum Connection {
    Sqlite(PoolConnection<Sqlite>),
    Postgres(PoolConnection<Postgres>),
}

impl Connection {
    pub(super) fn link(&mut self) -> Link<'_> {
        match self {
            Connection::Sqlite(connection) => Link::Sqlite(connection),
            Connection::Postgres(connection) => Link::Postgres(connection),
        }
    }

    /// Begins a transaction that is the only one of its kind: see Note [Alone].
    pub(super) async fn begin_alone(&mut self) -> Result<Transaction<'_>, sqlx::Error> {
        Ok(match self {
            Connection::Sqlite(connection) => {
                Transaction::Sqlite(connection.begin_with("BEGIN IMMEDIATE").await?)
            }
            Connection::Postgres(connection) => {
                let mut transaction = connection.begin().await?;
                sqlx::query(ALONE).execute(&mut *transaction).await?;
                Transaction::Postgres(transaction)
            }
        })
    }

    /// Closes it, with whatever it has begun.
    pub(super) async fn close(self) {
        // What fails here was closed already.
        let _ = match self {
            Connection::Sqlite(connection) => connection.close().await,
            Connection::Postgres(connection) => connection.close().await,
        };
    }
}

/// Waits for, and takes, the lock of this schema's writers until the transaction ends.
const ALONE: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended('batchfit ' || current_schema(), 0))";

/// A transaction, undone when it is dropped.
pub(super) enum Transaction<'c> {
    Sqlite(sqlx::Transaction<'c, Sqlite>),
    Postgres(sqlx::Transaction<'c, Postgres>),
}

impl Transaction<'_> {
    pub(super) fn link(&mut self) -> Link<'_> {
        match self {
            Transaction::Sqlite(transaction) => Link::Sqlite(transaction),
            Transaction::Postgres(transaction) => Link::Postgres(transaction),
        }
    }

    pub(super) fn on(&mut self) -> Either<&mut SqliteConnection, &mut PgConnection> {
        match self {
            Transaction::Sqlite(transaction) => Either::Left(transaction),
            Transaction::Postgres(transaction) => Either::Right(transaction),
        }
    }

    pub(super) async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Transaction::Sqlite(transaction) => transaction.commit().await,
            Transaction::Postgres(transaction) => transaction.commit().await,
        }
    }
}

/// A connection that is lent for some statements, in a transaction or not.
#[derive(Debug)]
pub(super) enum Link<'c> {
    Sqlite(&'c mut SqliteConnection),
    Postgres(&'c mut PgConnection),
}

impl Link<'_> {
    pub(super) fn on(&mut self) -> Either<&mut SqliteConnection, &mut PgConnection> {
        match self {
            Link::Sqlite(connection) => Either::Left(connection),
            Link::Postgres(connection) => Either::Right(connection),
        }
    }
}

/// Asks either engine with one text, or with one for each: see Note [One text].
///
/// `ask!(execute, on, text, values..)` says how many rows it changed. `ask!(fetch_one Type, on, text, values..)` reads a row
/// (`fetch_optional`, `fetch_all`) as `query_as!` does, and with `scalar` for the type its one column.
macro_rules! ask {
    (execute, $on:expr, [$lite:literal, $postgres:literal] $(, $value:expr)* $(,)?) => {
        match $on {
            sqlx::Either::Left(on) => sqlx::query!($lite $(, $value)*)
                .execute(on)
                .await
                .map(|done| done.rows_affected()),
            sqlx::Either::Right(on) => sqlx::query::<sqlx::Postgres>($crate::store::engine::postgres_text!($postgres))
                $(.bind(&$value))*
                .execute(on)
                .await
                .map(|done| done.rows_affected()),
        }
    };
    ($fetch:ident scalar, $on:expr, [$lite:literal, $postgres:literal] $(, $value:expr)* $(,)?) => {
        match $on {
            sqlx::Either::Left(on) => sqlx::query_scalar!($lite $(, $value)*).$fetch(on).await,
            sqlx::Either::Right(on) => sqlx::query_scalar::<sqlx::Postgres, _>($crate::store::engine::postgres_text!($postgres))
                $(.bind(&$value))*
                .$fetch(on)
                .await,
        }
    };
    ($fetch:ident $row:ty, $on:expr, [$lite:literal, $postgres:literal] $(, $value:expr)* $(,)?) => {
        match $on {
            sqlx::Either::Left(on) => sqlx::query_as!($row, $lite $(, $value)*).$fetch(on).await,
            sqlx::Either::Right(on) => sqlx::query_as::<sqlx::Postgres, $row>($crate::store::engine::postgres_text!($postgres))
                $(.bind(&$value))*
                .$fetch(on)
                .await,
        }
    };
    (execute, $on:expr, $text:literal $(, $value:expr)* $(,)?) => {
        ask!(execute, $on, [$text, $text] $(, $value)*)
    };
    ($fetch:ident scalar, $on:expr, $text:literal $(, $value:expr)* $(,)?) => {
        ask!($fetch scalar, $on, [$text, $text] $(, $value)*)
    };
    ($fetch:ident $row:ty, $on:expr, $text:literal $(, $value:expr)* $(,)?) => {
        ask!($fetch $row, $on, [$text, $text] $(, $value)*)
    };
}
pub(super) use ask;

/// A text as PostgreSQL reads it, made once.
macro_rules! postgres_text {
    ($text:literal) => {{
        static TEXT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
        TEXT.get_or_init(|| $crate::store::engine::for_postgres($text))
            .as_str()
    }};
}
pub(super) use postgres_text;

/// The same text for PostgreSQL: see Note [One text].
pub(super) fn for_postgres(text: &str) -> String {
    let mut translated = String::with_capacity(text.len());
    let mut rest = text;
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        let mut taken = first.len_utf8();
        match first {
            '?' => translated.push('$'),
            '\'' => {
                let end = rest[1..].find('\'').map_or(rest.len(), |end| end + 2);
                translated.push_str(&rest[..end]);
                taken = end;
            }
            '"' => {
                let end = rest[1..].find('"').map_or(rest.len(), |end| end + 2);
                let name = rest[..end].trim_matches('"');
                let name = name.split_once(':').map_or(name, |(name, _)| name);
                translated.push('"');
                translated.push_str(name.trim_end_matches(['!', '?']));
                translated.push('"');
                taken = end;
            }
            _ if !is_of_a_word(before) && is_word(rest, "rowid") => {
                translated.push_str("number");
                taken = "rowid".len();
            }
            _ => translated.push(first),
        }
        before = first;
        rest = &rest[taken..];
    }
    translated
}

fn is_word(text: &str, word: &str) -> bool {
    let after = text.strip_prefix(word);
    after.is_some_and(|after| !after.starts_with(is_of_a_word))
}

fn is_of_a_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_translated_outside_of_strings() {
        let text = r#"SELECT id, state AS "state: FitState", x AS "x!: i64", y AS "y!", '?1 rowid' FROM fit
                       WHERE rowid < ?1 AND fit.rowid > ?12 AND growid = arowid_"#;

        assert_eq!(
            for_postgres(text),
            r#"SELECT id, state AS "state", x AS "x", y AS "y", '?1 rowid' FROM fit
                       WHERE number < $1 AND fit.number > $12 AND growid = arowid_"#
        );
    }
}
