//! Large bodies: how they are read, stored and shown.

use std::io::{Read as _, Write as _};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use futures_util::future::join_all;

use super::scripted::Scripted;
use super::{LONGEST_WAIT, Service};
use crate::model::golden;
use crate::wait;

/// A request with the whole graph of a ResNet-18 in it, which has hundreds of KiB.
fn with_graph() -> Vec<u8> {
    let mut graph = String::new();
    GzDecoder::new(&*golden("resnet18"))
        .read_to_string(&mut graph)
        .unwrap();
    format!(r#"{{"model": {{"exported": {graph}}}, "device": "sim:h200"}}"#).into_bytes()
}

fn compressed(body: &[u8]) -> Request<Body> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(body).unwrap();
    Request::post("/v1/fits")
        .header("content-encoding", "gzip")
        .header("prefer", LONGEST_WAIT)
        .body(Body::from(gzip.finish().unwrap()))
        .unwrap()
}

#[tokio::test]
async fn a_large_graph_is_stored_whole_and_shown_by_its_digest() {
    let service = Service::start(Scripted::default()).await;

    let answer = service.send(compressed(&with_graph())).await;

    // The runner reads the request from the database: it was stored whole.
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let fit = answer.json();
    assert_eq!(fit["state"], "done", "{fit}");
    let shown = fit["request"]["model"]["exported"].as_str().unwrap();
    assert!(shown.starts_with("sha256:") && shown.len() == 71, "{shown}");
    assert_eq!(fit["request"]["device"], "sim:h200");
}

#[tokio::test]
async fn small_objects_by_the_million_are_refused_with_the_limit() {
    let service = Service::start(Scripted::default()).await;
    let objects = "{},".repeat(300_000);
    let start = r#"{"model": {"exported": {"graph_module": {"graph": {"nodes": [], "inputs": ["#;

    for (body, limit) in [
        (
            format!(r#"{{"training": [{objects}{{}}]}}"#),
            "more than 4 MiB",
        ),
        (
            format!(r#"{{"model": {{"preset": [{objects}{{}}]}}}}"#),
            "more than 16 MiB",
        ),
        (
            format!(
                "{start}{}{{}}]}}}}}}}}}}",
                r#"{"as_none":0},"#.repeat(2_200_000)
            ),
            "more than 64 MiB",
        ),
    ] {
        let answer = service.send(compressed(body.as_bytes())).await;

        let refusals = [StatusCode::BAD_REQUEST, StatusCode::UNPROCESSABLE_ENTITY];
        assert!(
            refusals
                .iter()
                .any(|status| answer.status == status.as_u16()),
            "{answer:?}"
        );
        let detail = answer.json()["detail"].to_string();
        assert!(detail.contains(limit), "{detail}");
    }
}

#[tokio::test]
async fn bodies_that_are_read_at_the_same_time_are_all_answered() {
    let service = Service::start(Scripted::default()).await;
    let body = with_graph();

    let asking = (0..12).map(|_| {
        // Whoever waited for long is to ask again.
        wait::until_some_async("a body to be read", async || {
            let status = service.send(compressed(&body)).await.status;
            (status != 503).then_some(status)
        })
    });

    assert_eq!(join_all(asking).await, [200; 12]);
}
