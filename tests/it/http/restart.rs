//! What survives the end of a server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use batchfit::http::serve;
use batchfit::jobs::{EngineError, Limits};
use batchfit::store::Db;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::scripted::{Gate, Outcome, Scripted};
use super::{RESNET, RESNET_8, Service};

#[tokio::test]
async fn answers_survive_a_restart() {
    let first = Service::to_crash(Scripted::default()).await;
    let fit = first.post_and_wait("/v1/fits", RESNET).await;
    let recommendations = first.get("/v1/recommendations").await;
    first.stop().await;

    let second = first.after_a_crash(Scripted::default()).await;

    assert_eq!(second.get(fit.header("location")).await.json(), fit.json());
    let read = second.get("/v1/recommendations").await;
    assert_eq!(read.json(), recommendations.json());
}

#[tokio::test]
async fn a_fit_under_way_is_finished_by_the_next_server() {
    let gate = Gate::closed();
    let first = Service::to_crash(Scripted::behind(&gate)).await;
    let fit = first.post("/v1/fits", RESNET).await;
    gate.arrival().await;

    let second = first.after_a_crash(Scripted::default()).await;
    let done = second.post_and_wait("/v1/fits", RESNET).await;

    assert_eq!(done.id(), fit.id());
    assert_eq!(done.json()["state"], "done");
}

#[tokio::test]
async fn an_attempt_that_was_overtaken_stores_nothing() {
    let gate = Gate::closed();
    let first = Service::to_crash(Scripted::behind(&gate)).await;
    first.post("/v1/fits", RESNET).await;
    gate.arrival().await;
    let second = first.after_a_crash(Scripted::default()).await;
    let done = second.post_and_wait("/v1/fits", RESNET).await;

    gate.open();
    first.stop().await;

    let after = second.get(done.header("location")).await;
    assert_eq!(after.json(), done.json());
    let recommendations = second.get("/v1/recommendations").await;
    assert_eq!(recommendations.json()["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_fit_survives_any_number_of_servers_and_runs_apart_from_the_second_on() {
    let gate = Gate::closed();
    let first = Service::to_crash(Scripted::behind(&gate)).await;
    let fit = first.post("/v1/fits", RESNET).await;
    gate.arrival().await;
    let second = first.after_a_crash(Scripted::behind(&gate)).await;
    gate.arrival().await;
    let third = second.after_a_crash(Scripted::behind(&gate)).await;
    gate.arrival().await;
    let fourth = third.after_a_crash(Scripted::behind(&gate)).await;
    gate.arrival().await;

    let engine = Scripted::default();
    let fifth = fourth.after_a_crash(engine.clone()).await;

    let done = fifth.post_and_wait("/v1/fits", RESNET).await;
    assert_eq!(done.id(), fit.id());
    assert_eq!(done.json()["state"], "done");
    assert_eq!(engine.apart.load(Ordering::Relaxed), 1);
    // Others share the server's process as before.
    fifth.post_and_wait("/v1/fits", RESNET_8).await;
    assert_eq!(engine.fits.load(Ordering::Relaxed), 2);
    assert_eq!(engine.apart.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_fit_whose_own_processes_died_fails() {
    let gate = Gate::closed();
    let first = Service::to_crash(Scripted::behind(&gate)).await;
    first.post("/v1/fits", RESNET).await;
    gate.arrival().await;
    let died = EngineError::Died {
        cause: "ended (signal: 11)".to_owned(),
    };
    let engine = Scripted::that(Outcome::Fails(died));
    let second = first.after_a_crash(engine.clone()).await;

    let failed = second.post_and_wait("/v1/fits", RESNET).await.json();

    // The question was found under way, or asked again when it had failed; then it ran apart from the start.
    assert_eq!(failed["state"], "failed", "{failed}");
    assert_eq!(failed["error"]["code"], "interrupted");
    assert_eq!(
        engine.apart.load(Ordering::Relaxed),
        engine.fits.load(Ordering::Relaxed)
    );
}

#[tokio::test]
async fn an_orderly_end_puts_running_fits_back() {
    let gate = Gate::closed();
    let first = Service::to_crash(Scripted::behind(&gate)).await;
    let fit = first.post("/v1/fits", RESNET).await;
    gate.arrival().await;

    first.stop().await;

    let left = first.get(fit.header("location")).await.json();
    assert_eq!(left["state"], "queued");
    assert_eq!(left["started_at"], serde_json::Value::Null);
    let engine = Scripted::default();
    let second = first.after_a_crash(engine.clone()).await;
    let done = second.jobs.wait(&fit.id(), super::DEADLINE).await.unwrap();
    assert!(done.unwrap().result.is_some());
    assert_eq!(engine.fits.load(Ordering::Relaxed), 1);
}

/// Over a socket, with a fit that never ends and a client that waits for it.
#[tokio::test]
async fn the_service_ends_within_a_second() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("batchfit.db");
    let db = Db::open(file.to_str().unwrap()).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let engine = Scripted::that(Outcome::Hangs);
    let fits = Arc::clone(&engine.fits);
    let mut serving = JoinSet::new();
    serving.spawn(serve(
        listener,
        db,
        Arc::new(engine),
        Limits::default(),
        shutdown.clone(),
    ));
    let mut client = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "POST /v1/fits HTTP/1.1\r\nhost: localhost\r\nprefer: wait=60\r\ncontent-length: {}\r\n\r\n{RESNET}",
        RESNET.len()
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let begun = async {
        while fits.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let long = Duration::from_mins(1);
    tokio::time::timeout(long, begun).await.expect("it begins");

    let asked = Instant::now();
    shutdown.cancel();
    serving.join_next().await.unwrap().unwrap().unwrap();

    assert!(
        asked.elapsed() < Duration::from_secs(1),
        "{:?}",
        asked.elapsed()
    );
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 202 Accepted"), "{answer}");
}
