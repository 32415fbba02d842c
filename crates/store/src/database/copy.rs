//! Copying all rows from one database to another, of either engine.

use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnection};
use sqlx::{AssertSqlSafe, Either, PgConnection, Postgres, Sqlite};

use crate::engine::{Pool, Transaction, of_file};
use crate::{Db, StoreError, with_context};

/// The tables, those first to which others refer.
const TABLES: [&str; 20] = [
    "request",
    "fit",
    "probe",
    "recommendation",
    "recommendation_gone",
    "upload",
    "upload_name",
    "upload_namer",
    "upload_reference",
    "search",
    "observation",
    "idempotency_key",
    "api_key",
    "agent",
    "outcome",
    "learnt",
    "teller",
    "outcome_count",
    "readiness",
    "virtual_run",
];

/// Tables with one row that is there from the start.
const WITH_A_ROW: [&str; 2] = ["outcome_count", "readiness"];

/// Tables whose rows SQLite numbers by itself: see Note [One text].
const WITH_ROWID: [&str; 4] = ["fit", "probe", "upload_name", "virtual_run"];

/// Columns whose numbers are given out, each once.
const NUMBERED: [(&str, &str); 7] = [
    ("fit", "number"),
    ("probe", "number"),
    ("upload_name", "number"),
    ("virtual_run", "number"),
    ("recommendation", "number"),
    ("outcome", "number"),
    ("learnt", "id"),
];

/// How many rows of a table were copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiedRows {
    /// The table.
    pub table: &'static str,
    /// Its rows.
    pub rows: i64,
}

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Integer,
    Real,
    Text,
    Bytes,
    /// Text in SQLite.
    Json,
    /// A number in SQLite.
    Flag,
}

#[derive(Debug)]
struct Column {
    name: String,
    kind: Kind,
}

