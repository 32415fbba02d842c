//! `/v1/fits/{id}/events` and `/v1/events`: what is told, to whom, from where on.

use axum::body::Body;
use axum::http::Request;
use batchfit::http::ConnectionLimits;
use batchfit::jobs::{EngineError, Limits};
use batchfit::store::{Db, FitState};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tower::ServiceExt as _;

use super::connections::{HEALTHZ, PATIENT, SHORT, Served, post, read};
use super::scripted::{Gate, Outcome, Scripted};
use super::{Answer, RESNET, RESNET_8, Service};
use crate::wait;

/// An event as a client reads it.
#[derive(Debug, Clone, PartialEq)]
struct StreamEvent {
    id: u64,
    kind: String,
    data: Value,
}

/// The events in a stream that has ended.
fn events(text: &str) -> Vec<StreamEvent> {
    let blocks = text.split("\n\n").filter(|block| block.contains("data:"));
    let field = |block: &str, name: &str| -> String {
        let lines = block.lines().filter_map(|line| line.strip_prefix(name));
        lines.map(|value| value.trim_start_matches(": ")).collect()
    };
    blocks
        .map(|block| StreamEvent {
            id: field(block, "id").parse().unwrap(),
            kind: field(block, "event"),
            data: serde_json::from_str(&field(block, "data")).unwrap(),
        })
        .collect()
}

async fn after(service: &Service, path: &str, last: &str) -> Answer {
    let request = Request::get(format!("{path}/events")).header("last-event-id", last);
    service.send(request.body(Body::empty()).unwrap()).await
}

/// The body of an answer that goes on.
async fn follow(service: &Service, path: &str) -> Body {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let answer = service.router.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    assert_eq!(answer.headers()["x-accel-buffering"], "no");
    answer.into_body()
}

/// What has arrived of a stream once `enough` of it has.
async fn until(body: &mut Body, text: &mut String, enough: impl Fn(&str) -> bool) {
    while !enough(text) {
        let frame = wait::for_future("another event", body.frame()).await;
        let frame = frame.expect("more to come");
        if let Ok(data) = frame.unwrap().into_data() {
            text.push_str(std::str::from_utf8(&data).unwrap());
        }
    }
}

/// What is left of a stream.
async fn rest(body: Body) -> String {
    let rest = wait::for_future("the end of a stream", body.collect()).await;
    String::from_utf8(rest.unwrap().to_bytes().into()).unwrap()
}

fn kinds(told: &[StreamEvent]) -> Vec<&str> {
    told.iter().map(|told| told.kind.as_str()).collect()
}

#[tokio::test]
async fn a_fit_is_told_from_the_queue_to_its_result() {
    let service = Service::start(Scripted::default()).await;
    let done = service.post_and_wait("/v1/fits", RESNET).await;
    let path = done.header("location").to_owned();

    let all = service.get(&format!("{path}/events")).await;

    assert_eq!(all.header("content-type"), "text/event-stream");
    assert_eq!(all.header("x-accel-buffering"), "no");
    assert!(all.text.contains("retry: 1000\n"), "{}", all.text);
    let told = events(&all.text);
    assert_eq!(kinds(&told), ["state", "state", "probe", "state", "result"]);
    let ids: Vec<u64> = told.iter().map(|told| told.id).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5]);
    let states = [0, 1, 3].map(|at| told[at].data["state"].clone());
    assert_eq!(states, ["queued", "running", "done"]);
    assert_eq!(told[2].data["batch"], 64);
    assert_eq!(told[4].data, done.json());

    for last in 0..5 {
        let rest = after(&service, &path, &last.to_string()).await;
        assert_eq!(events(&rest.text), told[last..]);
    }
    let over = after(&service, &path, "5").await;
    assert_eq!((over.status, over.text.as_str()), (204, ""));
}

