//! Fits of several lengths, and fits with a soak, over HTTP and by the engine itself.

use std::path::PathBuf;
use std::sync::Arc;

use batchfit::jobs::{Engine, EngineError, FitEngine, Isolation, Limits, Progress, Work};
use batchfit::limits::Cancel;
use batchfit::model::{Request, RequestDocument};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Service;

fn question() -> Value {
    json!({
        "model": {"hf": {
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
            "n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 512
        }},
        "device": "sim:h200",
        "memory_limit": "512MiB",
        "lengths": {"seq_len": {"32": 900, "100": 90, "256": 10}, "buckets": 2}
    })
}

pub(super) async fn service() -> Service {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_batchfit"));
    let directory = Arc::new(TempDir::new().unwrap());
    Service::on(directory, FitEngine::new(program), Limits::default()).await
}

/// The fit once it is done.
pub(super) async fn done(service: &Service, id: &str) -> Value {
    let fit = service.ended(id).await;
    assert_eq!(fit["state"], "done", "{fit}");
    fit
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_answered_and_its_smallest_batch_is_stored() {
    let service = service().await;

    let posted = service.post("/v1/fits", question().to_string()).await;
    assert_eq!(posted.status, 202, "{}", posted.shown());
    let result = done(&service, &posted.id()).await["result"].clone();

    let rows = result["lengths"]["rows"].as_array().unwrap();
    let safe = |row: &Value| row["recommendation"]["micro_batch"].as_u64().unwrap();
    let smallest = rows.iter().map(safe).min().unwrap();
    assert_eq!(rows.len(), 3);
    assert_eq!(result["lengths"]["buckets"].as_array().unwrap().len(), 2);
    assert_eq!(result["recommendation"]["micro_batch"], smallest);
    let stored = service.get("/v1/recommendations").await.json();
    assert_eq!(stored["items"][0]["fit_id"], posted.id());
    assert_eq!(stored["items"][0]["micro_batch"], smallest);
    // The same question has its answer, and another histogram is another question.
    let again = service.post("/v1/fits", question().to_string()).await;
    assert_eq!(again.id(), posted.id());
    let mut other = question();
    other["lengths"]["seq_len"]["32"] = json!(901);
    let other = service.post("/v1/fits", other.to_string()).await;
    assert_ne!(other.id(), posted.id());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lasts_is_answered_and_stored() {
    let service = service().await;
    let mut request = question();
    request["soak"] = json!({"steps": 50, "epoch": 25, "last_batch": 3, "validation_batch": 16, "validation_steps": 2});

    let posted = service.post("/v1/fits", request.to_string()).await;
    assert_eq!(posted.status, 202, "{}", posted.shown());
    let result = done(&service, &posted.id()).await["result"].clone();

    let soaked = &result["soak"];
    let lasts = &result["recommendation"]["micro_batch"];
    assert_eq!(soaked["report"]["steps"], 54);
    assert_eq!(soaked["safe"]["batch"], *lasts);
    assert!(lasts.as_u64() <= soaked["batch"].as_u64());
    assert!(
        result["recommendation"]["peak_reserved_bytes"]
            .as_u64()
            .unwrap()
            + result["recommendation"]["headroom_bytes"].as_u64().unwrap()
            == soaked["limit_bytes"].as_u64().unwrap()
    );
    let stored = service.get("/v1/recommendations").await.json();
    assert_eq!(stored["items"][0]["micro_batch"], *lasts);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_lengths_and_soaks_is_refused_at_its_place() {
    let service = service().await;
    let ask = async |change: &dyn Fn(&mut Value)| {
        let mut request = question();
        change(&mut request);
        let refused = service.post("/v1/fits", request.to_string()).await;
        assert_eq!(refused.status, 422, "{}", refused.shown());
        refused.json()["pointer"].as_str().unwrap().to_owned()
    };

    let lengths = ask(&|request| request["lengths"]["seq_len"] = json!("1-4096")).await;
    let beyond = ask(&|request| request["lengths"]["seq_len"] = json!([8, 4096])).await;
    let images = ask(&|request| {
        request["model"]["seq_len"] = json!(64);
        request["lengths"] = json!({"image_size": [8, 16]});
    })
    .await;
    let steps = ask(&|request| request["soak"] = json!({"steps": 0})).await;
    let device = ask(&|request| {
        request["soak"] = json!({});
        request["device"] = json!("cuda:0");
    })
    .await;

    assert_eq!(lengths, "/lengths/seq_len");
    assert!(beyond.starts_with('/'), "{beyond}");
    assert_eq!(images, "/lengths/image_size");
    assert_eq!(steps, "/soak/steps");
    assert_eq!(device, "/device");
    let mut probe = question();
    probe["batch"] = json!(4);
    let refused = service.post("/v1/probes", probe.to_string()).await;
    assert_eq!(refused.status, 422, "{}", refused.shown());
    assert_eq!(refused.json()["pointer"], "/lengths/seq_len");
}

#[test]
fn a_cancelled_fit_ends_between_lengths_and_within_a_soak() {
    let engine = FitEngine::new("/nowhere/batchfit".into());
    let mut request = question();
    request["soak"] = json!({"steps": 50_000});
    let document = RequestDocument::from_json(request.to_string().as_bytes()).unwrap();
    let request = Request::parse(document).unwrap();

    for moment in ["2 of 3, seq_len 100", "soaking batch"] {
        let cancel = Cancel::default();
        let stop = |progress: Progress| {
            if progress.note.contains(moment) {
                cancel.cancel();
            }
        };

        let ended = engine.fit(
            &request,
            Isolation::Shared,
            &Work {
                cancel: &cancel,
                progress: &stop,
            },
        );

        assert_eq!(ended, Err(EngineError::Cancelled), "{moment}");
    }
}

/// A bisection from another batch ended up to a tenth lower, or a fifth higher.
#[test]
fn what_one_other_key_asks_for_lowers_what_lasts_by_a_twentieth_at_most() {
    let engine = FitEngine::new("/nowhere/batchfit".into());
    let work = Work {
        cancel: &Cancel::default(),
        progress: &|_| {},
    };
    for (model, limit) in [("alexnet", "6GiB"), ("resnet18", "12GiB")] {
        let request = json!({
            "model": {"preset": model}, "soak": {"steps": 20}, "device": "sim:rtx4090", "memory_limit": limit
        });
        let batch = |unconfirmed: u32| {
            let document = RequestDocument::from_json(request.to_string().as_bytes()).unwrap();
            let taught = json!({
                "strategy": "none", "share": 15_000, "unconfirmed": unconfirmed, "of": "itself", "outcomes": 1
            });
            let request = Request::parse(document)
                .unwrap()
                .with_calibration(vec![serde_json::from_value(taught).unwrap()]);
            let result = engine.fit(&request, Isolation::Shared, &work).unwrap();
            let best = result.recommendation;
            let is_told = best.notes.iter().any(|note| note.contains("another key"));
            (best.micro_batch, is_told, best.headroom.fraction)
        };

        let (confirmed, _, kept) = batch(0);

        for unconfirmed in [30_000, 200_000] {
            let (lowered, is_told, left) = batch(unconfirmed);
            let least = confirmed - confirmed / 20;
            assert!(
                (least..=confirmed).contains(&lowered),
                "{model}: {confirmed} {lowered}"
            );
            assert_eq!(is_told, lowered < confirmed, "{model}");
            assert!(left >= kept, "{model}: {kept} {left}");
        }
    }
}
