//! `/v1/probes`.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use batchfit::jobs::{FitEngine, Limits};
use flate2::read::GzDecoder;
use serde_json::Value;
use tempfile::TempDir;
use tower::ServiceExt as _;

use super::scripted::Scripted;
use super::{Service, assert_answer};

const PROBE: &str = r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "batch": 64.0}"#;

#[tokio::test]
async fn a_probe_runs_and_is_remembered() {
    let service = Service::start(Scripted::default()).await;

    let created = service.post("/v1/probes", PROBE).await;

    assert_answer!(created);
    let read = service.get(created.header("location")).await;
    assert_eq!(read.status, 200);
    assert_eq!(read.json(), created.json());
}

#[tokio::test]
async fn an_unknown_probe_is_not_found() {
    let service = Service::start(Scripted::default()).await;

    assert_answer!(service.get("/v1/probes/nothing").await);
}

/// A service that simulates.
async fn simulating() -> Service {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_batchfit"));
    let directory = Arc::new(TempDir::new().unwrap());
    Service::on(directory, FitEngine::new(program), Limits::default()).await
}

const WITH_EVENTS: &str =
    r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "batch": 4, "detail": "events"}"#;

#[tokio::test]
async fn events_are_sent_on_request_and_not_stored() {
    let service = simulating().await;

    let created = service.post("/v1/probes", WITH_EVENTS).await;

    assert_eq!(created.status, 201, "{}", created.text);
    let probe = created.json();
    let events = &probe["events"];
    let columns = [
        "allocated",
        "freed",
        "address",
        "bytes",
        "requested_bytes",
        "owner",
    ];
    let lengths = columns.map(|column| events["blocks"][column].as_array().unwrap().len());
    assert!(lengths[0] > 100 && lengths.iter().all(|length| *length == lengths[0]));
    let read = service.get(created.header("location")).await.json();
    assert_eq!(read["peak"], probe["peak"]);
    assert!(read.get("events").is_none());
}

#[tokio::test]
async fn events_are_compressed_for_clients_that_read_gzip() {
    let request = Request::post("/v1/probes").header("accept-encoding", "gzip");
    let request = request.body(Body::from(WITH_EVENTS)).unwrap();
    let service = simulating().await;

    let response = service.router.clone().oneshot(request).await.unwrap();

    assert_eq!(response.headers()["content-encoding"], "gzip");
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(response.headers()["vary"], "accept-encoding");
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let mut text = String::new();
    GzDecoder::new(&bytes[..])
        .read_to_string(&mut text)
        .unwrap();
    let probe: Value = serde_json::from_str(&text).unwrap();
    assert!(probe["events"]["events"].as_u64().unwrap() > 100);
}

#[tokio::test]
async fn another_detail_is_a_problem() {
    let service = Service::start(Scripted::default()).await;
    let body = WITH_EVENTS.replace("events", "everything");

    assert_answer!(service.post("/v1/probes", body).await);
}
