//! Several servers on one database of PostgreSQL, which `BATCHFIT_TEST_POSTGRES` names: `tests/service/postgres.sh` starts one, and runs
//! these tests and most of the others with it. Each service has a schema of its own there.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::Request;
use batchfit::jobs::{Engine, FitEngine, Limits, UploadLimits};
use serde_json::Value;
use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::scripted::{Gate, Scripted};
use super::storage::second_connection;
use super::{Answer, RESNET, RESNET_8, Service};
use crate::wait::{self, HANG};

/// The server's URL.
#[expect(clippy::disallowed_methods, reason = "a test has no flags")]
fn server() -> Option<String> {
    std::env::var("BATCHFIT_TEST_POSTGRES").ok()
}

/// The schema that belongs to a folder.
fn schema(directory: &TempDir) -> String {
    let name = directory.path().file_name().unwrap().to_string_lossy();
    let name = name.bytes().map(|byte| format!("{byte:02x}"));
    format!("folder_{}", name.collect::<String>())
}

/// A file in this folder, or a schema of PostgreSQL.
pub(super) async fn database(directory: &TempDir) -> String {
    let Some(server) = server() else {
        return directory
            .path()
            .join("batchfit.db")
            .to_str()
            .unwrap()
            .to_owned();
    };
    let schema = schema(directory);
    run(&server, format!("CREATE SCHEMA IF NOT EXISTS {schema}")).await;
    let joint = if server.contains('?') { '&' } else { '?' };
    format!("{server}{joint}options=-csearch_path%3D{schema}")
}

/// Drops the schema of a folder.
pub(super) fn forget(directory: &TempDir) {
    let Some(server) = server() else { return };
    let statement = format!("DROP SCHEMA IF EXISTS {} CASCADE", schema(directory));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let mut connection = PgConnection::connect(&server).await.unwrap();
            // What the service was at may hold a table of it: of two that wait for each other PostgreSQL ends one, and that may be this.
            while let Err(error) = connection.execute(AssertSqlSafe(statement.clone())).await {
                let code = error.as_database_error().and_then(DatabaseError::code);
                assert_eq!(code.as_deref(), Some("40P01"), "{error}");
            }
            connection.close().await.unwrap();
        });
    })
    .join()
    .unwrap();
}

/// Changes rows behind the back of a service.
pub(super) async fn change(service: &Service, statement: impl Into<String>) {
    let (database, statement) = (database(&service.directory).await, statement.into());
    if server().is_some() {
        return run(&database, statement).await;
    }
    let mut other = second_connection(service).await;
    other.execute(AssertSqlSafe(statement)).await.unwrap();
}

async fn run(server: &str, statement: String) {
    let mut connection = PgConnection::connect(server).await.unwrap();
    connection.execute(AssertSqlSafe(statement)).await.unwrap();
    connection.close().await.unwrap();
}

/// Leases that no server loses, however slow it is.
fn limits() -> Limits {
    Limits {
        simulated_in_parallel: 2,
        lease: HANG,
        uploads: UploadLimits::USUAL,
        ..Limits::default()
    }
}

/// Two servers on one database.
async fn two(first: impl Engine + 'static, second: impl Engine + 'static) -> [Service; 2] {
    assert!(server().is_some(), "BATCHFIT_TEST_POSTGRES names no server");
    let directory = Arc::new(TempDir::new().unwrap());
    let first = Service::on(Arc::clone(&directory), first, limits()).await;
    let second = Service::on(directory, second, limits()).await;
    [first, second]
}

/// Waits until what is at this path is so.
async fn becomes(service: &Service, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    wait::until_some_async(path, async || {
        let document = service.get(path).await.json();
        is_so(&document).then_some(document)
    })
    .await
}

