//! Fits that a recorder answers, over HTTP.

use std::path::PathBuf;
use std::sync::Arc;

use batchfit::jobs::{FitEngine, Limits};
use batchfit::worker::RecorderCommand;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Service;
use super::scripted::Scripted;
use crate::{recorder, wait};

async fn service(how: &str) -> Service {
    let directory = Arc::new(TempDir::new().unwrap());
    let program = PathBuf::from(env!("CARGO_BIN_EXE_batchfit"));
    let engine = FitEngine::new(program).with_recorder(Some(RecorderCommand {
        python: recorder::fake(directory.path(), how),
        module: None,
    }));
    Service::on(directory, engine, Limits::default()).await
}

fn question(members: &Value) -> String {
    let mut question = json!({
        "model": {"exported": recorder::graph_of_unknown()},
        "device": "sim:h200",
        "memory_limit": "40GiB"
    });
    for (name, value) in members.as_object().unwrap() {
        question[name] = value.clone();
    }
    question.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_recorder_answers_for_graphs_with_unknown_operators() {
    let service = service("").await;

    let posted = service.post("/v1/fits", question(&json!({}))).await;
    assert_eq!(posted.status, 202, "{}", posted.shown());
    let fit = service.ended(&posted.id()).await;

    assert_eq!(fit["state"], "done", "{fit}");
    let recommendation = &fit["result"]["recommendation"];
    assert_eq!(recommendation["evidence"], "recorded");
    assert_eq!(recommendation["max_batch_without_retries"], 27);
    // The same question has its answer.
    let again = service.post("/v1/fits", question(&json!({}))).await;
    assert_eq!(again.id(), posted.id(), "{}", again.shown());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_recorder_says_what_is_missing() {
    let service = Service::start(Scripted::default()).await;

    let unknown = service.post("/v1/fits", question(&json!({}))).await;
    let asked = json!({"search": "recorded"});
    let recorded = service.post("/v1/fits", question(&asked)).await;

    assert_eq!(unknown.status, 422, "{}", unknown.shown());
    assert!(unknown.shown().contains("frobnicate"));
    assert_eq!(recorded.status, 422, "{}", recorded.shown());
    assert!(recorded.shown().contains("--recorder PYTHON"));
    assert!(recorded.shown().contains("/search"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_that_is_cancelled_ends_with_all_that_it_started() {
    let service = service("hangs").await;

    let posted = service.post("/v1/fits", question(&json!({}))).await;
    wait::until_async("the recorder to start a child", async || {
        let orders = recorder::orders(service.directory.path());
        orders.iter().any(|order| order["message"] == "child")
    })
    .await;
    service.delete(&format!("/v1/fits/{}", posted.id())).await;

    let fit = service.ended(&posted.id()).await;
    assert_eq!(fit["state"], "cancelled", "{fit}");
    recorder::assert_ended(service.directory.path());
}
