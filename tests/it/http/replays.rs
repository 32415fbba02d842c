//! Recordings that are replayed over HTTP.

use std::path::Path;

use axum::body::Body;
use axum::http::Request;

use super::scripted::Scripted;
use super::{Answer, Service};

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/golden")
            .join(name),
    )
    .unwrap()
}

async fn post(path: &str, body: Vec<u8>) -> Answer {
    Service::start(Scripted::default())
        .await
        .post(path, body)
        .await
}

#[tokio::test]
async fn a_trace_is_replayed() {
    let trace = golden("traces/trace-cifarnet-fp32-sgd-b3900.txt.gz");

    let answer = post("/v1/replays", trace).await;

    assert_eq!(answer.status, 200);
    let report = answer.json();
    assert_eq!(report["equals_recording"], true);
    assert_eq!(report["retries"], 1);
    assert_eq!(report["segment_events"][0][0], "alloc");
    assert!(report["comparison"].is_null());
}

#[tokio::test]
async fn a_compressed_snapshot_is_compared_with_other_settings() {
    let snapshot = golden("snapshots/overrun.pickle.gz");
    let request = Request::post("/v1/replays?compare=true&memory_limit=250MiB")
        .header("content-encoding", "gzip")
        .body(Body::from(snapshot))
        .unwrap();

    let answer = Service::start(Scripted::default())
        .await
        .send(request)
        .await;

    assert_eq!(answer.status, 200, "{}", answer.text);
    let report = answer.json();
    assert_eq!(report["limit_bytes"], 250 << 20);
    let rows = report["comparison"]["rows"].as_array().unwrap();
    assert!(rows.len() > 8);
    assert!(rows[0]["smallest_limit_bytes"].is_u64());
}

#[tokio::test]
async fn allocations_of_a_recording_are_sent_on_request() {
    let snapshot = golden("planted/growth-hook.pickle.gz");
    let request = Request::post("/v1/replays?events=true").header("content-encoding", "gzip");
    let request = request.body(Body::from(snapshot)).unwrap();

    let answer = Service::start(Scripted::default())
        .await
        .send(request)
        .await;

    assert_eq!(answer.status, 200, "{}", answer.text);
    let report = answer.json();
    let events = &report["events"];
    assert!(events["blocks"]["allocated"].as_array().unwrap().len() > 100);
    assert_eq!(events["bands"]["step"][1], 1);
    assert!(report["comparison"].is_null());
}

#[tokio::test]
async fn what_is_wrong_with_a_program_is_told_with_its_evidence() {
    let cases = [
        ("growth-losses", "growth"),
        ("growth-hook", "growth"),
        ("growth-retained", "growth"),
        ("fragmentation", "fragmentation"),
        ("another-process-in-the-fifth-step", "another_process"),
        ("too-large", "batch_too_large"),
        ("clean", "nothing_wrong"),
    ];
    for (name, finding) in cases {
        let snapshot = golden(&format!("planted/{name}.pickle.gz"));
        let request = Request::post("/v1/replays").header("content-encoding", "gzip");

        let answer = Service::start(Scripted::default())
            .await
            .send(request.body(Body::from(snapshot)).unwrap())
            .await;

        assert_eq!(answer.status, 200, "{name}: {}", answer.text);
        let findings = &answer.json()["findings"];
        assert_eq!(findings["finding"], finding, "{name}");
        let is_clean = finding == "nothing_wrong";
        assert_eq!(findings["advice"].is_null(), is_clean, "{name}");
        assert_eq!(
            findings["evidence"].as_array().unwrap().is_empty(),
            is_clean
        );
        assert!(findings["at_peak"][0]["bytes"].is_u64(), "{name}");
    }
}

#[tokio::test]
async fn what_cannot_be_replayed_is_a_problem() {
    let trace = golden("traces/trace-cifarnet-fp32-sgd-b512.txt.gz");
    let snapshot = golden("snapshots/overrun.pickle.gz");
    let twice = super::problems::gzip(&trace);
    let cases: [(&str, Vec<u8>, &str); 8] = [
        // Its place is taken by what one layer holds.
        ("/v1/replays", twice, "recording-invalid"),
        ("/v1/replays", Vec::new(), "recording-invalid"),
        (
            "/v1/replays",
            b"{\"model\": 1}".to_vec(),
            "recording-invalid",
        ),
        (
            "/v1/replays",
            b"\x80\x04cos\nsystem\n.".to_vec(),
            "recording-invalid",
        ),
        (
            "/v1/replays",
            trace[..trace.len() / 2].to_vec(),
            "recording-invalid",
        ),
        (
            "/v1/replays?allocator=expandable:True",
            trace.clone(),
            "query-invalid",
        ),
        ("/v1/replays?compere=true", trace, "query-invalid"),
        ("/v1/replays?memory_limit=0.5", snapshot, "query-invalid"),
    ];

    for (path, body, kind) in cases {
        let answer = post(path, body).await;

        assert_eq!(answer.status, 422, "{path}");
        let problem = answer.json();
        assert_eq!(
            problem["type"],
            format!("/problems/{kind}"),
            "{path}: {problem}"
        );
    }
}
