//! The database in operation: copies, checks, old rows, and what happens to its file.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use batchfit::jobs::{EngineError, Limits, UploadLimits};
use batchfit::store::{Db, Ownership};
use sqlx::Executor as _;
use tempfile::TempDir;

use super::scripted::{Gate, Outcome, Scripted};
use super::storage::second_connection;
use super::{RESNET, RESNET_8, Service};
use crate::wait;

fn db(database: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_batchfit"));
    command
        .arg("db")
        .args(arguments)
        .arg("--database")
        .arg(database);
    command.output().unwrap()
}

fn output_text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    format!("{out}{err}")
}

fn mode(file: &Path) -> u32 {
    fs::metadata(file).unwrap().permissions().mode() & 0o777
}

/// Makes all that has ended two days old, and drops what is older than one.
async fn prune_later(service: &Service) -> String {
    let age = "UPDATE fit SET finished_at = finished_at - 172800000; UPDATE probe SET created_at = created_at - 172800000";
    second_connection(service).await.execute(age).await.unwrap();
    output_text(&prune(service))
}

fn prune(service: &Service) -> Output {
    db(&file(service), &["prune", "--older-than-days", "1"])
}

fn file(service: &Service) -> std::path::PathBuf {
    service.directory.path().join("batchfit.db")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_service_at_work_is_whole_and_private() {
    let service = Service::start(Scripted::default()).await;
    let done = service.post_and_wait("/v1/fits", RESNET).await;
    let copy = service.directory.path().join("copy.db");
    let (from, to) = (file(&service), copy.to_str().unwrap());

    let made = db(&from, &["backup", to]);
    assert!(made.status.success(), "{}", output_text(&made));
    let again = db(&from, &["backup", to]);
    assert_eq!(again.status.code(), Some(1));
    assert!(
        output_text(&again).contains("there is a file of that name"),
        "{}",
        output_text(&again)
    );
    assert_eq!(mode(&copy), 0o600);
    // Nothing is left beside it.
    let left = fs::read_dir(service.directory.path()).unwrap();
    let left = left.filter(|file| {
        let name = file.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with(".batchfit-backup")
    });
    assert_eq!(left.count(), 0);

    let checked = db(&copy, &["check"]);
    assert!(checked.status.success(), "{}", output_text(&checked));
    assert!(
        output_text(&checked).contains("ok: 1 fits"),
        "{}",
        output_text(&checked)
    );
    let restored = Db::open(to).await.unwrap();
    assert!(restored.fit(&done.id()).await.unwrap().is_some());
    let nowhere = db(&from, &["backup", "/nowhere/copy.db"]);
    assert!(
        output_text(&nowhere).contains("/nowhere/copy.db"),
        "{}",
        output_text(&nowhere)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_their_owners_alone() {
    let service = Service::start(Scripted::default()).await;
    service.post_and_wait("/v1/fits", RESNET).await;
    let file = file(&service);
    for suffix in ["", "-wal", "-shm"] {
        let name = format!("{}{suffix}", file.display());
        assert_eq!(mode(Path::new(&name)), 0o600, "{name}");
    }
    // One that an earlier version left open to all.
    let old = service.directory.path().join("old.db");
    fs::write(&old, "").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o644)).unwrap();
    let _owner = Ownership::take(old.to_str().unwrap()).unwrap();
    let _db = Db::open(old.to_str().unwrap()).await.unwrap();
    assert_eq!(mode(&old), 0o600);
    let lock = service.directory.path().join("old.db.lock");
    assert_eq!(mode(&lock), 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_long_ago_is_dropped_and_nothing_else() {
    let gate = Gate::closed();
    let service = Service::start(Scripted::behind(&gate)).await;
    let running = service.post("/v1/fits", RESNET).await;
    gate.arrival().await;
    let kept = prune_later(&service).await;
    assert!(kept.contains("dropped 0 fits, 0 probes"), "{kept}");

    gate.open();
    service.ended(&running.id()).await;
    let other = service.post_and_wait("/v1/fits", RESNET_8).await;
    service.post("/v1/probes", PROBE).await;
    let recent = output_text(&prune(&service));
    assert!(recent.contains("dropped 0 fits"), "{recent}");
    let all = prune_later(&service).await;
    assert!(
        all.contains("dropped 2 fits, 1 probes, 0 runs and 3 requests"),
        "{all}"
    );

    assert_eq!(service.get(other.header("location")).await.status, 404);
    assert_eq!(
        service.get("/v1/recommendations").await.json()["items"],
        serde_json::json!([])
    );
    // It is asked again, as if never before.
    let again = service.post_and_wait("/v1/fits", RESNET).await;
    assert_eq!(again.json()["state"], "done");
    let smaller = db(&file(&service), &["vacuum"]);
    assert!(smaller.status.success(), "{}", output_text(&smaller));
    assert_eq!(service.get(again.header("location")).await.status, 200);
}

const PROBE: &str = r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "batch": 64}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_service_drops_what_it_is_not_to_keep() {
    let first = Service::start(Scripted::default()).await;
    let done = first.post_and_wait("/v1/fits", RESNET).await;
    first.stop().await;

    let limits = Limits {
        retention: Some(Duration::ZERO),
        // Or it looks again after ten minutes.
        uploads: UploadLimits {
            expiry: Duration::ZERO,
            ..UploadLimits::USUAL
        },
        ..Limits::default()
    };
    let second = Service::on(Arc::clone(&first.directory), Scripted::default(), limits).await;
    wait::until_async("the fit to be dropped", async || {
        second.get(done.header("location")).await.status == 404
    })
    .await;
}

/// What would be written to a deleted file is written to the one that is put back.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_moved_away_loses_nothing() {
    let gate = Gate::closed();
    let service = Service::start(Scripted::behind(&gate)).await;
    let fit = service.post("/v1/fits", RESNET).await;
    gate.arrival().await;
    let (here, away) = (file(&service), service.directory.path().join("away.db"));
    fs::rename(&here, &away).unwrap();

    gate.open();
    let refused = service.post("/v1/fits", RESNET_8).await;
    assert_eq!(refused.status, 503);
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("moved or deleted"), "{detail}");
    assert_eq!(service.get("/readyz").await.status, 503);

    fs::rename(&away, &here).unwrap();
    assert_eq!(service.ended(&fit.id()).await["state"], "done");
    assert_eq!(
        service.post_and_wait("/v1/fits", RESNET_8).await.status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_found_and_named() {
    let directory = TempDir::new().unwrap();
    let no_file = directory.path().join("none.db");
    for command in [
        &["check"][..],
        &["vacuum"],
        &["prune", "--older-than-days", "1"],
    ] {
        let missing = db(&no_file, command);
        assert_eq!(missing.status.code(), Some(1), "{command:?}");
        assert!(!no_file.exists(), "{command:?} makes no database");
    }
    let no_database = directory.path().join("text.db");
    fs::write(
        &no_database,
        "no database, but longer than a header of one has to be, surely".repeat(50),
    )
    .unwrap();
    for command in [&["check"][..], &["vacuum"]] {
        let wrong = db(&no_database, command);
        assert_eq!(wrong.status.code(), Some(1));
        assert!(
            output_text(&wrong).contains("not a database"),
            "{}",
            output_text(&wrong)
        );
    }

    let service = Service::start(Scripted::default()).await;
    for limit in 4..40 {
        let body = RESNET.replace("12GiB", &format!("{limit}GiB"));
        service.post("/v1/fits", body).await;
    }
    service.post_and_wait("/v1/fits", RESNET).await;
    service.stop().await;
    let copy = directory.path().join("damaged.db");
    let made = db(&file(&service), &["backup", copy.to_str().unwrap()]);
    assert!(made.status.success(), "{}", output_text(&made));
    let mut bytes = fs::read(&copy).unwrap();
    let pages = bytes.len() / 4096;
    for page in pages / 2..pages {
        bytes[page * 4096..page * 4096 + 64].fill(0xff);
    }
    fs::write(&copy, bytes).unwrap();
    let damaged = db(&copy, &["check"]);
    assert_eq!(damaged.status.code(), Some(1), "{}", output_text(&damaged));
    assert!(
        output_text(&damaged).contains("is damaged"),
        "{}",
        output_text(&damaged)
    );
    // The original is whole.
    assert!(db(&file(&service), &["check"]).status.success());
}

/// A request of a fit is stored once, however often it is asked.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_stored_once() {
    let broken = EngineError::DeviceFailed {
        device: "sim:h200".to_owned(),
        cause: "signal 9".to_owned(),
    };
    let service = Service::start(Scripted::that(Outcome::Fails(broken))).await;
    for _ in 0..5 {
        let failed = service.post_and_wait("/v1/fits", RESNET).await;
        let asked: serde_json::Value = serde_json::from_str(RESNET).unwrap();
        assert_eq!(failed.json()["request"], asked);
    }
    let counted = prune_later(&service).await;
    assert!(
        counted.contains("dropped 5 fits, 0 probes, 0 runs and 1 requests"),
        "{counted}"
    );
}
