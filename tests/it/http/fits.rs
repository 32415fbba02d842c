//! `/v1/fits`.

use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::Request;
use batchfit::jobs::{EngineError, Limits};

use super::scripted::{Gate, Outcome, Scripted};
use super::{RESNET, RESNET_8, Service, assert_answer};

#[tokio::test]
async fn a_new_fit_is_accepted_and_can_be_followed() {
    let gate = Gate::closed();
    let service = Service::start(Scripted::behind(&gate)).await;

    let accepted = service.post("/v1/fits", RESNET).await;
    assert_eq!(
        accepted.header("location"),
        format!("/v1/fits/{}", accepted.id())
    );
    assert_eq!(accepted.status, 202);

    gate.arrival().await;
    assert_answer!(service.get(accepted.header("location")).await);
}

#[tokio::test]
async fn waiting_gives_the_finished_fit() {
    let service = Service::start(Scripted::default()).await;

    let done = service.post_and_wait("/v1/fits", RESNET).await;

    assert_answer!(done);
    assert_eq!(
        service.get(done.header("location")).await.json(),
        done.json()
    );
}

#[tokio::test]
async fn waiting_in_vain_gives_the_fit_as_it_stands() {
    let gate = Gate::closed();
    let service = Service::start(Scripted::behind(&gate)).await;

    let request = Request::post("/v1/fits").header("prefer", "wait=1");
    let answer = service
        .send(request.body(Body::from(RESNET)).unwrap())
        .await;

    assert_answer!(answer);
}

#[tokio::test]
async fn the_same_question_is_the_same_fit() {
    let gate = Gate::closed();
    let engine = Scripted::behind(&gate);
    let service = Service::start(engine.clone()).await;

    let first = service.post("/v1/fits", RESNET).await;
    let while_running = service.post("/v1/fits", RESNET).await;
    gate.open();
    let once_done = service.post_and_wait("/v1/fits", RESNET).await;
    let afterwards = service.post("/v1/fits", RESNET).await;

    assert_eq!(first.id(), while_running.id());
    assert_eq!(first.id(), once_done.id());
    assert_eq!(first.id(), afterwards.id());
    assert_eq!(afterwards.json()["state"], "done");
    assert_eq!(engine.fits.load(Ordering::Relaxed), 1);
}

