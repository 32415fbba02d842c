//! Uploads that mean no good, or are broken.

use std::io::{Seek as _, SeekFrom};

use axum::body::{Body, Bytes};
use axum::http::Request;
use hyper::body::Frame;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use super::super::Service;
use super::super::scripted::Scripted;
use super::{digest, golden, graph, gunzip, gzip, naming};
use crate::wait;

#[tokio::test]
async fn a_wrong_digest_is_refused_with_the_right_one() {
    let service = Service::start(Scripted::default()).await;
    let (file, other) = (graph(), digest(b"something else"));

    let refused = service.put(&other, file.clone()).await;

    assert_eq!(refused.status, 422, "{}", refused.text);
    let refused = refused.json();
    assert_eq!(refused["type"], "/problems/digest-mismatch");
    assert_eq!(refused["value"], other);
    assert_eq!(refused["nearest"], digest(&file));
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains(&other) && detail.contains(&digest(&file)));
    for named in [other, digest(&file)] {
        let path = format!("/v1/graphs/{named}");
        assert_eq!(service.get(&path).await.status, 404);
    }
}

#[tokio::test]
async fn a_digest_in_upper_case_is_the_same() {
    let service = Service::start(Scripted::default()).await;
    let file = graph();
    let upper = digest(&file).to_uppercase().replace("SHA", "sha");

    let created = service.put(&upper, file.clone()).await;

    assert_eq!(created.status, 201, "{}", created.text);
    assert_eq!(created.json()["digest"], digest(&file));
    assert_eq!(service.put(&digest(&file), file).await.status, 200);
    let fit = service.post_and_wait("/v1/fits", naming(&upper)).await;
    assert_eq!(fit.status, 200, "{}", fit.text);
    let path = format!("/v1/graphs/{upper}");
    assert_eq!(service.delete(&path).await.status, 204);
}

#[tokio::test]
async fn what_is_no_digest_is_refused_before_the_body_is_read() {
    let service = Service::start(Scripted::default()).await;
    let digits = "0".repeat(64);

    for path in [
        digits.clone(),
        format!("sha256:{}", &digits[1..]),
        format!("sha256:{digits}0"),
        format!("SHA256:{digits}"),
        format!("md5:{digits}"),
        "sha256:..%2f..%2f..%2fetc%2fpasswd".to_owned(),
        format!("sha256:%2e%2e{}", &digits[2..]),
        format!("sha256:{}'", &digits[1..]),
        "..".to_owned(),
        "*".to_owned(),
    ] {
        // A body that never ends.
        let endless = never();
        let request = Request::put(format!("/v1/graphs/{path}"));
        let put = service.send(request.body(endless).unwrap()).await;
        let get = service.get(&format!("/v1/graphs/{path}")).await;
        let delete = service.delete(&format!("/v1/graphs/{path}")).await;
        for answer in [put, get, delete] {
            assert_eq!(answer.status, 422, "{path}: {}", answer.text);
            assert_eq!(answer.json()["type"], "/problems/digest-invalid", "{path}");
        }
    }
    let with_nul = format!("/v1/graphs/sha256:{}%00", &digits[1..]);
    for path in [
        "/v1/graphs/",
        "/v1/graphs/a/b",
        "/v1/graphs/../fits/x",
        with_nul.as_str(),
    ] {
        assert_eq!(service.get(path).await.status, 404, "{path}");
    }
    assert_eq!(service.delete("/v1/graphs").await.status, 405);
}

/// A body of which nothing ever arrives.
fn never() -> Body {
    struct Never;
    impl axum::body::HttpBody for Never {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            std::task::Poll::Pending
        }
    }
    Body::new(Never)
}

#[tokio::test]
async fn broken_files_are_refused_with_what_is_wrong() {
    let service = Service::start(Scripted::default()).await;
    let file = graph();
    let plain = gunzip(&file);
    let trace = gunzip(&golden("traces/trace-cifarnet-fp32-sgd-b3900.txt.gz"));
    let archive = golden("exported/mlp-small.pt2");
    let pickle = gunzip(&golden("snapshots/complete.pickle.gz"));
    let half = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();

    for (what, body) in [
        ("nothing", Vec::new()),
        ("half a graph", half(&plain)),
        ("half a gzip file", half(&file)),
        ("half an archive", half(&archive)),
        ("half a snapshot", half(&pickle)),
        ("half a trace", trace[..trace.len() / 2 - 3].to_vec()),
        (
            "another JSON",
            b"{\"model\": {\"preset\": \"resnet18\"}}".to_vec(),
        ),
        ("a list", b"[1, 2]".to_vec()),
        ("a page", b"<!DOCTYPE html>".to_vec()),
        ("an archive of nothing", b"PK\x05\x06\0\0".to_vec()),
        ("gzip in gzip in gzip", gzip(&gzip(&plain))),
        ("a flipped bit", {
            let mut file = file.clone();
            let middle = file.len() / 2;
            file[middle] ^= 1;
            file
        }),
    ] {
        let refused = service.put(&digest(&body), body).await;
        assert_eq!(refused.status, 422, "{what}: {}", refused.text);
        let problem = refused.json();
        assert_eq!(problem["type"], "/problems/upload-invalid", "{what}");
        assert!(problem["detail"].as_str().unwrap().len() > 20, "{what}");
    }
}

