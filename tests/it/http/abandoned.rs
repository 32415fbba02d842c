//! Work that nobody waits for any more gives its place back.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use batchfit::http::serve;
use batchfit::jobs::Limits;
use batchfit::store::Db;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::Service;
use super::scripted::{Gate, Scripted};

const PROBE: &str = r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "batch": 64}"#;

fn one_at_a_time() -> Limits {
    Limits {
        queued: 10,
        simulated_in_parallel: 1,
        ..Limits::default()
    }
}

#[tokio::test]
async fn a_probe_that_is_dropped_stops_and_leaves_its_place() {
    let gate = Gate::closed();
    let service = Service::limited(Scripted::behind(&gate), one_at_a_time()).await;
    let ask = || {
        let request = Request::post("/v1/probes").body(Body::from(PROBE)).unwrap();
        service.router.clone().oneshot(request)
    };
    let mut asking = JoinSet::new();

    for _ in 0..3 {
        asking.spawn(ask());
        gate.arrival().await;
        asking.shutdown().await;
        gate.cancellation().await;
    }

    asking.spawn(ask());
    gate.arrival().await;
    gate.open();
    let last = asking.join_next().await.unwrap();
    assert_eq!(last.unwrap().unwrap().status(), 201);
}

/// The same over a socket: the server notices that the client has gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_stops_its_probe() {
    let gate = Gate::closed();
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("batchfit.db");
    let db = Db::open(file.to_str().unwrap()).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let engine = Arc::new(Scripted::behind(&gate));
    let mut serving = JoinSet::new();
    serving.spawn(serve(
        listener,
        db,
        engine,
        one_at_a_time(),
        shutdown.clone(),
    ));

    for _ in 0..3 {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "POST /v1/probes HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{PROBE}",
            PROBE.len()
        )
        .unwrap();
        gate.arrival().await;
        drop(stream);
        gate.cancellation().await;
    }

    shutdown.cancel();
    let served = serving.join_next().await.unwrap();
    served.unwrap().unwrap();
}
