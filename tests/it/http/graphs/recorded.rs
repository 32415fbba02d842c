//! Recordings: uploaded, and named by fits, probes and searches.

use std::path::PathBuf;
use std::sync::Arc;

use batchfit::jobs::{FitEngine, Limits};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{golden, gunzip};
use crate::http::Service;

impl Service {
    /// A fresh service that answers by simulation.
    async fn simulating() -> Service {
        let engine = FitEngine::new(PathBuf::from(env!("CARGO_BIN_EXE_batchfit")));
        Service::on(Arc::new(TempDir::new().unwrap()), engine, Limits::default()).await
    }

    /// The document of a fit that has ended.
    async fn fit(&self, request: &Value) -> Value {
        let answer = self.post_and_wait("/v1/fits", request.to_string()).await;
        assert!((200..300).contains(&answer.status), "{}", answer.text);
        answer.json()
    }
}

fn recording(batch: u64) -> Vec<u8> {
    golden(&format!("recorded/gpt2-ampbf16-adamw.b{batch}.gz"))
}

/// Of a model whose recordings are read in no time.
fn of_cifarnet(batch: u64) -> Vec<u8> {
    golden(&format!("recorded/cifarnet-fp32-sgd.b{batch}.gz"))
}

#[tokio::test]
async fn a_fit_names_recordings_by_their_digests() {
    let service = Service::simulating().await;
    // Compressed or not, it is the same recording.
    let small = service.upload(recording(2)).await;
    let large = service.upload(gunzip(&recording(8))).await;
    let about = service.get(&format!("/v1/graphs/{small}")).await.json();
    assert_eq!(
        (&about["kind"], &about["batch"]),
        (&json!("recorded"), &json!(2))
    );

    let request = json!({
        "model": {"recorded": [small, large]}, "device": "sim:h200", "memory_limit": "40GiB",
    });
    let answered = service.fit(&request).await;

    assert_eq!(answered["state"], "done", "{answered}");
    let recommendation = &answered["result"]["recommendation"];
    assert_eq!(recommendation["max_batch_without_retries"], 27);
    assert_eq!(recommendation["evidence"], "recorded");
    assert_eq!(
        answered["request"]["model"]["recorded"],
        json!([small, large])
    );
    let stored = service
        .get("/v1/recommendations?evidence=recorded")
        .await
        .json();
    assert_eq!(stored["items"][0]["precision"], "recorded", "{stored}");

    let alone = json!({"model": {"recorded": [small]}, "device": "sim:h200"});
    let refused = service.post("/v1/fits", alone.to_string()).await;
    assert_eq!(refused.status, 422, "{}", refused.text);
    assert!(
        refused
            .text
            .contains("one recording answers for its own batch alone")
    );
    let text = |batch| String::from_utf8(gunzip(&recording(batch))).unwrap();
    let inline = json!({
        "model": {"recorded": [text(4), text(8)]}, "device": "sim:h200", "memory_limit": "40GiB",
    });
    assert_eq!(service.fit(&inline).await["state"], "done");
}

