//! Outcomes: what is told is kept, learnt from, and served.

mod hostile;
mod truth;

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use super::scripted::Scripted;
use super::{Answer, RESNET, RESNET_8, Service, assert_answer};

/// What the recommendation of the scripted engine predicts.
const PREDICTED: u64 = (11 << 30) + (1 << 29);

/// A question that says itself what is to be left free.
const ASKED: &str = r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "headroom": 0.01}"#;

/// A run of the recommended batch that reserved so much.
fn fits(peak: u64) -> Value {
    json!({
        "batch": 256, "outcome": "fits", "peak_reserved_bytes": peak, "retries": 0, "steps": 500,
        "environment": {"gpu": "NVIDIA H200", "pytorch": "2.11.0+cu130", "driver": "580.95.05"},
    })
}

impl Service {
    /// Asks, and gives the fit's id.
    async fn create_fit(&self, body: &'static str) -> String {
        self.post_and_wait("/v1/fits", body).await.id()
    }

    /// Tells an outcome.
    async fn tell_outcome(&self, id: &str, outcome: &Value) -> Answer {
        let path = format!("/v1/recommendations/{id}/outcomes");
        self.post(&path, outcome.to_string()).await
    }

    async fn first(&self) -> Value {
        let list = self.get("/v1/recommendations").await;
        list.json()["items"][0].clone()
    }
}

