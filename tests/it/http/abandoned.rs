//! Work that nobody waits for any more gives its place back.

use axum::body::Body;
use axum::http::Request;
use batchfit::jobs::Limits;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use super::Service;
use super::connections::{PATIENT, Served, post};
use super::scripted::{Gate, Scripted};
use crate::wait;

const PROBE: &str = r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "batch": 64}"#;

#[tokio::test]
async fn a_probe_that_is_dropped_stops_and_leaves_its_place() {
    let gate = Gate::closed();
    let limits = Limits {
        simulated_in_parallel: 1,
        ..Limits::default()
    };
    let service = Service::limited(Scripted::behind(&gate), limits).await;
    let ask = || {
        let request = Request::post("/v1/probes").body(Body::from(PROBE)).unwrap();
        service.router.clone().oneshot(request)
    };
    let mut asking = JoinSet::new();

    for _ in 0..3 {
        asking.spawn(ask());
        tokio::select! {
            () = gate.arrival() => {}
            answer = asking.join_next() => panic!("answered before it began: {answer:?}"),
        }
        asking.shutdown().await;
        gate.cancellation().await;
    }

    asking.spawn(ask());
    gate.arrival().await;
    gate.open();
    let last = wait::for_future("the last answer", asking.join_next()).await;
    assert_eq!(last.unwrap().unwrap().unwrap().status(), 201);
}

/// The same over a socket, more often than there are places: the server notices that the client has gone.
#[tokio::test]
async fn a_client_that_hangs_up_stops_its_probe() {
    let gate = Gate::closed();
    let served = Served::start(Scripted::behind(&gate), PATIENT).await;

    for _ in 0..=PATIENT.open {
        let asking = served.send(&post("/v1/probes", "", PROBE)).await;
        gate.arrival().await;
        drop(asking);
        gate.cancellation().await;
    }
}