#[tokio::test]
#[ignore = "needs PostgreSQL: tests/service/postgres.sh"]
async fn what_one_server_runs_is_seen_followed_and_waited_for_at_another() {
    let gate = Gate::closed();
    let [first, second] = two(Scripted::behind(&gate), Scripted::behind(&gate)).await;
    let path = first
        .post("/v1/fits", RESNET)
        .await
        .header("location")
        .to_owned();
    gate.arrival().await;

    // Whichever of them runs it.
    for service in [&first, &second] {
        let seen = becomes(service, &path, |fit| !fit["progress"].is_null()).await;
        assert_eq!(seen["progress"]["batch"], 64);
        assert_eq!(seen["state"], "running");
    }
    let mut asking = JoinSet::new();
    for router in [first.router.clone(), second.router.clone()] {
        let request = |path: String, prefer| {
            let request = Request::get(path).header("prefer", prefer);
            request.body(Body::empty()).unwrap()
        };
        let waits = request(path.clone(), "wait=20");
        let follows = request(format!("{path}/events"), "");
        asking.spawn(async move {
            let waited = tower::ServiceExt::oneshot(router.clone(), waits)
                .await
                .unwrap();
            let followed = tower::ServiceExt::oneshot(router, follows).await.unwrap();
            (Answer::read(waited).await, Answer::read(followed).await)
        });
    }
    gate.open();

    while let Some(answers) = asking.join_next().await {
        let (waited, followed) = answers.unwrap();
        let done = if waited.json()["state"] == "done" {
            waited.json()
        } else {
            becomes(&first, &path, |fit| fit["state"] == "done").await
        };
        let last = followed.text.rsplit("data: ").next().unwrap();
        let told: Value = serde_json::from_str(last.trim()).unwrap();
        assert_eq!(told, done, "{}", followed.text);
        assert!(
            followed.text.contains(r#"{"state":"running"}"#),
            "{}",
            followed.text
        );
    }
}

#[tokio::test]
#[ignore = "needs PostgreSQL: tests/service/postgres.sh"]
async fn a_fit_is_cancelled_at_another_server_than_its_own() {
    let gate = Gate::closed();
    let [first, second] = two(Scripted::behind(&gate), Scripted::behind(&gate)).await;

    for service in [&first, &second, &first, &second] {
        let path = first
            .post("/v1/fits", RESNET)
            .await
            .header("location")
            .to_owned();
        gate.arrival().await;
        assert_eq!(service.delete(&path).await.status, 200);
        gate.cancellation().await;
        for service in [&first, &second] {
            assert_eq!(service.get(&path).await.json()["state"], "cancelled");
        }
    }
}

#[tokio::test]
#[ignore = "needs PostgreSQL: tests/service/postgres.sh"]
async fn a_question_has_one_answer_wherever_it_is_asked() {
    let gate = Gate::closed();
    let engine = Scripted::behind(&gate);
    let services = two(engine.clone(), engine.clone()).await;
    let mut asking = JoinSet::new();
    for number in 0..40 {
        let router = services[number % 2].router.clone();
        // Half of them under one name of the client's own.
        let body = if number < 20 { RESNET } else { RESNET_8 };
        let mut request = Request::post("/v1/fits");
        if number >= 20 {
            request = request.header("idempotency-key", "launch");
        }
        let request = request.body(Body::from(body)).unwrap();
        asking.spawn(async move {
            let answer = tower::ServiceExt::oneshot(router, request).await.unwrap();
            (body, Answer::read(answer).await)
        });
    }
    let mut ids = [Vec::new(), Vec::new()];
    while let Some(answer) = asking.join_next().await {
        let (body, answer) = answer.unwrap();
        assert!(answer.status < 300, "{}", answer.text);
        ids[usize::from(body == RESNET_8)].push(answer.id());
    }
    gate.open();

    for ids in &mut ids {
        ids.dedup();
        assert_eq!(ids.len(), 1, "{ids:?}");
        let path = format!("/v1/fits/{}", ids[0]);
        becomes(&services[1], &path, |fit| fit["state"] == "done").await;
    }
    assert_eq!(engine.fits.load(Ordering::Relaxed), 2);
    // What was learnt of one question is read by both.
    let all = services[1].get("/v1/recommendations").await.json();
    assert_eq!(all, services[0].get("/v1/recommendations").await.json());
    assert_eq!(all["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
#[ignore = "needs PostgreSQL: tests/service/postgres.sh"]
async fn all_servers_work_on_the_queue_and_each_fit_is_begun_once() {
    let gates = [Gate::closed(), Gate::closed()];
    let engines = gates.each_ref().map(Scripted::behind);
    let [first, second] = two(engines[0].clone(), engines[1].clone()).await;
    let mut paths = Vec::new();
    for gib in 1..=60 {
        let body = RESNET.replace("12GiB", &format!("{gib}GiB"));
        let queued = first.post("/v1/fits", body).await;
        assert!(queued.status < 300, "{}", queued.text);
        paths.push(queued.header("location").to_owned());
    }
    for gate in &gates {
        gate.arrival().await;
    }
    for gate in &gates {
        gate.open();
    }
    for path in &paths {
        becomes(&second, path, |fit| fit["state"] == "done").await;
    }

    let begun = engines.map(|engine| engine.fits.load(Ordering::Relaxed));
    assert_eq!(begun.iter().sum::<u32>(), 60);
}

#[tokio::test]
#[ignore = "needs PostgreSQL: tests/service/postgres.sh"]
async fn a_server_that_ends_leaves_its_fits_to_the_others() {
    let gate = Gate::closed();
    let [first, second] = two(Scripted::behind(&gate), Scripted::default()).await;
    // More than either runs at a time.
    let mut paths = Vec::new();
    for gib in 1..=12 {
        let body = RESNET.replace("12GiB", &format!("{gib}GiB"));
        paths.push(
            first
                .post("/v1/fits", body)
                .await
                .header("location")
                .to_owned(),
        );
    }
    gate.arrival().await;

    first.stop().await;

    for path in &paths {
        becomes(&second, path, |fit| fit["state"] == "done").await;
    }
}

#[tokio::test]
#[ignore = "needs PostgreSQL: tests/service/postgres.sh"]
async fn a_missing_card_is_simulated_by_any_server() {
    let engine = || FitEngine::new(PathBuf::from(env!("CARGO_BIN_EXE_batchfit")));
    let [first, second] = two(engine(), engine()).await;
    let body = RESNET.replace("sim:h200", "l4");

    let queued = first.post("/v1/fits", body).await;

    assert_eq!(queued.status, 202, "{}", queued.text);
    let path = queued.header("location").to_owned();
    becomes(&second, &path, |fit| fit["state"] == "done").await;
}
