//! Tests of databases that older versions wrote.

use std::borrow::Cow;

use serde_json::{Value, json};
use sqlx::Executor as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};

use crate::*;
use batchfit_card::probe::Evidence;

/// A database as the migrations up to `last` make it, with what `rows` adds.
async fn older(file: &Path, last: i64, rows: &str) {
    let migrator = migrator("");
    let earlier = migrator.migrations.iter();
    let earlier = earlier.filter(|migration| migration.version <= last);
    let migrator = Migrator {
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

/// A recommendation by what it is evidence of, with its fit.
async fn insert(db: &Db, number: u32, fit: &str, evidence: &str) -> Result<(), sqlx::Error> {
    let row = format!(
        "INSERT INTO recommendation (number, id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl, checkpointing, mode,
             limit_bytes, world_size, micro_batch, accumulation_steps, global_batch, max_batch, max_batch_without_retries,
             peak_allocated_bytes, peak_reserved_bytes, headroom_bytes, limited_by, evidence, samples_per_second,
             batchfit_version, created_at, step_ms, optimizer_step_ms, speed_from, pareto, objective)
         VALUES (NULL, 'new{number}', '{fit}', {number}, 'mine', 'recorded', 'sim:h200', 'NVIDIA H200',
             'recorded', 'recorded', 'recorded', 'recorded', 'train', 1000, 1, 8, 2, 16, 10, 9, 700, 800, 200, 'activations',
             '{evidence}', NULL, '0.1.0', 3, NULL, NULL, NULL, NULL, 'largest_batch')"
    );
    db.run(row).await
}

#[tokio::test]
async fn recommendations_keep_their_rows_when_evidence_gets_more_names() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("old.db");
    let rows = a_fit(1, "train", "NULL")
        .replace("NULL, NULL, 'none'", "'adamw', 'foreach', 'none'")
        .replace("NULL, '0.1.0'", "16.0, '0.1.0'")
        + &a_fit(2, "inference", "NULL");
    older(&file, 3, &rows).await;

    let db = Db::open(file.to_str().unwrap()).await.unwrap();

    let all = RecommendationFilter {
        limit: 10,
        ..RecommendationFilter::default()
    };
    let kept = db.recommendations(&all).await.unwrap().unwrap();
    let kept: Vec<Value> = kept
        .items()
        .map(|row| serde_json::to_value(row).unwrap())
        .collect();
    assert_eq!(kept.len(), 2);
    let first = json!({
        "id": "answer1", "fit_id": "fit1", "optimizer": "adamw", "optimizer_impl": "foreach", "micro_batch": 8,
        "accumulation_steps": 2, "peak_reserved_bytes": 800, "headroom_bytes": 200, "evidence": "simulated",
        "world_size": 1, "created_at": "1970-01-01T00:00:00.001Z", "samples_per_second": 16.0, "step_ms": 500.0,
        "speed_from": "measured", "objective": "largest_batch",
    });
    for (name, value) in first.as_object().unwrap() {
        assert_eq!(&kept[1][name], value, "{name}");
    }
    assert_eq!(kept[0]["mode"], "inference");
    assert_eq!(kept[0]["optimizer"], Value::Null);
    assert_eq!(kept[0]["speed_from"], Value::Null);
    for (number, evidence) in (2..).zip(Evidence::ALL) {
        insert(&db, number, "fit1", evidence.name()).await.unwrap();
    }
    // Everything else still holds.
    assert!(insert(&db, 9, "fit1", "guessed").await.is_err());
    assert!(insert(&db, 9, "no fit", "trained").await.is_err());
    assert!(insert(&db, 2, "fit1", "trained").await.is_err());
    let broken = db.texts("SELECT \"table\" FROM pragma_foreign_key_check");
    assert_eq!(broken.await, Vec::<String>::new());
}

/// The last schema in which fits and probes had their requests beside them.
const LAST_WITH_REQUESTS: i64 = 9;