/// An equal question by another document gets the known answer, and keeps its own words.
#[tokio::test]
async fn an_equal_question_in_other_words_has_its_own_document() {
    let gate = Gate::closed();
    let engine = Scripted::behind(&gate);
    let limits = Limits {
        simulated_in_parallel: 1,
        ..Limits::default()
    };
    let service = Service::limited(engine.clone(), limits).await;
    let layers = |comma: &str, classes: u64| {
        format!(
            r#"{{"model": {{"layers": [{{"type": "linear", "out_features": {classes}{comma}}}], "input": {{"shape": [8]}}, "loss": "cross_entropy"}},
                "device": "sim:h200", "memory_limit": {}}}"#,
            if comma.is_empty() {
                "\"8GiB\""
            } else {
                "8589934592"
            }
        )
    };

    let other = layers(r#", "bias": true"#, 4);
    service.post("/v1/fits", layers("", 4)).await;
    service.post("/v1/fits", other.clone()).await;
    gate.open();
    let first = service.post_and_wait("/v1/fits", layers("", 4)).await;
    let other = service.post_and_wait("/v1/fits", other).await;
    let again = service
        .post_and_wait("/v1/fits", layers(r#",   "bias":true"#, 4))
        .await;

    assert_eq!(engine.fits.load(Ordering::Relaxed), 1);
    assert_ne!(first.id(), other.id());
    assert_eq!(other.id(), again.id());
    assert_eq!(first.json()["result"], other.json()["result"]);
    let kept = service.get(other.header("location")).await.json();
    assert_eq!(kept["request"]["memory_limit"], 8_589_934_592_u64);
    assert_eq!(kept["request"]["model"]["layers"][0]["bias"], true);
    let items = service.get("/v1/fits").await.json()["items"].clone();
    assert_ne!(items[0]["model"], items[1]["model"]);
    let nearest = service
        .post("/v1/recommendations/nearest", layers("", 4))
        .await
        .json();
    assert_eq!(nearest["recommendation"]["model"], items[1]["model"]);
}

#[tokio::test]
async fn a_failed_request_runs_again() {
    let broken = EngineError::DeviceFailed {
        device: "sim:h200".to_owned(),
        cause: "the worker ended with signal 9 during batch 64".to_owned(),
    };
    let service = Service::start(Scripted::that(Outcome::Fails(broken))).await;

    let first = service.post_and_wait("/v1/fits", RESNET).await;
    let second = service.post_and_wait("/v1/fits", RESNET).await;

    assert_ne!(first.id(), second.id());
    assert_answer!(first);
}

#[tokio::test]
async fn a_panic_fails_the_fit_and_nothing_else() {
    let service = Service::start(Scripted::that(Outcome::Panics)).await;

    let failed = service.post_and_wait("/v1/fits", RESNET).await;

    assert_eq!(failed.json()["state"], "failed");
    assert_eq!(failed.json()["error"]["code"], "internal");
    assert_eq!(service.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_full_queue_refuses_more() {
    let gate = Gate::closed();
    let limits = Limits {
        queued: 1,
        simulated_in_parallel: 1,
        ..Limits::default()
    };
    let service = Service::limited(Scripted::behind(&gate), limits).await;
    let running = service.post("/v1/fits", RESNET).await;
    gate.arrival().await;
    let waiting = service.post("/v1/fits", RESNET_8).await;

    let third = RESNET.replace("12GiB", "4GiB");
    let refused = service.post("/v1/fits", third.clone()).await;
    assert_answer!(refused);

    gate.open();
    for id in [running.id(), waiting.id()] {
        service.ended(&id).await;
    }
    assert_eq!(service.post("/v1/fits", third).await.status, 202);
}

#[tokio::test]
async fn a_running_fit_can_be_cancelled() {
    let gate = Gate::closed();
    let limits = Limits {
        queued: 10,
        simulated_in_parallel: 1,
        ..Limits::default()
    };
    let service = Service::limited(Scripted::behind(&gate), limits).await;
    let first = service.post("/v1/fits", RESNET).await;
    gate.arrival().await;
    service.post("/v1/fits", RESNET_8).await;

    let cancelled = service.delete(first.header("location")).await;
    let again = service.delete(first.header("location")).await;

    assert_answer!(cancelled);
    assert_eq!(again.json(), cancelled.json());
    // Its place is free for the next.
    gate.arrival().await;
}

#[tokio::test]
async fn a_waiting_fit_can_be_cancelled() {
    let gate = Gate::closed();
    let limits = Limits {
        queued: 10,
        simulated_in_parallel: 1,
        ..Limits::default()
    };
    let engine = Scripted::behind(&gate);
    let service = Service::limited(engine.clone(), limits).await;
    let first = service.post("/v1/fits", RESNET).await;
    gate.arrival().await;
    let second = service.post("/v1/fits", RESNET_8).await;

    let cancelled = service.delete(second.header("location")).await;
    gate.open();
    service.ended(&first.id()).await;
    service.stop().await;

    assert_eq!(cancelled.json()["state"], "cancelled");
    assert_eq!(engine.fits.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_finished_fit_cannot_be_cancelled() {
    let service = Service::start(Scripted::default()).await;
    let done = service.post_and_wait("/v1/fits", RESNET).await;

    assert_answer!(service.delete(done.header("location")).await);
}

#[tokio::test]
async fn fits_are_listed_newest_first_in_pages() {
    let service = Service::start(Scripted::default()).await;
    let older = service.post_and_wait("/v1/fits", RESNET).await;
    let newer = service.post_and_wait("/v1/fits", RESNET_8).await;

    let first = service.get("/v1/fits?limit=1&state=done").await;
    let next = first.json()["next"].as_str().unwrap().to_owned();
    let second = service
        .get(&format!("/v1/fits?limit=1&state=done&cursor={next}"))
        .await;
    let failed = service.get("/v1/fits?state=failed").await;

    assert_answer!(first);
    assert_eq!(first.json()["items"][0]["id"], newer.id());
    assert_eq!(second.json()["items"][0]["id"], older.id());
    assert_eq!(second.json()["next"], serde_json::Value::Null);
    assert_eq!(failed.json()["items"], serde_json::json!([]));
}

#[tokio::test]
async fn an_unknown_fit_is_not_found() {
    let service = Service::start(Scripted::default()).await;

    assert_answer!(service.get("/v1/fits/nothing").await);
    assert_eq!(service.delete("/v1/fits/nothing").await.status, 404);
}

#[tokio::test]
async fn a_device_that_is_not_here_is_refused_with_what_is_missing() {
    let service = Service::start(Scripted::default()).await;

    let refused = service
        .post("/v1/fits", r#"{"model": {"preset": "resnet18"}}"#)
        .await;

    assert_answer!(refused);
    assert_eq!(
        service.get("/v1/fits").await.json()["items"],
        serde_json::json!([])
    );
}
