//! What becomes of a database that an older version wrote.

use std::borrow::Cow;

use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{Executor as _, Row as _, SqlitePool};

use super::*;
use crate::probe::Evidence;

/// A database as the migrations up to `last` make it, with what `rows` adds.
async fn older(file: &std::path::Path, last: i64, rows: &str) {
    let migrator = sqlx::migrate!();
    let earlier = migrator.migrations.iter();
    let earlier = earlier.filter(|migration| migration.version <= last);
    let migrator = sqlx::migrate::Migrator {
        migrations: Cow::Owned(earlier.cloned().collect()),
        ..migrator
    };
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .foreign_keys(true);
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .connect_with(options)
        .await
        .unwrap();
    migrator.run(&pool).await.unwrap();
    pool.execute(sqlx::AssertSqlSafe(rows.to_owned()))
        .await
        .unwrap();
    pool.close().await;
}

/// A fit that is done and its recommendation, in the columns of the first migrations.
fn a_fit(number: u32, mode: &str, optimizer: &str) -> String {
    format!(
        "INSERT INTO fit (id, fingerprint, batchfit_version, state, model, device, lane, request, result, created_at, finished_at)
         VALUES ('fit{number}', 'f{number}', '0.1.0', 'done', 'resnet18', 'sim:h200', 'simulated', '{{}}', '{{}}', 1, 2);
         INSERT INTO recommendation VALUES ('answer{number}', 'fit{number}', 1, 'resnet18', 'preset', 'sim:h200', 'NVIDIA H200',
             'fp32', {optimizer}, {optimizer}, 'none', '{mode}', 1000, 8, 2, 16, 10, 9, 700, 800, 200, 'activations', 'simulated',
             NULL, '0.1.0', {number});"
    )
}

async fn names(pool: &SqlitePool, query: &'static str) -> Vec<String> {
    let rows = sqlx::query(query).fetch_all(pool).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// A recommendation by what it is evidence of, with its fit.
async fn insert(db: &Db, number: u32, fit: &str, evidence: &str) -> Result<(), sqlx::Error> {
    let row = format!(
        "INSERT INTO recommendation VALUES ('new{number}', '{fit}', {number}, 'mine', 'recorded', 'sim:h200', 'NVIDIA H200',
             'recorded', 'recorded', 'recorded', 'recorded', 'train', 1000, 8, 2, 16, 10, 9, 700, 800, 200, 'activations',
             '{evidence}', NULL, '0.1.0', 3, 1, NULL, NULL)"
    );
    db.pool.execute(sqlx::AssertSqlSafe(row)).await.map(|_| ())
}

#[tokio::test]
async fn recommendations_keep_their_rows_when_evidence_gets_more_names() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("old.db");
    let rows = a_fit(1, "train", "NULL")
        .replace("NULL, NULL, 'none'", "'adamw', 'foreach', 'none'")
        + &a_fit(2, "inference", "NULL");
    older(&file, 3, &rows).await;

    let db = Db::open(file.to_str().unwrap()).await.unwrap();

    let all = RecommendationFilter {
        limit: 10,
        ..RecommendationFilter::default()
    };
    let kept = db.recommendations(&all).await.unwrap().unwrap();
    let kept: Value = serde_json::from_str(&format!("[{}]", kept.items)).unwrap();
    assert_eq!(kept.as_array().unwrap().len(), 2);
    let first = json!({
        "id": "answer1", "fit_id": "fit1", "optimizer": "adamw", "optimizer_impl": "foreach", "micro_batch": 8,
        "accumulation_steps": 2, "peak_reserved_bytes": 800, "headroom_bytes": 200, "evidence": "simulated",
        "world_size": 1, "created_at": "1970-01-01T00:00:00.001Z",
    });
    for (name, value) in first.as_object().unwrap() {
        assert_eq!(&kept[1][name], value, "{name}");
    }
    assert_eq!(kept[0]["mode"], "inference");
    assert_eq!(kept[0]["optimizer"], Value::Null);
    for (number, evidence) in (2..).zip(Evidence::ALL) {
        insert(&db, number, "fit1", evidence.name()).await.unwrap();
    }
    // Everything else still holds.
    assert!(insert(&db, 9, "fit1", "guessed").await.is_err());
    assert!(insert(&db, 9, "no fit", "trained").await.is_err());
    assert!(insert(&db, 2, "fit1", "trained").await.is_err());
    let indexes = names(
        &db.pool,
        "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'recommendation' AND sql IS NOT NULL",
    );
    assert_eq!(
        indexes.await,
        [
            "recommendation_without_document",
            "recommendation_by_number"
        ]
    );
    let broken = names(&db.pool, "SELECT \"table\" FROM pragma_foreign_key_check");
    assert_eq!(broken.await, Vec::<String>::new());
}