/// Whatever version wrote it: every row is there after the update, and the next start has nothing to do.
#[tokio::test]
async fn a_database_of_every_earlier_schema_is_kept_whole() {
    let asked = r#"{"model": {"preset": "resnet18"}, "device": "sim:h200"}"#;
    for last in 1..=LAST_WITH_REQUESTS {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("old.db");
        let mut rows = a_fit(1, "train", "NULL")
            .replace("NULL, NULL, 'none'", "'adamw', 'foreach', 'none'")
            + &a_fit(2, "inference", "NULL");
        rows = rows.replace("'{}', '{}'", &format!("'{asked}', '{{}}'"));
        let others = format!(
            "INSERT INTO fit (id, fingerprint, batchfit_version, state, model, device, lane, request, created_at)
             VALUES ('fit3', 'f3', '0.1.0', 'queued', 'resnet18', 'sim:h200', 'simulated', '{asked}', 3);
             INSERT INTO fit (id, fingerprint, batchfit_version, state, model, device, lane, attempts, request, created_at,
                              started_at)
             VALUES ('fit4', 'f4', '0.1.0', 'running', 'resnet18', 'sim:h200', 'simulated', 1, '{{}}', 4, 5);
             INSERT INTO fit (id, fingerprint, batchfit_version, state, model, device, lane, request, error, created_at,
                              finished_at)
             VALUES ('fit5', 'f5', '0.1.0', 'failed', 'resnet18', 'sim:h200', 'simulated', '{asked}', '{{}}', 5, 6);
             INSERT INTO probe VALUES ('probe1', 'f1', 'resnet18', 'sim:h200', 8, 'fits', '{asked}', '{{}}', 7);"
        );
        rows += &others;
        older(&file, last, &rows).await;
        let database = file.to_str().unwrap();
        assert_ne!(Db::check(database).await.unwrap().behind, 0, "{last}");

        let db = Db::open(database).await.unwrap();

        for id in ["fit1", "fit2", "fit3", "fit5"] {
            let fit = db.fit(id).await.unwrap().unwrap();
            assert_eq!(fit.request.as_str(), asked, "{id} from {last}");
        }
        assert_eq!(
            db.fit("fit4").await.unwrap().unwrap().request.as_str(),
            "{}"
        );
        let probe = db.probe("probe1").await.unwrap().unwrap();
        assert_eq!(probe.request.as_str(), asked);
        let all = RecommendationFilter {
            limit: 10,
            ..RecommendationFilter::default()
        };
        let kept = db.recommendations(&all).await.unwrap().unwrap();
        assert_eq!(kept.items().len(), 2);
        let requests = db.texts("SELECT digest FROM request ORDER BY 1").await;
        assert_eq!(requests, ["fit1", "fit4"], "{last}: each text once");
        // What waited and what ran is taken up.
        assert_eq!(db.recover().await.unwrap(), 1);
        let lease = Lease {
            holder: &LeaseOwner::server("new"),
            until: Time(10),
        };
        let claimed = db
            .claim(ParallelSimulated(2), lease, Time(9))
            .await
            .unwrap();
        assert_eq!(claimed.unwrap().request.as_str(), asked);
        db.close().await;

        let again = Db::open(database).await.unwrap();
        again.close().await;
        let checked = Db::check(database).await.unwrap();
        assert_eq!((checked.damage, checked.behind), (Vec::new(), 0), "{last}");
        assert_eq!(checked.rows, [5, 1, 2, 0]);
    }
}

