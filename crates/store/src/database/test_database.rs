//! A database for a test: SQLite in memory or in a file, or, where `BATCHFIT_TEST_POSTGRES` names a server, a schema of its own there
//! (`tests/service/postgres.sh` runs the tests so).

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tempfile::TempDir;

use crate::engine::Pool;
use crate::{Db, FitTerms, JsonText, NewFit, StoreError, Time};

/// The server's URL.
#[expect(clippy::disallowed_methods, reason = "a test has no flags")]
fn server() -> Option<String> {
    std::env::var("BATCHFIT_TEST_POSTGRES").ok()
}

/// Where a database is, until this is dropped.
pub(crate) struct DatabaseLocation {
    pub(crate) database: String,
    _folder: Option<TempDir>,
    schema: Option<String>,
}

impl DatabaseLocation {
    /// For a file, or a schema.
    pub(crate) fn new() -> DatabaseLocation {
        if let Some(place) = DatabaseLocation::on_server() {
            return place;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("batchfit.db");
        DatabaseLocation {
            database: file.to_str().unwrap().to_owned(),
            _folder: Some(folder),
            schema: None,
        }
    }

    fn on_server() -> Option<DatabaseLocation> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = server()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let schema = format!("trial_{}_{number}", std::process::id());
        run(&server, format!("CREATE SCHEMA {schema}"));
        let joint = if server.contains('?') { '&' } else { '?' };
        Some(DatabaseLocation {
            database: format!("{server}{joint}options=-csearch_path%3D{schema}"),
            _folder: None,
            schema: Some(schema),
        })
    }
}

impl Drop for DatabaseLocation {
    fn drop(&mut self) {
        if let (Some(schema), Some(server)) = (&self.schema, server()) {
            run(&server, format!("DROP SCHEMA {schema} CASCADE"));
        }
    }
}

/// Runs a statement from wherever, in a runtime or not.
fn run(server: &str, statement: String) {
    let server = server.to_owned();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let mut connection = PgConnection::connect(&server).await.unwrap();
            connection.execute(AssertSqlSafe(statement)).await.unwrap();
            connection.close().await.unwrap();
        });
    };
    thread::spawn(run).join().unwrap();
}

/// A fit of this name on this device, which is asked by it.
pub(crate) fn new_fit(id: &str, device: &str) -> NewFit {
    NewFit {
        id: id.to_owned(),
        fingerprint: id.to_owned(),
        batchfit_version: "0.1.0".to_owned(),
        model: "resnet18".to_owned(),
        model_digest: String::new(),
        taught: JsonText::from("[]"),
        device: device.to_owned(),
        lane: device.to_owned(),
        request: JsonText::from("null"),
        uploads: Vec::new(),
        aside: None,
        terms: FitTerms::default(),
        key: None,
        owner: String::new(),
        created_at: Time(0),
    }
}

/// An open database with its place.
pub(crate) struct TestDatabase {
    db: Db,
    _place: Option<DatabaseLocation>,
}

impl TestDatabase {
    /// A fresh one.
    pub(crate) async fn new() -> TestDatabase {
        let place = DatabaseLocation::on_server();
        let database = place
            .as_ref()
            .map_or("sqlite::memory:", |place| &place.database);
        TestDatabase {
            db: Db::open(database).await.unwrap(),
            _place: place,
        }
    }
}

impl Deref for TestDatabase {
    type Target = Db;

    fn deref(&self) -> &Db {
        &self.db
    }
}

impl Db {
    /// Runs statements that no function here has.
    pub(crate) async fn run(&self, statements: impl Into<String>) -> Result<(), sqlx::Error> {
        let statements = AssertSqlSafe(statements.into());
        match &self.pool {
            Pool::Sqlite(_, pool) => pool.execute(statements).await.map(|_| ()),
            Pool::Postgres(pool) => pool.execute(statements).await.map(|_| ()),
        }
    }

    /// Rows of a fit and of its recommendation, `fit{name}` and `answer{name}`, as an earlier version wrote them.
    pub(crate) async fn add_answer(&self, name: &str, at: u32, model: &str, world_size: u32) {
        let rows = format!(
            "INSERT INTO request (digest, text) VALUES ('asked', '{{}}') ON CONFLICT DO NOTHING;
             INSERT INTO fit (id, fingerprint, batchfit_version, state, model, device, lane, request_digest, result, created_at,
                 finished_at)
             VALUES ('fit{name}', 'f{at}', '0.1.0', 'done', '{model}', 'sim:h200', 'simulated', 'asked', '{{}}', 1, 2);
             INSERT INTO recommendation (id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl,
                 checkpointing, mode, limit_bytes, world_size, micro_batch, accumulation_steps, global_batch, max_batch,
                 max_batch_without_retries, peak_allocated_bytes, peak_reserved_bytes, headroom_bytes, limited_by, evidence,
                 batchfit_version, created_at)
             VALUES ('answer{name}', 'fit{name}', 1, '{model}', 'preset', 'sim:h200', 'NVIDIA H200', 'fp32', 'adamw', 'foreach',
                 'none', 'train', 1000, {world_size}, 8, 2, 16, 10, 9, 700, 800, 200, 'activations', 'simulated', '0.1.0', {at});"
        );
        self.run(rows).await.unwrap();
    }

    /// The first column of each row.
    pub(crate) async fn texts(&self, query: &'static str) -> Vec<String> {
        let rows = match &self.pool {
            Pool::Sqlite(_, pool) => sqlx::query_scalar(query).fetch_all(pool).await,
            Pool::Postgres(pool) => sqlx::query_scalar(query).fetch_all(pool).await,
        };
        rows.unwrap()
    }

    /// Queues what a holder that is gone worked on.
    pub(crate) async fn interrupted(&self) -> Result<u64, StoreError> {
        if self.is_shared() {
            let nobody = crate::LeaseOwner::other("nobody".to_owned());
            return self.expired(Time(i64::MAX), &nobody, 0).await;
        }
        self.recover().await
    }
}