#[tokio::test]
async fn names_with_control_characters_are_refused() {
    let service = Service::start(Scripted::default()).await;
    let plain = String::from_utf8(gunzip(&graph())).unwrap();
    for name in [",model.layers.0,", "specs.Mlp", "\"model.layers.0.bias\""] {
        assert!(plain.contains(name), "{name}");
        // An agent's answer may have none of these.
        for mark in ["\\u0000", "\\n", "\\u202e"] {
            let hidden = plain.replace(name, &name.replace('l', mark));
            let fit = format!(r#"{{"model": {{"exported": {hidden}}}, "device": "sim:h200"}}"#);

            let refused = service.post("/v1/fits", fit).await;

            assert_eq!(refused.status, 422, "{}", refused.text);
            let what = "control character";
            assert!(refused.text.contains(what), "{}", refused.text);
        }
    }
}

/// As many zeros as are given, compressed.
fn bomb(mib: usize) -> Vec<u8> {
    gzip(&vec![b' '; mib << 20])
}

#[tokio::test]
async fn what_is_too_large_is_refused_however_it_is_compressed() {
    let service = Service::start(Scripted::default()).await;
    let encoded = |body: Vec<u8>| {
        Request::post("/v1/graphs")
            .header("content-encoding", "gzip")
            .body(Body::from(body))
            .unwrap()
    };
    let bomb = bomb(70);
    assert!(bomb.len() < 1 << 20);

    for (what, request) in [
        (
            "plain",
            Request::post("/v1/graphs")
                .body(Body::from(vec![b' '; 65 << 20]))
                .unwrap(),
        ),
        (
            "a file",
            Request::post("/v1/graphs")
                .body(Body::from(bomb.clone()))
                .unwrap(),
        ),
        ("encoded", encoded(bomb.clone())),
        ("twice", encoded(gzip(&bomb))),
        (
            "an archive",
            Request::post("/v1/graphs")
                .body(Body::from(archive(70)))
                .unwrap(),
        ),
    ] {
        let refused = service.send(request).await;
        assert_eq!(refused.status, 413, "{what}: {}", refused.text);
        assert_eq!(refused.json()["type"], "/problems/body-too-large");
    }
    // Large and allowed: it is read, and is no graph.
    let spaces = service.post("/v1/graphs", vec![b' '; 3 << 20]).await;
    assert_eq!(spaces.status, 422, "{}", spaces.text);
}

/// A `.pt2` archive whose model is that long.
fn archive(mib: usize) -> Vec<u8> {
    use std::io::Write as _;
    let mut file = std::io::Cursor::new(Vec::new());
    let mut zip = zip::ZipWriter::new(&mut file);
    let options = zip::write::SimpleFileOptions::default();
    zip.start_file("m/models/model.json", options).unwrap();
    for _ in 0..mib {
        zip.write_all(&vec![b' '; 1 << 20]).unwrap();
    }
    zip.finish().unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.into_inner()
}

#[tokio::test]
async fn the_same_file_from_many_at_once_is_one_upload() {
    let service = Service::start(Scripted::default()).await;
    let file = graph();
    let path = format!("/v1/graphs/{}", digest(&file));

    let mut all = JoinSet::new();
    // As many as are read at a time: none waits for its turn.
    for _ in 0..4 {
        let request = Request::put(&path).body(Body::from(file.clone())).unwrap();
        let router = service.router.clone();
        all.spawn(async move { router.oneshot(request).await.unwrap().status().as_u16() });
    }
    let mut statuses = wait::for_future("all answers", all.join_all()).await;

    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 201]);
}

#[tokio::test]
async fn names_of_uploads_that_are_not_there_are_refused_with_what_to_do() {
    let service = Service::start(Scripted::default()).await;
    let missing = digest(b"missing");

    for path in ["/v1/fits", "/v1/probes"] {
        let body = naming(&missing).replacen(
            '{',
            "{\"batch\": 1, ",
            usize::from(path.ends_with("probes")),
        );
        let refused = service.post_and_wait(path, body).await;
        assert_eq!(refused.status, 422, "{}", refused.text);
        let refused = refused.json();
        assert_eq!(refused["type"], "/problems/upload-unknown");
        assert_eq!(refused["pointer"], "/model/exported");
        assert_eq!(refused["value"], missing);
        let detail = refused["detail"].as_str().unwrap();
        assert!(
            detail.contains(&format!("PUT /v1/graphs/{missing}")),
            "{detail}"
        );
    }
    for wrong in ["sha256:0123", "resnet18", "", "../x"] {
        let refused = service.post_and_wait("/v1/fits", naming(wrong)).await;
        assert_eq!(refused.status, 422, "{}", refused.text);
        assert_eq!(refused.json()["pointer"], "/model/exported");
    }
    // What belongs to somebody else is still looked at first.
    let both = naming(&missing).replace("\"exported\"", "\"preset\": \"resnet18\", \"exported\"");
    assert_eq!(service.post_and_wait("/v1/fits", both).await.status, 422);
}