/// A value on its way.
enum Value {
    Integer(Option<i64>),
    Real(Option<f64>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

impl Db {
    /// Copies all rows into a database that has none, in one transaction there, and counts them on both sides.
    ///
    /// What is read is one moment of the source. One row is in memory at a time.
    pub async fn copy_to(&self, to: &Db) -> Result<Vec<CopiedRows>, StoreError> {
        let begin = "begin to copy";
        let mut from = snapshot(&self.pool).await.map_err(with_context(begin))?;
        let mut into = to.pool.begin_alone(begin).await?;
        for table in TABLES {
            let there = count(&mut into, table).await;
            let there = there.map_err(with_context("look what is there already"))?;
            if there > 0 && !WITH_A_ROW.contains(&table) {
                return Err(StoreError::NotEmpty { table, rows: there });
            }
        }
        let mut copied = Vec::new();
        for table in TABLES {
            let rows = copy_table(&mut from, &mut into, table).await;
            let rows = rows.map_err(with_context("copy rows"))?;
            let arrived = count(&mut into, table).await;
            let arrived = arrived.map_err(with_context("count what was copied"))?;
            if arrived != rows {
                return Err(StoreError::Unreadable {
                    what: table,
                    problem: format!("{rows} rows were read, and {arrived} arrived"),
                });
            }
            copied.push(CopiedRows { table, rows });
        }
        let go_on = with_context("go on with the numbers of rows");
        number_on(&mut into).await.map_err(go_on)?;
        into.commit("commit the copy").await?;
        Ok(copied)
    }
}

/// Begins to read one moment.
async fn snapshot(pool: &Pool) -> Result<Transaction, sqlx::Error> {
    Ok(match pool {
        // The first read decides which.
        Pool::Sqlite(_, writing) => Transaction::Sqlite(writing.begin().await.map_err(of_file)?),
        Pool::Postgres(pool) => {
            let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
            Transaction::Postgres(pool.begin_with(begin).await?)
        }
    })
}

async fn count(transaction: &mut Transaction, table: &str) -> Result<i64, sqlx::Error> {
    let text = AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
    match transaction.on() {
        Either::Left(on) => sqlx::query_scalar(text).fetch_one(on).await,
        Either::Right(on) => sqlx::query_scalar(text).fetch_one(on).await,
    }
}

/// The columns of a table, by their names.
async fn columns(transaction: &mut Transaction, table: &str) -> Result<Vec<Column>, sqlx::Error> {
    let in_sqlite = "SELECT name, type FROM pragma_table_info($1) ORDER BY name";
    let in_postgres = "SELECT column_name::text, data_type::text FROM information_schema.columns
                        WHERE table_schema = current_schema() AND table_name = $1 ORDER BY column_name COLLATE \"C\"";
    let found: Vec<(String, String)> = match transaction.on() {
        Either::Left(on) => {
            let mut found: Vec<(String, String)> =
                sqlx::query_as(in_sqlite).bind(table).fetch_all(on).await?;
            if WITH_ROWID.contains(&table) {
                found.push(("number".to_owned(), "INTEGER".to_owned()));
                found.sort();
            }
            found
        }
        Either::Right(on) => {
            sqlx::query_as(in_postgres)
                .bind(table)
                .fetch_all(on)
                .await?
        }
    };
    let columns = found.into_iter().map(|(name, stored)| Column {
        name,
        kind: match stored.as_str() {
            "INTEGER" | "bigint" => Kind::Integer,
            "REAL" | "double precision" => Kind::Real,
            "BLOB" | "bytea" => Kind::Bytes,
            "json" => Kind::Json,
            "boolean" => Kind::Flag,
            _text => Kind::Text,
        },
    });
    Ok(columns.collect())
}

/// Copies one table, row by row. Says how many there were.
async fn copy_table(
    from: &mut Transaction,
    into: &mut Transaction,
    table: &str,
) -> Result<i64, sqlx::Error> {
    let [source, target] = [columns(from, table).await?, columns(into, table).await?];
    let names = |columns: &[Column]| -> Vec<String> {
        columns.iter().map(|column| column.name.clone()).collect()
    };
    if names(&source) != names(&target) {
        let different = format!("the columns of {table} are not the same on both sides");
        return Err(sqlx::Error::Protocol(different));
    }
    if WITH_A_ROW.contains(&table) {
        let delete = AssertSqlSafe(format!("DELETE FROM {table}"));
        match into.on() {
            Either::Left(on) => sqlx::query(delete).execute(on).await.map(|_| ())?,
            Either::Right(on) => sqlx::query(delete).execute(on).await.map(|_| ())?,
        }
    }
    let insert = inserting(into, table, &target);
    let mut found: BoxStream<'_, Result<Vec<Value>, sqlx::Error>> = match from.on() {
        Either::Left(on) => sqlx::query(AssertSqlSafe(sqlite_select(table, &source)))
            .fetch(on)
            .map(|row| values(&row?, &source))
            .boxed(),
        Either::Right(on) => sqlx::query(AssertSqlSafe(postgres_select(table, &source)))
            .fetch(on)
            .map(|row| values(&row?, &source))
            .boxed(),
    };
    let mut rows = 0;
    while let Some(values) = found.try_next().await? {
        store(into, &insert, values).await?;
        rows += 1;
    }
    Ok(rows)
}

/// What SQLite calls a column: names that it does not know as they are stand in quotes.
fn in_sqlite(table: &str, column: &Column) -> String {
    if column.name == "number" && WITH_ROWID.contains(&table) {
        "rowid".to_owned()
    } else {
        format!("\"{}\"", column.name)
    }
}

fn sqlite_select(table: &str, columns: &[Column]) -> String {
    let names: Vec<String> = columns
        .iter()
        .map(|column| in_sqlite(table, column))
        .collect();
    format!("SELECT {} FROM {table}", names.join(", "))
}

fn postgres_select(table: &str, columns: &[Column]) -> String {
    let values = columns.iter().map(|Column { name, kind }| match kind {
        Kind::Json => format!("\"{name}\"::text"),
        Kind::Flag => format!("\"{name}\"::int::bigint"),
        Kind::Integer | Kind::Real | Kind::Text | Kind::Bytes => format!("\"{name}\""),
    });
    format!(
        "SELECT {} FROM {table}",
        values.collect::<Vec<_>>().join(", ")
    )
}

fn inserting(into: &Transaction, table: &str, columns: &[Column]) -> String {
    let (names, values): (Vec<String>, Vec<String>) = match into {
        Transaction::Sqlite(_) => {
            let numbered = columns.iter().enumerate();
            numbered
                .map(|(at, column)| (in_sqlite(table, column), format!("?{}", at + 1)))
                .unzip()
        }
        Transaction::Postgres(_) => {
            let numbered = columns.iter().enumerate();
            numbered
                .map(|(at, Column { name, kind })| {
                    let value = match kind {
                        Kind::Json => format!("${}::json", at + 1),
                        Kind::Flag => format!("${} <> 0", at + 1),
                        Kind::Integer | Kind::Real | Kind::Text | Kind::Bytes => {
                            format!("${}", at + 1)
                        }
                    };
                    (format!("\"{name}\""), value)
                })
                .unzip()
        }
    };
    let (names, values) = (names.join(", "), values.join(", "));
    format!("INSERT INTO {table} ({names}) VALUES ({values})")
}

/// What a row holds in these columns.
fn values<R: sqlx::Row>(row: &R, columns: &[Column]) -> Result<Vec<Value>, sqlx::Error>
where
    usize: sqlx::ColumnIndex<R>,
    for<'r> Option<i64>: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
    for<'r> Option<f64>: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
    for<'r> Option<String>: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
    for<'r> Option<Vec<u8>>: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
{
    let read = |(at, column): (usize, &Column)| {
        Ok(match column.kind {
            Kind::Integer | Kind::Flag => Value::Integer(row.try_get(at)?),
            Kind::Real => Value::Real(row.try_get(at)?),
            Kind::Text | Kind::Json => Value::Text(row.try_get(at)?),
            Kind::Bytes => Value::Bytes(row.try_get(at)?),
        })
    };
    columns.iter().enumerate().map(read).collect()
}

async fn store(
    into: &mut Transaction,
    insert: &str,
    values: Vec<Value>,
) -> Result<(), sqlx::Error> {
    match into.on() {
        Either::Left(on) => store_in_sqlite(on, insert, values).await,
        Either::Right(on) => store_in_postgres(on, insert, values).await,
    }
}

async fn store_in_sqlite(
    on: &mut SqliteConnection,
    insert: &str,
    values: Vec<Value>,
) -> Result<(), sqlx::Error> {
    let mut query: Query<'_, Sqlite, SqliteArguments> =
        sqlx::query(AssertSqlSafe(insert.to_owned()));
    for value in values {
        query = match value {
            Value::Integer(value) => query.bind(value),
            Value::Real(value) => query.bind(value),
            Value::Text(value) => query.bind(value),
            Value::Bytes(value) => query.bind(value),
        };
    }
    query.execute(on).await.map(|_| ())
}

async fn store_in_postgres(
    on: &mut PgConnection,
    insert: &str,
    values: Vec<Value>,
) -> Result<(), sqlx::Error> {
    let mut query: Query<'_, Postgres, PgArguments> = sqlx::query(AssertSqlSafe(insert.to_owned()));
    for value in values {
        query = match value {
            Value::Integer(value) => query.bind(value),
            Value::Real(value) => query.bind(value),
            // It takes no NUL, which SQLite does.
            Value::Text(value) => query.bind(value.map(|text| text.replace('\0', "\u{fffd}"))),
            Value::Bytes(value) => query.bind(value),
        };
    }
    query.execute(on).await.map(|_| ())
}

/// Has rows that come get numbers that no row had.
async fn number_on(transaction: &mut Transaction) -> Result<(), sqlx::Error> {
    match transaction.on() {
        // SQLite goes on after the largest that it was told; a recommendation that is gone had a larger one, perhaps.
        Either::Left(on) => {
            let after = "UPDATE sqlite_sequence
                SET seq = max(seq, coalesce((SELECT max(number) FROM recommendation_gone), 0)) WHERE name = 'recommendation'";
            sqlx::query(after).execute(on).await.map(|_| ())
        }
        Either::Right(on) => {
            for (table, column) in NUMBERED {
                let gone = match table {
                    "recommendation" => ", (SELECT max(number) FROM recommendation_gone)",
                    _others => "",
                };
                let after = format!(
                    "SELECT setval(pg_get_serial_sequence('{table}', '{column}'),
                                   coalesce(greatest((SELECT max({column}) FROM {table}){gone}), 0) + 1, false)"
                );
                sqlx::query(AssertSqlSafe(after)).execute(&mut *on).await?;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::database::test_database::DatabaseLocation;
    use crate::*;

    /// From a file to wherever the tests are, to another file, and back.
    #[tokio::test]
    async fn a_copy_has_all_rows_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let first = Db::open(&file("first.db")).await.unwrap();
        first.run(include_str!("copy_rows.sql")).await.unwrap();
        // PostgreSQL takes a NUL in no text, and reads no JSON of which one is a part.
        let hostile = r#"UPDATE fit SET model = 'a' || char(0), result = '{"why": "\u0000", "recommendation": {"micro_batch": 8}}' WHERE id = 'fit1'"#;
        first.run(hostile).await.unwrap();
        let place = DatabaseLocation::new();
        let second = Db::open(&place.database).await.unwrap();
        let third = Db::open(&file("third.db")).await.unwrap();

        let copied = first.copy_to(&second).await.unwrap();
        assert_eq!(second.copy_to(&third).await.unwrap(), copied);

        let fits = copied.iter().find(|copied| copied.table == "fit").unwrap();
        assert_eq!(fits.rows, 2);
        let refused = first.copy_to(&second).await.unwrap_err();
        assert!(matches!(refused, StoreError::NotEmpty { .. }), "{refused}");
        for id in ["fit1", "fit2"] {
            let fit = first.fit(id).await.unwrap();
            assert!(fit.is_some());
            assert_eq!(second.fit(id).await.unwrap(), fit);
            assert_eq!(third.fit(id).await.unwrap(), fit);
        }
        let filter = FitFilter {
            limit: 9,
            ..FitFilter::default()
        };
        for db in [&first, &second, &third] {
            let listed = db.fits(&filter).await.unwrap();
            assert_eq!(listed[1].micro_batch, Some(8));
            assert!(matches!(listed[1].model.as_str(), "a\0" | "a\u{fffd}"));
        }
        let run = first.virtual_run("run1").await.unwrap();
        assert!(run.is_some());
        let step = first.part_of_step("run1", 0, 99).await.unwrap();
        for db in [&second, &third] {
            assert_eq!(db.virtual_run("run1").await.unwrap(), run);
            assert_eq!(db.part_of_step("run1", 0, 99).await.unwrap(), step);
        }
        let outcomes = first.outcomes("answer1", None, 9).await.unwrap();
        assert_eq!(outcomes.len(), 1);
        assert_eq!(second.outcomes("answer1", None, 9).await.unwrap(), outcomes);
        let all = RecommendationFilter {
            limit: 9,
            ..RecommendationFilter::default()
        };
        let rows = async |db: &Db| {
            let page = db.recommendations(&all).await.unwrap().unwrap();
            let rows = page.items().map(|row| serde_json::to_value(row).unwrap());
            rows.collect::<Vec<_>>()
        };
        assert_eq!(rows(&second).await, rows(&first).await);
        assert_eq!(rows(&third).await, rows(&first).await);
        // A number that a row had which is gone is not given again.
        for db in [&second, &third] {
            let again = "INSERT INTO outcome (recommendation, batch, outcome, environment, owner, created_at)
                         VALUES (7, 8, 'crashed', '{}', '', 1)";
            db.run(again).await.unwrap();
            let after = db.outcomes("answer1", None, 1).await.unwrap();
            assert_eq!(after[0].number, 5);
        }
    }
}