#[tokio::test]
async fn what_is_no_number_of_an_event_is_refused_or_unknown() {
    let service = Service::start(Scripted::default()).await;
    let done = service.post_and_wait("/v1/fits", RESNET).await;
    let path = done.header("location");

    for wrong in [
        "x",
        "-1",
        "1.5",
        "99999999999999999999",
        "9223372036854775808",
        "1 2",
        "",
    ] {
        let refused = after(&service, path, wrong).await;
        assert_eq!(refused.status, 400, "{wrong}: {}", refused.text);
        assert_eq!(refused.json()["type"], "/problems/header-invalid");
    }
    // From another life of the database: everything is told again, and not nothing for ever.
    for unknown in ["57", "9223372036854775807"] {
        let all = after(&service, path, unknown).await;
        assert_eq!(events(&all.text).len(), 5, "{unknown:?}");
    }
    assert_eq!(service.get("/v1/fits/nothing/events").await.status, 404);
}

#[tokio::test]
async fn failures_and_cancellations_have_results_too() {
    let broken = EngineError::DeviceFailed {
        device: "sim:h200".to_owned(),
        cause: "signal 9".to_owned(),
    };
    let service = Service::start(Scripted::that(Outcome::Fails(broken))).await;
    let failed = service.post_and_wait("/v1/fits", RESNET).await;
    let told = service
        .get(&format!("{}/events", failed.header("location")))
        .await;
    let last = events(&told.text).pop().unwrap();
    assert_eq!(last.kind, "result");
    assert_eq!(last.data["error"]["code"], "device-failed");

    let gate = Gate::closed();
    let service = Service::start(Scripted::behind(&gate)).await;
    let fit = service.post("/v1/fits", RESNET).await;
    gate.arrival().await;
    let path = format!("{}/events", fit.header("location"));
    let following = service.get(&path);
    let (told, _) = tokio::join!(following, service.delete(fit.header("location")));
    let told = events(&told.text);
    assert_eq!(told[told.len() - 2].data["state"], "cancelled");
    assert_eq!(told[told.len() - 1].data["state"], "cancelled");
}

#[tokio::test]
async fn after_a_restart_a_client_goes_on_where_it_was() {
    let gate = Gate::closed();
    let first = Service::start(Scripted::behind(&gate)).await;
    let fit = first.post("/v1/fits", RESNET).await;
    gate.arrival().await;
    let path = fit.header("location").to_owned();

    let second = first.after_a_crash(Scripted::default()).await;
    second.ended(&fit.id()).await;
    // The client had the first three.
    let rest = events(&after(&second, &path, "3").await.text);
    assert_eq!(kinds(&rest).last(), Some(&"result"));
    assert!(rest.iter().all(|told| told.id > 3), "{rest:?}");
    assert!(rest.is_sorted_by_key(|told| told.id));

    let third = second.after_a_crash(Scripted::default()).await;
    let last = rest.last().unwrap().id.to_string();
    let again = events(&after(&third, &path, &last).await.text);
    // It cannot know that it was told; and then it does.
    assert_eq!(kinds(&again), ["state", "result"]);
    let last = again[1].id.to_string();
    assert_eq!(after(&third, &path, &last).await.status, 204);
}

#[tokio::test]
async fn streams_end_with_the_server() {
    let gate = Gate::closed();
    let service = Service::start(Scripted::behind(&gate)).await;
    let fit = service.post("/v1/fits", RESNET).await;
    gate.arrival().await;
    let path = format!("{}/events", fit.header("location"));

    let mut body = follow(&service, &path).await;
    let mut told = String::new();
    until(&mut body, &mut told, |told| told.contains("running")).await;

    service.stop().await;

    told += &rest(body).await;
    assert!(!kinds(&events(&told)).contains(&"result"));
}

/// Nine hundred events, a reader that reads them and some that never do: the fit ends, and the first reader gets all.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_never_reads_blocks_no_other() {
    let gate = Gate::closed();
    let engine = Scripted {
        probes: 900,
        ..Scripted::behind(&gate)
    };
    let service = Service::start(engine).await;
    let fit = service.post("/v1/fits", RESNET).await;
    let path = format!("{}/events", fit.header("location"));
    let mut never_read = Vec::new();
    for _ in 0..16 {
        never_read.push(follow(&service, &path).await);
    }
    let reader = follow(&service, &path).await;

    gate.open();
    let id = fit.id();
    let (_, read) = tokio::join!(service.ended(&id), rest(reader));

    let told = events(&read);
    let probes = told.iter().filter(|told| told.kind == "probe").count();
    assert!(told.is_sorted_by_key(|told| told.id));
    assert_eq!(told.last().unwrap().kind, "result");
    assert!(probes > 890, "{probes}");
    // What they did not read is there, but for what made room.
    for body in never_read.into_iter().take(2) {
        let told = events(&rest(body).await);
        assert_eq!(told.last().unwrap().kind, "result");
    }
}