#[tokio::test]
async fn an_outcome_is_kept_beside_what_was_predicted() {
    let service = Service::start(Scripted::default()).await;
    let fit = service.create_fit(RESNET).await;

    let told = service
        .tell_outcome(&fit, &fits(PREDICTED + (PREDICTED / 50)))
        .await;

    assert_answer!(told);
    let id = service.first().await["id"].as_str().unwrap().to_owned();
    assert_eq!(told.json()["recommendation_id"], id.as_str());
    let path = format!("/v1/recommendations/{id}/outcomes");
    let list = service.get(&path).await.json();
    assert_eq!(list["items"][0], told.json());
    assert_eq!(list["next"], Value::Null);
    let accuracy = service.get("/v1/accuracy").await;
    assert_answer!(accuracy);
    let metrics = service.get("/metrics").await.text;
    assert!(
        metrics.contains("batchfit_outcomes{result=\"miss\"} 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn what_says_nothing_about_the_answer_is_kept_and_doubted() {
    let service = Service::start(Scripted::default()).await;
    let fit = service.create_fit(RESNET).await;
    let doubt = async |change: Value| {
        let mut outcome = fits(PREDICTED);
        for (name, value) in change.as_object().unwrap() {
            outcome[name] = value.clone();
        }
        let told = service.tell_outcome(&fit, &outcome).await;
        assert_eq!(told.status, 201, "{}", told.text);
        assert_eq!(told.json()["headroom"], Value::Null);
        told.json()["doubt"]["code"].as_str().unwrap().to_owned()
    };

    assert_eq!(doubt(json!({"outcome": "crashed"})).await, "crashed");
    assert_eq!(doubt(json!({"batch": 257})).await, "larger_batch");
    assert_eq!(doubt(json!({"batch": 255})).await, "smaller_batch");
    assert_eq!(doubt(json!({"peak_reserved_bytes": null})).await, "no_peak");
    assert_eq!(doubt(json!({"steps": 2})).await, "few_steps");
    let nowhere = json!({"environment": {"gpu": "NVIDIA H200"}});
    assert_eq!(doubt(nowhere).await, "environment_unknown");
    for (gpu, pytorch) in [("NVIDIA L4", "2.11.0"), ("NVIDIA H200", "2.10.1")] {
        let elsewhere = json!({"environment": {"gpu": gpu, "pytorch": pytorch}});
        assert_eq!(doubt(elsewhere).await, "environment_other");
    }
    assert_eq!(service.get("/v1/accuracy").await.json()["items"], json!([]));
    assert_eq!(service.first().await["stale"], Value::Null);
}

#[tokio::test]
async fn outcomes_are_paged_and_wrong_ones_are_errors() {
    let service = Service::start(Scripted::default()).await;
    let fit = service.create_fit(RESNET).await;
    for _ in 0..3 {
        service.tell_outcome(&fit, &fits(PREDICTED)).await;
    }

    let path = format!("/v1/recommendations/{fit}/outcomes");
    let page = service.get(&format!("{path}?limit=2")).await.json();
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    let next = page["next"].as_str().unwrap();
    let page = service.get(&format!("{path}?limit=2&cursor={next}")).await;
    assert_eq!(page.json()["items"].as_array().unwrap().len(), 1);
    assert_eq!(service.get(&format!("{path}?cursor=x")).await.status, 400);
    let by_card = async |gpu: &str| {
        let list = service.get(&format!("/v1/accuracy?gpu={gpu}")).await;
        list.json()["items"].as_array().unwrap().len()
    };
    assert_eq!(by_card("NVIDIA%20H200").await, 1);
    assert_eq!(by_card("none").await, 0);

    assert_eq!(service.tell_outcome("nothing", &fits(1)).await.status, 404);
    for (wrong, pointer) in [
        (json!({"outcome": "fits"}), ""),
        (json!({"batch": 0, "outcome": "fits"}), "/batch"),
        (json!({"batch": 1, "outcome": "oom"}), "/outcome"),
        (
            json!({"batch": 1, "outcome": "fits", "retries": -1}),
            "/retries",
        ),
        (
            json!({"batch": 1, "outcome": "fits", "environment": {"gpu": 1}}),
            "/environment/gpu",
        ),
        (
            json!({"batch": 1, "outcome": "fits", "environment": {"gpu": "x".repeat(201)}}),
            "/environment/gpu",
        ),
    ] {
        let told = service.tell_outcome(&fit, &wrong).await;
        assert_eq!(
            (told.status, told.json()["pointer"].as_str()),
            (422, Some(pointer)),
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn a_training_with_an_idempotency_key_counts_once() {
    let service = Service::start(Scripted::default()).await;
    let fit = service.create_fit(RESNET).await;
    let tell = async |body: Value| {
        let path = format!("/v1/recommendations/{fit}/outcomes");
        let request = Request::post(path).header("idempotency-key", "run-1");
        service
            .send(request.body(Body::from(body.to_string())).unwrap())
            .await
    };

    let first = tell(fits(PREDICTED)).await;
    let again = tell(fits(PREDICTED)).await;
    let other = tell(fits(PREDICTED + 1)).await;

    assert_eq!((first.status, again.status, other.status), (201, 200, 422));
    assert_eq!(first.text, again.text);
    assert!(
        other.json()["type"]
            .as_str()
            .unwrap()
            .ends_with("idempotency-key-reused")
    );
    let accuracy = service.get("/v1/accuracy").await.json();
    assert_eq!(accuracy["items"][0]["outcomes"], 1);
}

#[tokio::test]
async fn an_answer_is_made_again_after_headroom_has_grown() {
    let engine = Scripted::default();
    let fits_begun = Arc::clone(&engine.fits);
    let service = Service::start(engine).await;
    let fit = service.create_fit(RESNET).await;
    assert_eq!(service.create_fit(RESNET).await, fit);
    let other = service.create_fit(RESNET_8).await;

    let oom = json!({"batch": 256, "outcome": "out_of_memory",
        "environment": {"gpu": "NVIDIA H200", "pytorch": "2.11"}});
    let told = service.tell_outcome(&fit, &oom).await;
    assert_eq!(told.status, 201, "{}", told.text);

    let told = told.json();
    let id = told["recommendation_id"].as_str().unwrap();
    let old = service.get(&format!("/v1/recommendations/{id}")).await;
    let old = old.json();
    assert_eq!(old["stale"]["because"][0]["what"], "headroom");
    // Neither the cached answer nor the stored one is served.
    let again = service.create_fit(RESNET).await;
    assert_ne!(again, fit);
    assert_ne!(
        service.create_fit(RESNET_8).await,
        other,
        "it is the same model"
    );
    let begun = fits_begun.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(begun, 4);
    // And the new one is served from then on.
    assert_eq!(service.create_fit(RESNET).await, again);
    // What the request says itself was not learnt.
    let asked = service.create_fit(ASKED).await;
    service
        .tell_outcome(&fit, &fits(PREDICTED + (1 << 30)))
        .await;
    assert_eq!(service.create_fit(ASKED).await, asked);
    assert_ne!(service.create_fit(RESNET).await, again);
}

#[tokio::test]
async fn out_of_memory_raises_the_headroom() {
    // The answer holds with 6 % less than the limit, though where all of it is there the batch takes more of it.
    const PROMISED: &str =
        r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "headroom": 0.06}"#;
    let service = Service::start(Scripted::default()).await;
    let fit = service.create_fit(PROMISED).await;
    let environment = json!({"gpu": "NVIDIA H200", "pytorch": "2.11"});
    let oom = json!({"batch": 256, "outcome": "out_of_memory", "environment": environment});

    let told = service.tell_outcome(&fit, &oom).await;

    assert_eq!(
        told.json()["headroom"]["after"],
        json!(0.12),
        "{}",
        told.text
    );
}

#[tokio::test]
async fn a_recommendation_is_refreshed_on_request() {
    let service = Service::start(Scripted::default()).await;
    let fit = service.create_fit(RESNET).await;
    let refresh = async |id: &str| {
        let path = format!("/v1/recommendations/{id}/refresh");
        service.post_and_wait(&path, Body::empty()).await
    };

    let same = refresh(&fit).await;
    assert_eq!((same.status, same.id()), (200, fit.clone()));
    service
        .tell_outcome(&fit, &fits(PREDICTED + (1 << 30)))
        .await;
    let again = refresh(&fit).await;

    assert_eq!(again.status, 200, "{}", again.text);
    assert_ne!(again.id(), fit);
    assert_eq!(again.json()["request"], same.json()["request"]);
    assert_eq!(again.header("location"), format!("/v1/fits/{}", again.id()));
    assert_eq!(refresh("nothing").await.status, 404);
}

#[tokio::test]
async fn the_nearest_stored_answer_is_offered() {
    let service = Service::start(Scripted::default()).await;
    let near = async |body: &'static str| service.post("/v1/recommendations/nearest", body).await;
    assert_eq!(near(RESNET).await.status, 404);
    let fit = service.create_fit(RESNET).await;

    let exact = near(RESNET).await.json();
    assert_eq!(
        (exact["exact"].as_bool(), &exact["differs"]),
        (Some(true), &json!([]))
    );
    assert_eq!(exact["recommendation"]["fit_id"], fit.as_str());
    let other = near(RESNET_8).await.json();
    assert_eq!(
        (other["exact"].as_bool(), &other["differs"]),
        (Some(false), &json!(["limit_bytes"]))
    );
    // What a recommendation does not show: another's margin of safety is not mine. Defaults that are written out differ in nothing.
    let bolder = near(
        r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": "12GiB", "headroom": 0.25, "search": "auto",
            "allocator": "expandable_segments:True", "training": {"clip_grad_norm": 1}}"#,
    );
    assert_eq!(
        bolder.await.json()["differs"],
        json!(["headroom", "allocator", "clip_grad_norm"])
    );
    // Its device is not here, and nothing is computed.
    let absent =
        near(r#"{"model": {"preset": "resnet18"}, "device": "cuda:7", "memory_limit": "12GiB"}"#)
            .await;
    assert_eq!(absent.status, 200, "{}", absent.text);
    assert_eq!(absent.json()["differs"], json!(["device"]));
    assert_eq!(
        near(r#"{"model": {"preset": "resnet34"}, "device": "sim:h200"}"#)
            .await
            .status,
        404
    );
    assert_eq!(near("{}").await.status, 422);
}
