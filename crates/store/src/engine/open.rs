//! Reaching a server of PostgreSQL, and what its errors mean.

use std::str::FromStr as _;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgDatabaseError, PgPoolOptions};
use sqlx::{Connection as _, PgPool};

use crate::{ACQUIRE_TIMEOUT_OF_SERVER, Fault, StoreError};

/// The oldest version that is still maintained: <https://www.postgresql.org/support/versioning/>
const OLDEST: i32 = 140_000;

/// What every session asks for. No lock is held for longer than a few statements take, so a longer wait is for a process that
/// hangs, and a transaction whose client says nothing is undone before: all others wait for it (Note [Alone]).
const SETTINGS: [(&str, &str); 2] = [
    ("lock_timeout", "10s"),
    ("idle_in_transaction_session_timeout", "5s"),
];

/// A connection that was idle for as long is tested before it is used.
const TRUSTED: Duration = Duration::from_secs(1);

/// How long a server of PostgreSQL may take for a statement. It ends none that waits for longer than 10 s for a lock ([`SETTINGS`]); one
/// that says nothing is away, although its connections are open: its host hangs, or a proxy before it does.
const PATIENCE: Duration = Duration::from_secs(30);

/// The same, or an error that means that the server is not reached.
pub(crate) async fn in_time<T>(
    asked: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let answered = tokio::time::timeout(PATIENCE, asked).await;
    answered.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}

/// Whether this names a database of PostgreSQL.
pub fn is_postgres(database: &str) -> bool {
    ["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| database.starts_with(scheme))
}

/// The name of a database as it may be shown: without a password.
pub fn shown(database: &str) -> String {
    if !is_postgres(database) {
        return database.to_owned();
    }
    let (scheme, rest) = database.split_once("://").unwrap_or(("", database));
    let (address, query) = match rest.split_once('?') {
        Some((address, query)) => (address, Some(query)),
        None => (rest, None),
    };
    // A password may have an @ that is not escaped.
    let address = match address.rsplit_once('@') {
        Some((user, place)) => match user.split_once(':') {
            Some((user, _password)) => format!("{user}:...@{place}"),
            None => address.to_owned(),
        },
        None => address.to_owned(),
    };
    let query = query.map(|query| {
        let shown = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, _)) if name.contains("password") => format!("{name}=..."),
            _ => pair.to_owned(),
        });
        format!("?{}", shown.collect::<Vec<_>>().join("&"))
    });
    format!("{scheme}://{address}{}", query.unwrap_or_default())
}

/// Connects to the server behind a URL.
pub(crate) async fn open_postgres(
    database: &str,
    most_connections: u32,
) -> Result<PgPool, StoreError> {
    let failed = |source| StoreError::Open {
        database: shown(database),
        source,
    };
    let options = PgConnectOptions::from_str(database)
        .map_err(failed)?
        .application_name("batchfit")
        .options(SETTINGS);
    let pool = PgPoolOptions::new()
        .max_connections(most_connections)
        .acquire_timeout(ACQUIRE_TIMEOUT_OF_SERVER)
        .test_before_acquire(false)
        .before_acquire(|connection, known| {
            Box::pin(async move { Ok(known.idle_for < TRUSTED || connection.ping().await.is_ok()) })
        })
        .connect_with(options)
        .await
        .map_err(failed)?;
    let version: i32 = sqlx::query_scalar("SELECT current_setting('server_version_num')::int")
        .fetch_one(&pool)
        .await
        .map_err(failed)?;
    if version < OLDEST {
        pool.close().await;
        return Err(StoreError::TooOld {
            database: shown(database),
            version: format!("{}.{}", version / 10_000, version % 10_000),
            oldest: OLDEST / 10_000,
        });
    }
    Ok(pool)
}

/// What kind of failure an error of PostgreSQL, or of the way to it, is; `None` where it is of neither.
pub(crate) fn fault(error: &sqlx::Error) -> Option<Fault> {
    let error = match error {
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut => {
            return Some(Fault::Unreachable);
        }
        sqlx::Error::Database(error) => error.try_downcast_ref::<PgDatabaseError>()?,
        _others => return None,
    };
    // https://www.postgresql.org/docs/current/errcodes-appendix.html
    Some(match error.code() {
        // disk_full
        "53100" => Fault::Full,
        // lock_not_available
        "55P03" => Fault::Locked,
        // read_only_sql_transaction, insufficient_privilege
        "25006" | "42501" => Fault::ReadOnly,
        // data_corrupted, index_corrupted; undefined_file: one of its own is lost
        "XX001" | "XX002" | "58P01" => Fault::Damaged,
        // too_many_connections
        "53300" => Fault::Unreachable,
        // connection_exception; admin_shutdown, crash_shutdown, cannot_connect_now
        code if code.starts_with("08") || code.starts_with("57P0") => Fault::Unreachable,
        _ => Fault::Other,
    })
}

/// What to do about a server that refuses the connection.
pub(crate) fn why_not(error: &sqlx::Error) -> Option<&'static str> {
    let error = match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut => {
            return Some(
                ": PostgreSQL does not answer there; is it started, and are host and port right?",
            );
        }
        sqlx::Error::Tls(_) => {
            return Some(
                ": it demands TLS (sslmode), which this program does not speak; connect by a Unix socket, a private network, or a \
                 proxy on this machine that does",
            );
        }
        sqlx::Error::Database(error) => error.try_downcast_ref::<PgDatabaseError>()?,
        _others => return None,
    };
    Some(match error.code() {
        "28P01" | "28000" => {
            ": PostgreSQL does not let this user in; is the password right (PGPASSWORD, ~/.pgpass or the URL), and does \
             pg_hba.conf allow it?"
        }
        "3D000" => ": PostgreSQL has no such database; `createdb NAME` makes one",
        "3F000" => ": there is no schema to make tables in; `CREATE SCHEMA` makes one",
        "42501" => {
            ": this user may not do that there; `GRANT CREATE, USAGE ON SCHEMA public TO USER` lets it make its tables"
        }
        "53300" => ": PostgreSQL has no connection left (max_connections)",
        "53100" => ": PostgreSQL's disk is full",
        "57P03" => ": PostgreSQL is starting or stopping; try again",
        "25006" => ": it is a copy that can be read only; name the server that writes",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let names = [
            ("fits.db", "fits.db"),
            ("postgres://me@host/fits", "postgres://me@host/fits"),
            (
                "postgres://me:a@b:c@host:5432/fits",
                "postgres://me:...@host:5432/fits",
            ),
            (
                "postgresql:///fits?host=/run&password=abc",
                "postgresql:///fits?host=/run&password=...",
            ),
        ];
        for (database, expected) in names {
            assert_eq!(shown(database), expected);
        }
    }
}