const FOLLOW: &str = "GET /v1/fits/{id}/events HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Over a socket: those who follow take no place of those who ask, and silence alone ends no stream.
#[tokio::test(flavor = "multi_thread")]
async fn followers_make_room_and_are_not_cut_off_while_there_is_nothing_to_tell() {
    let gate = Gate::closed();
    let limits = ConnectionLimits {
        idle: SHORT,
        transfer: SHORT,
        ..PATIENT
    };
    let served = Served::start(Scripted::behind(&gate), limits).await;
    let fit = post("/v1/fits", "connection: close\r\n", RESNET);
    let text = read(served.send(&fit).await).await;
    let id = text.split("\r\n\r\n").nth(1).unwrap();
    let id: Value = serde_json::from_str(id).unwrap();
    let follow = FOLLOW.replace("{id}", id["id"].as_str().unwrap());

    // Nobody will ever read what is sent to these.
    let mut followers = Vec::new();
    for _ in 0..2 * limits.open {
        followers.push(served.send(&follow).await);
    }
    assert!(served.healthz().await.starts_with("HTTP/1.1 200"));
    drop(followers);

    // Their places are free again.
    let (mut last, mut told) = wait::until_some_async("a place to follow from", async || {
        let mut last = served.send(&follow).await;
        let told = part(&mut last).await;
        told.starts_with("HTTP/1.1 200").then_some((last, told))
    })
    .await;
    // It hears nothing for longer than any client may be silent.
    read(served.send(HEALTHZ).await).await;
    gate.open();
    while !told.contains("event: result") {
        let more = part(&mut last).await;
        assert!(!more.is_empty(), "{told}");
        told += &more;
    }
}

/// What arrives next; nothing from a connection that is closed.
async fn part(stream: &mut TcpStream) -> String {
    let mut part = [0; 4096];
    let read = wait::for_future("a part of an answer", stream.read(&mut part)).await;
    String::from_utf8_lossy(&part[..read.unwrap_or(0)]).into_owned()
}

#[tokio::test]
async fn priorities_decide_the_order() {
    let gate = Gate::closed();
    let limits = Limits {
        simulated_in_parallel: 1,
        ..Limits::default()
    };
    let service = Service::limited(Scripted::behind(&gate), limits).await;
    service.post("/v1/fits", RESNET).await;
    gate.arrival().await;
    let mut changes = service.jobs.follow_all();
    let mut waiting = Vec::new();
    for (limit, priority) in [(8, "batch"), (9, "batch"), (10, "interactive")] {
        let body = RESNET.replace("12GiB", &format!("{limit}GiB")).replace(
            "{\"model\"",
            &format!("{{\"priority\": \"{priority}\", \"model\""),
        );
        waiting.push(service.post("/v1/fits", body).await.id());
    }
    // Somebody waits for the second one.
    let body = RESNET.replace("12GiB", "9GiB");
    let request = Request::post("/v1/fits").header("prefer", "wait=0");
    let same = service.send(request.body(Body::from(body)).unwrap()).await;
    assert_eq!(same.id(), waiting[1]);

    gate.open();
    let mut begun = Vec::new();
    while begun.len() < waiting.len() {
        let change = wait::for_future("the next fit to begin", changes.recv()).await;
        let change = change.unwrap();
        begun.extend((change.state == FitState::Running).then_some(change.id));
    }
    assert_eq!(begun[2], waiting[0], "{begun:?}");
}

