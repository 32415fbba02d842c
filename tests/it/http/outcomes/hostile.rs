//! Outcomes that are wrong, many, told at once, or to one service after the other.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use serde_json::json;
use tokio::task::JoinSet;

use super::{PREDICTED, RESNET, Scripted, Service, fits};

#[tokio::test]
async fn what_was_learnt_outlives_the_service_and_is_shared_with_the_next() {
    let first = Service::start(Scripted::default()).await;
    let fit = first.create_fit(RESNET).await;
    first
        .tell_outcome(&fit, &fits(PREDICTED + (PREDICTED / 50)))
        .await;
    let known = first.get("/v1/accuracy").await.json();

    let directory = Arc::clone(&first.directory);
    let second = Service::on(directory, Scripted::default(), first.limits).await;

    assert_eq!(second.get("/v1/accuracy").await.json(), known);
    let again = second.create_fit(RESNET).await;
    assert_ne!(again, fit);
    // What either is told the other knows.
    let told = first
        .tell_outcome(&again, &fits(PREDICTED + (PREDICTED / 10)))
        .await;
    assert_eq!(told.status, 201, "{}", told.text);
    let path = format!("/v1/recommendations/{again}/outcomes");
    assert_eq!(second.get(&path).await.json()["items"][0], told.json());
    let near = second.post("/v1/recommendations/nearest", RESNET).await;
    assert_eq!(near.json()["exact"], false, "{}", near.text);
    assert_ne!(second.create_fit(RESNET).await, again);
}

#[tokio::test]
async fn hostile_outcomes_are_refused_or_bounded() {
    let service = Service::start(Scripted::default()).await;
    let fit = service.create_fit(RESNET).await;
    let most = 1_u64 << 60;
    for (name, value) in [
        ("peak_reserved_bytes", json!(-1)),
        ("peak_reserved_bytes", json!(0)),
        ("peak_reserved_bytes", json!(most + 1)),
        ("peak_reserved_bytes", json!(1.5)),
        ("peak_reserved_bytes", json!(1e300)),
        ("steps", json!(-3)),
        ("steps", json!(u64::MAX)),
        ("retries", json!(u64::MAX)),
        ("batch", json!(-1)),
        ("batch", json!(u64::MAX)),
        ("environment", json!([])),
        ("environment", json!({"gpu": "a\u{1b}[31m"})),
        ("environment", json!({"host": "x"})),
        ("unknown", json!(1)),
    ] {
        let mut outcome = fits(PREDICTED);
        outcome[name] = value.clone();
        let told = service.tell_outcome(&fit, &outcome).await;
        assert_eq!(told.status, 422, "{name} {value}: {}", told.text);
    }
    let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
    let path = format!("/v1/recommendations/{fit}/outcomes");
    for body in [deep, "x".repeat(70_000), String::new(), "null".to_owned()] {
        let status = service.post(&path, body).await.status;
        assert!((400..500).contains(&status), "{status}");
    }
    assert_eq!(service.get(&path).await.json()["items"], json!([]));

    // What nobody can have reserved teaches nothing, and whatever else is said no more than the ceiling.
    let mut outcome = fits(most);
    outcome["steps"] = json!(most);
    let told = service.tell_outcome(&fit, &outcome).await;
    assert_eq!(told.status, 201, "{}", told.text);
    assert_eq!(told.json()["doubt"]["code"], "other_limit");
    let mut outcome = fits(2 * PREDICTED);
    outcome["steps"] = json!(most);
    let told = service.tell_outcome(&fit, &outcome).await;
    assert_eq!(told.status, 201, "{}", told.text);
    assert_eq!(told.json()["headroom"]["after"], 0.2);
    let known = service.get("/v1/accuracy").await.json();
    assert_eq!(known["items"][0]["headroom"], 0.2);
    assert!(known["items"][0]["mean_error"].as_f64().unwrap() <= 10.0);
}

#[tokio::test]
async fn outcomes_that_are_told_at_once_all_count() {
    let service = Arc::new(Service::start(Scripted::default()).await);
    let fit = service.create_fit(RESNET).await;
    let mut telling = JoinSet::new();
    for number in 0..40_u64 {
        let (service, fit) = (Arc::clone(&service), fit.clone());
        telling.spawn(async move {
            let mut request = Request::post(format!("/v1/recommendations/{fit}/outcomes"));
            // Half of them under names that two share.
            if number % 2 == 0 {
                request = request.header("idempotency-key", format!("run-{}", number / 4));
            }
            let body = Body::from(fits(PREDICTED).to_string());
            service.send(request.body(body).unwrap()).await.status
        });
    }

    let statuses = telling.join_all().await;

    let kept = statuses.iter().filter(|status| **status == 201).count();
    assert_eq!(kept, 30, "{statuses:?}");
    let known = service.get("/v1/accuracy").await.json();
    assert_eq!(known["items"][0]["outcomes"], 30);
    let path = format!("/v1/recommendations/{fit}/outcomes?limit=500");
    let listed = service.get(&path).await.json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 30);
}
