//! `Idempotency-Key`: a request that is sent again is the same request.

use axum::body::Body;
use axum::http::{HeaderValue, Request};
use batchfit::jobs::EngineError;
use std::sync::atomic::Ordering;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use super::scripted::{Outcome, Scripted};
use super::{Answer, LONGEST_WAIT, RESNET, RESNET_8, Service};

fn request(key: &[u8], body: &str) -> Request<Body> {
    let key = HeaderValue::from_bytes(key).unwrap();
    let request = Request::post("/v1/fits")
        .header("idempotency-key", key)
        .header("prefer", LONGEST_WAIT);
    request.body(Body::from(body.to_owned())).unwrap()
}

async fn ask(service: &Service, key: &[u8], body: &str) -> Answer {
    service.send(request(key, body)).await
}

fn broken() -> EngineError {
    EngineError::DeviceFailed {
        device: "sim:h200".to_owned(),
        cause: "signal 9".to_owned(),
    }
}

#[tokio::test]
async fn the_same_key_is_the_same_fit_whatever_became_of_it() {
    let engine = Scripted::that(Outcome::Fails(broken()));
    let service = Service::start(engine.clone()).await;

    let first = ask(&service, b"launch-7", RESNET).await;
    let again = ask(&service, b"launch-7", RESNET).await;
    // The same failed question without the key is asked again.
    let other = service.post_and_wait("/v1/fits", RESNET).await;

    assert_eq!(first.json()["state"], "failed");
    assert_eq!(first.id(), again.id());
    assert_ne!(first.id(), other.id());
    assert_eq!(engine.fits.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn another_body_under_the_same_key_is_refused() {
    let service = Service::start(Scripted::default()).await;
    let first = ask(&service, b"k", RESNET).await;

    // Another question, and the same one written otherwise.
    for other in [RESNET_8.to_owned(), RESNET.replace(": ", ":")] {
        let refused = ask(&service, b"k", &other).await;
        assert_eq!(refused.status, 422);
        let problem = refused.json();
        assert_eq!(problem["type"], "/problems/idempotency-key-reused");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(&first.id()), "{detail}");
    }
    // Nothing was stored of it.
    let fits = service.get("/v1/fits").await.json();
    assert_eq!(fits["items"].as_array().unwrap().len(), 1);
    // A key for a fit that was there before holds as well.
    let found = ask(&service, b"second", RESNET).await;
    assert_eq!(found.id(), first.id());
    assert_eq!(ask(&service, b"second", RESNET_8).await.status, 422);
}

#[tokio::test]
async fn keys_survive_a_restart() {
    let first = Service::start(Scripted::that(Outcome::Fails(broken()))).await;
    let asked = ask(&first, b"k", RESNET).await;
    first.stop().await;

    let second = first.after_a_crash(Scripted::default()).await;

    assert_eq!(ask(&second, b"k", RESNET).await.id(), asked.id());
    assert_eq!(ask(&second, b"k", RESNET_8).await.status, 422);
}

#[tokio::test]
async fn hostile_keys_are_refused_or_are_just_text() {
    let service = Service::start(Scripted::default()).await;
    let long = [b'a'; 256];

    let wrong: [&[u8]; 5] = [b"", &long, b"caf\xc3\xa9", b"\xff\xfe", b"a\tb"];
    for key in wrong {
        let refused = ask(&service, key, RESNET).await;
        assert_eq!(refused.status, 400, "{key:?}: {}", refused.text);
        assert_eq!(refused.json()["type"], "/problems/header-invalid");
    }
    let twice = Request::post("/v1/fits")
        .header("idempotency-key", "a")
        .header("idempotency-key", "a")
        .body(Body::from(RESNET))
        .unwrap();
    assert_eq!(service.send(twice).await.status, 400);
    let fits = service.get("/v1/fits").await.json();
    assert_eq!(fits["items"], serde_json::json!([]));

    let odd: [&[u8]; 5] = [
        b"'; DROP TABLE fit; --",
        b"\"quoted\"",
        b"%00",
        b"{}",
        &long[1..],
    ];
    for key in odd {
        let fit = ask(&service, key, RESNET).await;
        assert_eq!(fit.status, 200, "{key:?}: {}", fit.text);
        assert_eq!(ask(&service, key, RESNET).await.id(), fit.id());
    }
    assert_ne!(
        ask(&service, b"K", RESNET_8).await.id(),
        ask(&service, b"k", RESNET).await.id(),
        "keys are told apart by case"
    );
}

/// Twenty clients at once, half of them with another body: one fit, and everybody learns whose.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_race_with_one_key_get_one_fit() {
    let service = Service::start(Scripted::default()).await;
    for round in 0..10 {
        let key = format!("round-{round}");
        let mut asking = JoinSet::new();
        for client in 0..20 {
            let body = RESNET.replace("12GiB", &format!("{}GiB", 3 + 2 * round + client % 2));
            let request = request(key.as_bytes(), &body);
            let router = service.router.clone();
            asking.spawn(async move { Answer::read(router.oneshot(request).await.unwrap()).await });
        }
        let mut fits = Vec::new();
        let mut refused = 0;
        for answer in asking.join_all().await {
            match answer.status {
                200 => fits.push(answer.id()),
                422 => refused += 1,
                other => panic!("{other}: {}", answer.text),
            }
        }
        fits.sort();
        fits.dedup();
        assert_eq!((fits.len(), refused), (1, 10));
    }
}
