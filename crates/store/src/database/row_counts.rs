//! How many rows there are.

use sqlx::Connection as _;
use sqlx::sqlite::SqliteConnection;

use crate::engine::{is_postgres, open_postgres, query};
use crate::{Db, StoreError, with_context};

/// How many rows there are of what is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCounts {
    /// Fits that wait.
    pub queued: i64,
    /// Fits that run.
    pub running: i64,
    /// Recommendations.
    pub recommendations: i64,
}

impl Db {
    /// Counts what is watched, without looking at every row.
    pub async fn counted(&self) -> Result<RowCounts, StoreError> {
        self.read_recommendations().await?;
        let (queued, running) = query!("count what there is": fetch_one (i64, i64), self.pool.on(),
            "SELECT (SELECT count(*) FROM fit WHERE state = 'queued') AS queued,
                      (SELECT count(*) FROM fit WHERE state = 'running') AS running")?;
        Ok(RowCounts {
            queued,
            running,
            recommendations: i64::try_from(self.shelf.rows()).unwrap_or(i64::MAX),
        })
    }
}

/// The state of a database, for its administrator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// Rows.
    pub fits: i64,
    /// Rows.
    pub recommendations: i64,
    /// The size of the file.
    pub bytes: i64,
    /// Keys that are valid; `None` in a database of a version without.
    pub keys: Option<i64>,
}

impl Db {
    /// Looks into a database without changing it, whatever version wrote it. An error where it is damaged.
    pub async fn health(database: &str) -> Result<Health, StoreError> {
        if is_postgres(database) {
            return health_of_server(database).await;
        }
        let failed = |source| StoreError::Open {
            database: database.to_owned(),
            source,
        };
        let options = crate::options(database).map_err(failed)?.read_only(true);
        let mut connection = SqliteConnection::connect_with(&options)
            .await
            .map_err(failed)?;
        let checked: String = sqlx::query_scalar("PRAGMA quick_check(1)")
            .fetch_one(&mut connection)
            .await
            .map_err(with_context("check the database"))?;
        if checked != "ok" {
            return Err(StoreError::Unreadable {
                what: "the database",
                problem: checked,
            });
        }
        // Not checked when this is compiled: the tables are those of any version.
        let count = async |connection: &mut SqliteConnection, query: &'static str| {
            sqlx::query_scalar::<_, i64>(query)
                .fetch_one(connection)
                .await
        };
        let looking = with_context("count what there is");
        let there = async {
            let connection = &mut connection;
            let keys = "SELECT count(*) FROM sqlite_schema WHERE name = 'api_key'";
            let keys = match count(connection, keys).await? {
                0 => None,
                _there => Some(
                    count(
                        connection,
                        "SELECT count(*) FROM api_key WHERE revoked_at IS NULL",
                    )
                    .await?,
                ),
            };
            Ok(Health {
                fits: count(connection, "SELECT count(*) FROM fit").await?,
                recommendations: count(connection, "SELECT count(*) FROM recommendation").await?,
                bytes: count(
                    connection,
                    "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
                )
                .await?,
                keys,
            })
        };
        there.await.map_err(looking)
    }
}

/// The same of a schema of PostgreSQL, whose pages its server looks after.
async fn health_of_server(database: &str) -> Result<Health, StoreError> {
    let pool = open_postgres(database, 1).await?;
    let looking = with_context("count what there is");
    let there = async {
        let count =
            async |query: &'static str| sqlx::query_scalar::<_, i64>(query).fetch_one(&pool).await;
        let is_new = "SELECT count(*) FROM information_schema.tables
                       WHERE table_schema = current_schema() AND table_name = 'fit'";
        if count(is_new).await? == 0 {
            return Ok(Health {
                fits: 0,
                recommendations: 0,
                bytes: 0,
                keys: None,
            });
        }
        Ok(Health {
            fits: count("SELECT count(*) FROM fit").await?,
            recommendations: count("SELECT count(*) FROM recommendation").await?,
            bytes: count("SELECT pg_database_size(current_database())").await?,
            keys: Some(count("SELECT count(*) FROM api_key WHERE revoked_at IS NULL").await?),
        })
    };
    let health = there.await.map_err(looking);
    pool.close().await;
    health
}