#[tokio::test]
async fn a_fit_that_takes_too_long_is_stopped_and_leaves_its_lane() {
    let gate = Gate::closed();
    let limits = Limits {
        simulated_in_parallel: 1,
        ..Limits::default()
    };
    let service = Service::limited(Scripted::behind(&gate), limits).await;
    let body = RESNET.replace("{\"model\"", "{\"timeout_seconds\": 1, \"model\"");

    let fit = service.post("/v1/fits", body).await;
    gate.arrival().await;
    let next = service.post("/v1/fits", RESNET_8).await;
    gate.cancellation().await;
    let fit = service.ended(&fit.id()).await;

    assert_eq!(fit["state"], "failed");
    let error = &fit["error"];
    assert_eq!(error["code"], "timed-out");
    assert!(error["detail"].as_str().unwrap().contains("1 s"), "{error}");
    gate.open();
    let next = service.ended(&next.id()).await;
    assert_eq!(next["state"], "done");
}

/// Whoever shares a fit is not stopped by the impatience of another.
#[tokio::test]
async fn the_longest_wait_for_the_same_request_decides() {
    let gate = Gate::closed();
    let service = Service::start(Scripted::behind(&gate)).await;
    let (allowed, db) = (Db::fit_timeout, service.jobs.db());
    let hasty = RESNET.replace("{\"model\"", "{\"timeout_seconds\": 30, \"model\"");

    let hasty = service.post("/v1/fits", hasty).await.id();
    let alone = allowed(db, &hasty).await.unwrap();
    let patient = service.post("/v1/fits", RESNET).await.id();

    assert_eq!(hasty, patient);
    let together = allowed(db, &hasty).await.unwrap();
    assert_eq!((alone, together), (Some(30), Some(60)));
}

#[tokio::test]
async fn terms_that_make_no_sense_are_refused_with_their_place() {
    let service = Service::start(Scripted::default()).await;

    for (terms, pointer) in [
        (r#""timeout_seconds": 0"#, "/timeout_seconds"),
        (r#""timeout_seconds": -1"#, "/timeout_seconds"),
        (r#""timeout_seconds": 1e99"#, "/timeout_seconds"),
        (r#""timeout_seconds": "1""#, "/timeout_seconds"),
        (r#""timeout_seconds": 86401"#, "/timeout_seconds"),
        (r#""priority": "urgent""#, "/priority"),
        (r#""priority": 1"#, "/priority"),
    ] {
        let body = RESNET.replace("{\"model\"", &format!("{{{terms}, \"model\""));
        let refused = service.post("/v1/fits", body).await;
        assert_eq!(refused.status, 422, "{terms}");
        assert_eq!(refused.json()["pointer"], pointer, "{}", refused.text);
    }
    // They are no part of the question.
    let first = service.post_and_wait("/v1/fits", RESNET).await;
    let body = RESNET.replace(
        "{\"model\"",
        "{\"timeout_seconds\": 60, \"priority\": \"batch\", \"model\"",
    );
    assert_eq!(service.post("/v1/fits", body).await.id(), first.id());
}

#[tokio::test]
async fn followers_of_all_fits_get_each_change() {
    let gate = Gate::closed();
    let limits = Limits {
        simulated_in_parallel: 1,
        ..Limits::default()
    };
    let service = Service::limited(Scripted::behind(&gate), limits).await;
    let mut body = follow(&service, "/v1/events").await;
    let mut told = String::new();

    until(&mut body, &mut told, |told| told.contains("event: list\n")).await;
    let first = service.post("/v1/fits", RESNET).await.id();
    gate.arrival().await;
    let second = service.post("/v1/fits", RESNET_8).await;
    service.delete(second.header("location")).await;
    gate.open();
    let done = format!(r#"data: {{"id":"{first}","state":"done"}}"#);
    until(&mut body, &mut told, |told| told.contains(&done)).await;

    let of = |id: &str| -> Vec<String> {
        let lines = told.lines().filter_map(|line| line.strip_prefix("data: "));
        let all = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.filter(|data| data["id"] == id)
            .map(|data| data["state"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(of(&first), ["queued", "running", "done"]);
    assert_eq!(of(&second.id()), ["queued", "cancelled"]);
    service.stop().await;
    // The server ends the stream; nobody waits for it.
    rest(body).await;
}