#[tokio::test]
async fn a_check_finds_rows_and_tables_that_no_migration_makes() {
    let directory = tempfile::tempdir().unwrap();
    for (number, (change, found)) in [
        ("DROP TABLE outcome", "the table outcome is not there as this version makes it"),
        ("DROP INDEX fit_of_state", "the index fit_of_state is not there as this version makes it"),
        (
            "DROP TABLE recommendation; CREATE VIEW recommendation AS SELECT 1 AS id",
            "the table recommendation is not there as this version makes it",
        ),
        (
            "ALTER TABLE fit ADD COLUMN colour TEXT",
            "the table fit is not there as this version makes it",
        ),
        (
            "PRAGMA ignore_check_constraints = ON; UPDATE recommendation SET micro_batch = -5",
            "a row of recommendation: CHECK constraint failed: ",
        ),
        (
            "PRAGMA ignore_check_constraints = ON; UPDATE fit SET result = NULL WHERE state = 'done'",
            "a row of fit: CHECK constraint failed: ",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let file = directory.path().join(format!("{number}.db"));
        older(&file, 3, &a_fit(1, "inference", "NULL")).await;
        let database = file.to_str().unwrap();
        let db = Db::open(database).await.unwrap();
        assert_eq!(Db::check(database).await.unwrap().damage, Vec::<String>::new());

        db.run(change).await.unwrap();
        db.close().await;

        let damage = Db::check(database).await.unwrap().damage;
        assert!(damage.iter().any(|it| it.starts_with(found)), "{found}: {damage:?}");
    }
}

/// One that a later version has written is left alone.
#[tokio::test]
async fn a_database_of_a_later_version_is_refused_and_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("new.db");
    let database = file.to_str().unwrap();
    let db = Db::open(database).await.unwrap();
    let later =
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                 VALUES (9999, 'later', 1, x'00', 1)";
    db.run(later).await.unwrap();
    // A backup is not in WAL mode.
    let backup = directory.path().join("backup.db");
    db.back_up(&backup).await.unwrap();
    db.close().await;
    assert_eq!(Db::check(database).await.unwrap().behind, -1);
    for file in [&file, &backup] {
        let before = std::fs::read(file).unwrap();

        let refused = Db::open(file.to_str().unwrap()).await.unwrap_err();

        assert!(refused.to_string().contains("later version"), "{refused}");
        assert_eq!(std::fs::read(file).unwrap(), before);
    }
}

#[tokio::test]
async fn what_a_killed_backup_left_is_removed_by_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("batchfit.db");
    let db = Db::open(file.to_str().unwrap()).await.unwrap();
    let [left, others] = [".copy.db.batchfit-backup", ".other.db.batchfit-backup"]
        .map(|name| directory.path().join(name));
    for left in [&left, &others] {
        std::fs::create_dir(left).unwrap();
        std::fs::write(left.join("copy.db"), "half of a copy").unwrap();
    }
    let running = std::fs::File::open(&left).unwrap();
    running.lock().unwrap();
    let copy = directory.path().join("copy.db");

    let refused = db.back_up(&copy).await.unwrap_err();
    assert!(
        format!("{refused:?}").contains("another backup"),
        "{refused:?}"
    );
    drop(running);
    db.back_up(&copy).await.unwrap();

    assert!(!left.exists() && others.exists() && copy.is_file());
    db.close().await;
}

