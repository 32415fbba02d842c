//! `/v1/runs`: what `batchfit run` stored in the same database.

use axum::body::Body;
use axum::http::Request;
use batchfit::jobs::record_run;
use batchfit::replay::{Bounds, ReplayOptions, ReplayReport, read, replay};
use batchfit::virtual_gpu::{Answer, Ending};

use super::Service;
use super::scripted::Scripted;
use crate::cli::virtual_gpu::{START, answer, session};

fn ran(ending: Ending) -> Answer {
    let lines = ["hello\t12\t", START, "malloc\t0\t1073741824\t0x1000000000"];
    answer(&session("rtx4090"), &lines, ending).unwrap()
}

/// What an allocator did.
fn step() -> ReplayReport {
    let trace = include_bytes!("../../golden/traces/trace-cifarnet-fp32-sgd-b3900.txt.gz");
    let recording = read(trace, Bounds::default()).unwrap();
    let asked = ReplayOptions {
        events: true,
        ..ReplayOptions::default()
    };
    replay(&recording, &asked).unwrap().report
}

/// As `batchfit run` does.
async fn store(service: &Service, ending: Ending, step: Option<&ReplayReport>) {
    let answer = ran(ending);
    let stored = record_run(service.jobs.db(), &answer, step).await;
    assert!(stored.unwrap());
}

#[tokio::test]
async fn runs_are_listed_newest_first_and_read_with_their_answers() {
    let service = Service::start(Scripted::default()).await;
    for ending in [Ending::Exit(0), Ending::Exit(1), Ending::Exit(0)] {
        store(&service, ending, None).await;
    }

    let list = service.get("/v1/runs?limit=2").await.json();
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert_eq!(list["items"][0]["command"], "python train.py");
    let next = list["next"].as_str().unwrap();
    let rest = service.get(&format!("/v1/runs?cursor={next}")).await.json();
    assert_eq!(rest["items"].as_array().unwrap().len(), 1);
    assert!(rest["next"].is_null());

    let read = service.get(&format!("/v1/runs/{next}")).await.json();
    assert_eq!(read["run"], list["items"][1]);
    assert_eq!(read["answer"]["evidence"], "virtual");
    assert_eq!(
        read["answer"],
        serde_json::to_value(ran(Ending::Exit(1))).unwrap()
    );
}

#[tokio::test]
async fn a_step_is_kept_as_it_was_replayed() {
    let service = Service::start(Scripted::default()).await;
    let kept = step();
    store(&service, Ending::Exit(0), Some(&kept)).await;
    let list = service.get("/v1/runs").await.json();
    assert_eq!(list["items"][0]["has_step"], true);
    let path = format!("/v1/runs/{}/step", list["items"][0]["id"].as_str().unwrap());

    let plain = service.get(&path).await;
    assert_eq!(plain.json(), serde_json::to_value(&kept).unwrap());
    let request = Request::get(&path).header("accept-encoding", "gzip");
    let packed = service.send(request.body(Body::empty()).unwrap()).await;
    assert_eq!(packed.header("content-encoding"), "gzip");
    assert!(packed.text.len() < plain.text.len());
}

#[tokio::test]
async fn what_is_not_kept_is_not_found() {
    let service = Service::start(Scripted::default()).await;
    store(&service, Ending::Exit(0), None).await;
    let list = service.get("/v1/runs").await.json();
    let id = list["items"][0]["id"].as_str().unwrap();

    for path in [
        format!("/v1/runs/{id}/step"),
        "/v1/runs/a".to_owned(),
        "/v1/runs/a/step".to_owned(),
    ] {
        let answer = service.get(&path).await;
        assert_eq!(answer.status, 404, "{path}");
    }
    let answer = service.get("/v1/runs?cursor=a").await;
    assert_eq!(
        (answer.status, answer.json()["parameter"].as_str()),
        (400, Some("cursor"))
    );
}
