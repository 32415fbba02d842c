//! `/v1/probes`.

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