#[tokio::test]
async fn each_fault_has_its_name() {
    let db = Db::open("sqlite::memory:").await.unwrap();
    let now = Time(1);

    // A disk that is full, as SQLite sees it.
    db.run("PRAGMA max_page_count = 1").await.unwrap();
    let overfull = db
        .run("CREATE TABLE more AS SELECT zeroblob(10000000)")
        .await
        .unwrap_err();
    assert_eq!(with_context("write")(overfull).fault(), Fault::Full);

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("batchfit.db");
    let db = Db::open_for_one(file.to_str().unwrap()).await.unwrap();
    let other = Db::open_for_one(file.to_str().unwrap()).await.unwrap();
    db.run("PRAGMA busy_timeout = 0").await.unwrap();
    let Pool::Sqlite(_, other) = &other.pool else {
        panic!("it is a file");
    };
    let mut locked = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    locked
        .execute("UPDATE readiness SET checked_at = 2")
        .await
        .unwrap();
    let refused = db.write_readiness(now).await.unwrap_err();
    assert_eq!(refused.fault(), Fault::Locked);
    locked.rollback().await.unwrap();
    // Connections that wait behind one that waits for the lock.
    let writes = db.pool.begin_alone("write").await.unwrap();
    tokio::time::pause();
    let refused = db.write_readiness(now).await.unwrap_err();
    assert_eq!(refused.fault(), Fault::Locked);
    tokio::time::resume();
    drop(writes);
    db.write_readiness(now).await.unwrap();

    db.run("PRAGMA query_only = 1").await.unwrap();
    let refused = db.write_readiness(now).await.unwrap_err();
    assert_eq!(refused.fault(), Fault::ReadOnly);
    db.run("PRAGMA query_only = 0").await.unwrap();

    if cfg!(target_os = "linux") {
        let lost = directory.path().join("lost.db");
        let db = Db::open_for_one(lost.to_str().unwrap()).await.unwrap();
        std::fs::remove_file(directory.path().join("lost.db-wal")).unwrap();
        for _ in 0..2 {
            let refused = db.write_readiness(now).await.unwrap_err();
            assert_eq!(refused.fault(), Fault::Gone);
        }
        // It is in the file itself now, whatever becomes of the process.
        let copy = directory.path().join("copy.db");
        std::fs::copy(&lost, &copy).unwrap();
        let copy = Db::open_for_one(copy.to_str().unwrap()).await.unwrap();
        assert_eq!(copy.last_noted().await.unwrap(), Some(now));
    }

    std::fs::remove_file(&file).unwrap();
    let refused = db.write_readiness(now).await.unwrap_err();
    assert_eq!(refused.fault(), Fault::Gone);
    // Another file in its place is not it.
    std::fs::write(&file, "").unwrap();
    assert_eq!(
        db.write_readiness(now).await.unwrap_err().fault(),
        Fault::Gone
    );

    let text = directory.path().join("text.db");
    std::fs::write(
        &text,
        "this is no database, as long as it may be".repeat(100),
    )
    .unwrap();
    let refused = Db::open(text.to_str().unwrap()).await.unwrap_err();
    assert_eq!(refused.fault(), Fault::Damaged);
    assert!(refused.to_string().contains("no database"), "{refused}");
}

#[tokio::test]
async fn tables_on_which_no_version_starts_are_damaged() {
    let directory = tempfile::tempdir().unwrap();
    for (number, (set, expected)) in [
        ("success = 0", "migration 3 was applied in part"),
        ("checksum = x'00'", "migration 3 is another"),
        ("version = 9999", "migration 3 was never applied"),
    ]
    .into_iter()
    .enumerate()
    {
        let file = directory.path().join(format!("{number}.db"));
        let change = format!("UPDATE _sqlx_migrations SET {set} WHERE version = 3");
        older(&file, 5, &change).await;
        let database = file.to_str().unwrap();

        let damage = Db::check(database).await.unwrap().damage;

        assert!(damage[0].starts_with(expected), "{damage:?}");
        Db::open(database).await.unwrap_err();
    }
}

/// What an answer left free for its own doubts began what others left free.
#[tokio::test]
async fn what_no_miss_asked_for_is_not_learnt_any_more() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("old.db");
    let rows = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 6)
         INSERT INTO learnt (id, model_digest, model, gpu, source, strategy, driver, pytorch, share, raised, needed, has_sunk, agreed,
             outcomes, misses, refused, peaks, error_sum, error_most, updated_at, changed)
         SELECT n, 'm' || n, 'mine', 'NVIDIA H200', 'simulated', 'none', '', '2.11', 115000, 0, 0, n = 5, 0, 1, 1, 0, 0, 0, 0, 1, n FROM n;
         INSERT INTO teller (learnt, owner, missed, agreed) VALUES (2, 'one', 150000, 0), (3, 'one', 150000, 0), (3, 'two', 36000, 0),
             (4, '', 36000, 0), (5, 'one', 0, 0), (6, 'one', 150000, 0), (6, 'two', 140000, 0);";
    older(&file, 41, rows).await;

    let db = Db::open(file.to_str().unwrap()).await.unwrap();

    let rows = db.learnt_rows(None, None, 9).await.unwrap();
    let shares: Vec<i64> = rows.iter().map(|row| row.share).collect();
    assert_eq!(shares, [5_000, 5_000, 36_000, 36_000, 115_000, 115_000]);
}
