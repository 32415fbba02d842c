//! Errors that no handler of ours raises, and bodies that are no documents yet.

use std::io::Write as _;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::scripted::Scripted;
use super::{RESNET, Service, assert_answer};

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn post(encoding: &str, body: Vec<u8>) -> Request<Body> {
    Request::post("/v1/fits")
        .header("content-encoding", encoding)
        .body(Body::from(body))
        .unwrap()
}

#[tokio::test]
async fn an_unknown_path_is_a_problem() {
    let service = Service::start(Scripted::default()).await;

    assert_answer!(service.get("/v2/fits").await);
}

/// The `type` of a problem is a path that explains it.
#[tokio::test]
async fn every_code_explains_itself() {
    let service = Service::start(Scripted::default()).await;

    let list = service.get("/problems").await;

    assert_answer!(list);
    for item in list.json()["items"].as_array().unwrap() {
        let explained = service.get(item["type"].as_str().unwrap()).await;
        assert_eq!(&explained.json(), item);
    }
    assert_eq!(service.get("/problems/nothing").await.status, 404);
}

#[tokio::test]
async fn a_method_that_a_path_does_not_answer_is_a_problem() {
    let service = Service::start(Scripted::default()).await;

    assert_answer!(service.delete("/v1/fits").await);
}

#[tokio::test]
async fn an_unknown_content_encoding_is_a_problem() {
    let service = Service::start(Scripted::default()).await;

    assert_answer!(service.send(post("br", RESNET.into())).await);
}

#[tokio::test]
async fn a_compressed_body_is_understood() {
    let service = Service::start(Scripted::default()).await;

    let answer = service.send(post("gzip", gzip(RESNET.as_bytes()))).await;

    assert_eq!(answer.status, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn what_curl_calls_a_form_is_understood() {
    let service = Service::start(Scripted::default()).await;

    let request =
        Request::post("/v1/fits").header("content-type", "application/x-www-form-urlencoded");
    let answer = service
        .send(request.body(Body::from(RESNET)).unwrap())
        .await;

    assert_eq!(answer.status, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_small_body_that_becomes_a_large_one_is_refused() {
    let service = Service::start(Scripted::default()).await;
    let bomb = gzip(&vec![b' '; 65 << 20]);

    let answer = service.send(post("gzip", bomb)).await;

    assert_answer!(answer);
}

#[tokio::test]
async fn members_that_are_too_large_are_no_fault_of_the_json() {
    let service = Service::start(Scripted::default()).await;
    let modules = json!({"checkpointing": {"modules": vec!["layer*"; 40_000]}});
    let body = json!({"model": "resnet18", "device": "sim:t4", "training": modules});

    let answer = service.post("/v1/fits", body.to_string()).await;

    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(answer.json()["type"], "/problems/request-invalid");
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("more than 4 MiB"), "{detail}");
}

#[tokio::test]
async fn gzip_that_is_none_is_a_problem() {
    let service = Service::start(Scripted::default()).await;

    let answer = service.send(post("gzip", RESNET.into())).await;

    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.json()["type"], "/problems/body-malformed");
}