#[tokio::test]
async fn a_search_is_led_by_recordings() {
    let service = Service::simulating().await;
    let begun = service
        .post(
            "/v1/searches",
            json!({"memory_limit": 4_u64 << 30, "start_batch": 64}).to_string(),
        )
        .await;
    let path = format!("/v1/searches/{}", begun.id());
    let mut told = begun.json();
    for batch in [64, 128, 256] {
        let recorded = service.upload(of_cifarnet(batch)).await;
        let observation = json!({"batch": batch, "outcome": "fits", "recorded": recorded});
        let answer = service
            .post(&format!("{path}/observations"), observation.to_string())
            .await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        told = answer.json();
    }
    // Half of what the recordings predict.
    assert_eq!(told["next_batch"], 1884, "{told}");

    let other = service
        .upload(golden("recorded/mlp-fp32-adam.b65.gz"))
        .await;
    let observation = json!({"batch": 65, "outcome": "fits", "recorded": other});
    let refused = service
        .post(&format!("{path}/observations"), observation.to_string())
        .await;
    assert_eq!(refused.status, 422, "{}", refused.text);
    assert!(
        refused.text.contains("not of the same program"),
        "{}",
        refused.text
    );
    let kept = service.get(&path).await.json();
    assert_eq!(kept["observations"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_careful_search_is_answered_once_and_found_again() {
    let service = Service::simulating().await;
    let terms = json!({"memory_limit": 330_u64 << 20, "start_batch": 64, "avoid_out_of_memory": true, "gpu": "NVIDIA H200"});
    let mut uploaded = Vec::new();
    for batch in [64, 128, 256] {
        uploaded.push((batch, service.upload(of_cifarnet(batch)).await));
    }
    let begin = async || {
        let begun = service.post("/v1/searches", terms.to_string()).await;
        format!("/v1/searches/{}", begun.id())
    };
    let tell = async |path: &str, observation: Value| {
        let answer = service
            .post(&format!("{path}/observations"), observation.to_string())
            .await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer.json()
    };
    let path = begin().await;
    let mut proposed = Vec::new();
    for (batch, digest) in &uploaded {
        let told = tell(
            &path,
            json!({"batch": batch, "outcome": "fits", "recorded": digest}),
        )
        .await;
        proposed.push(told["next_batch"].clone());
    }
    assert_eq!(json!(proposed), json!([89, 240, 320]));
    let done = tell(
        &path,
        json!({"batch": 328, "outcome": "fits", "peak_reserved_bytes": 340_000_000}),
    )
    .await;
    assert_eq!(done["state"], "done", "{done}");
    let best = &done["recommendation"];
    assert_eq!(
        (&best["micro_batch"], &best["evidence"]),
        (&json!(328), &json!("trained"))
    );

    let again = begin().await;
    let (batch, digest) = &uploaded[0];
    let found = tell(
        &again,
        json!({"batch": batch, "outcome": "fits", "recorded": digest}),
    )
    .await;

    assert_eq!(found["state"], "done", "{found}");
    assert_eq!(found["answered_by"], done["id"]);
    assert_eq!(found["recommendation"]["micro_batch"], 328);
    // What was found stays, also when nobody needs the recordings any more.
    for (_, digest) in &uploaded {
        let path = format!("/v1/graphs/{digest}");
        assert_eq!(service.delete(&path).await.status, 204, "{path}");
    }
    assert_eq!(service.get(&path).await.json(), done);
    assert_eq!(service.get(&again).await.json(), found);
}

#[tokio::test]
async fn recordings_are_bounded_together() {
    let service = Service::simulating().await;
    let of = |batch: u64| {
        let lines: Vec<String> = (1..200_000)
            .map(|size| format!("a {}\n", size * batch))
            .collect();
        let lines = lines.concat();
        format!("batchfit recording 1\n{{\"batch\": {batch}}}\n{lines}")
    };
    let request = json!({"model": {"recorded": [of(1), of(2), of(3)]}, "device": "sim:h200"});

    let refused = service.post("/v1/fits", request.to_string()).await;

    assert_eq!(refused.status, 422, "{}", refused.text);
    assert_eq!(refused.json()["pointer"], "/model/recorded/2");
    assert!(refused.text.contains("at most 524288"), "{}", refused.text);
    for (recorded, pointer) in [
        (json!([]), "/model/recorded"),
        (json!("sha256:1"), "/model/recorded"),
        (json!(["sha256:1"]), "/model/recorded/0"),
        (json!([3]), "/model/recorded"),
        (json!(["batchfit recording 1\n{}\n"]), "/model/recorded/0"),
        (
            json!([format!("sha256:{}", "0".repeat(64))]),
            "/model/recorded/0",
        ),
    ] {
        let request = json!({"model": {"recorded": recorded}, "device": "sim:h200"});
        let refused = service.post("/v1/fits", request.to_string()).await;
        assert_eq!(refused.status, 422, "{recorded}: {}", refused.text);
        assert_eq!(refused.json()["pointer"], pointer, "{recorded}");
    }
}
