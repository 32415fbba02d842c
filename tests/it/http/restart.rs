//! What survives the end of a server.

use std::sync::atomic::Ordering;

use batchfit::jobs::EngineError;
use sqlx::Executor as _;

use super::scripted::{Gate, Outcome, Scripted};
use super::storage::second_connection;
use super::{RESNET, RESNET_8, Service};

#[tokio::test]
async fn answers_survive_a_restart() {
    let first = Service::start(Scripted::default()).await;
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
    let first = Service::start(Scripted::behind(&gate)).await;
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
    let service = Service::start(Scripted::behind(&gate)).await;
    let fit = service.post("/v1/fits", RESNET).await;
    gate.arrival().await;
    // As another server does that takes it.
    let mut other = second_connection(&service).await;
    let taken = other.execute("UPDATE fit SET attempts = attempts + 1, holder = 'server another'");
    taken.await.unwrap();

    gate.open();
    service.stop().await;

    let after = service.get(fit.header("location")).await.json();
    assert_eq!(after["state"], "running", "{after}");
    let stored = service.get("/v1/recommendations").await.json();
    assert_eq!(stored["items"], serde_json::json!([]));
}

#[tokio::test]
async fn a_fit_survives_any_number_of_servers_and_runs_apart_from_the_second_on() {
    let gate = Gate::closed();
    let first = Service::start(Scripted::behind(&gate)).await;
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
    let first = Service::start(Scripted::behind(&gate)).await;
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
    let first = Service::start(Scripted::behind(&gate)).await;
    let fit = first.post("/v1/fits", RESNET).await;
    gate.arrival().await;

    first.stop().await;

    let left = first.get(fit.header("location")).await.json();
    assert_eq!(left["state"], "queued");
    assert_eq!(left["started_at"], serde_json::Value::Null);
    let engine = Scripted::default();
    let second = first.after_a_crash(engine.clone()).await;
    assert_eq!(second.ended(&fit.id()).await["state"], "done");
    assert_eq!(engine.fits.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_answer_of_before_fits_says_whether_it_fits() {
    let service = Service::start(Scripted::default()).await;
    let done = service.post_and_wait("/v1/fits", RESNET).await;
    let older = "UPDATE fit SET result = json_remove(result, '$.recommendation.fits', '$.variants[0].recommendation.fits')";
    second_connection(&service)
        .await
        .execute(older)
        .await
        .unwrap();

    let read = service.get(done.header("location")).await.json();

    assert_eq!(read["result"]["recommendation"]["fits"], true, "{read}");
    assert_eq!(
        read["result"]["variants"][0]["recommendation"]["fits"],
        true
    );
}
