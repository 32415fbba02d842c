//! `/v1/fits/{id}/events` and `/v1/events`: what is told, to whom, from where on.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Request;
use batchfit::jobs::{EngineError, Limits};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use super::connections::{LIMITS, Served, post};
use super::scripted::{Gate, Outcome, Scripted};
use super::{Answer, DEADLINE, RESNET, RESNET_8, Service};

/// An event as a client reads it.
#[derive(Debug, Clone, PartialEq)]
struct Told {
    id: u64,
    kind: String,
    data: Value,
}

/// The events in a stream that has ended.
fn events(text: &str) -> Vec<Told> {
    let blocks = text.split("\n\n").filter(|block| block.contains("data:"));
    let field = |block: &str, name: &str| -> String {
        let lines = block.lines().filter_map(|line| line.strip_prefix(name));
        lines.map(|value| value.trim_start_matches(": ")).collect()
    };
    blocks
        .map(|block| Told {
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

fn kinds(told: &[Told]) -> Vec<&str> {
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
    let first = Service::to_crash(Scripted::behind(&gate)).await;
    let fit = first.post("/v1/fits", RESNET).await;
    gate.arrival().await;
    let path = fit.header("location").to_owned();

    let second = first.after_a_crash(Scripted::default()).await;
    second.jobs.wait(&fit.id(), DEADLINE).await.unwrap();
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

    let (told, ()) = tokio::join!(service.get(&path), async {
        tokio::task::yield_now().await;
        service.stop().await;
    });

    assert!(!kinds(&events(&told.text)).contains(&"result"));
}

/// Ten thousand events, a reader that reads them and one that never does: the fit is as fast as without them, and the
/// first reader gets all.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_never_reads_costs_nothing() {
    const EVENTS: u32 = 10_000;
    let gate = Gate::closed();
    let engine = Scripted {
        probes: EVENTS,
        ..Scripted::behind(&gate)
    };
    let service = Service::start(engine).await;
    let fit = service.post("/v1/fits", RESNET).await;
    let path = format!("{}/events", fit.header("location"));
    let open = || {
        let request = Request::get(&path).body(Body::empty()).unwrap();
        service.router.clone().oneshot(request)
    };
    let never_read: Vec<_> = {
        let mut all = Vec::new();
        for _ in 0..16 {
            all.push(open().await.unwrap());
        }
        all
    };

    let begun = Instant::now();
    let mut reading = JoinSet::new();
    reading.spawn(open());
    gate.open();
    service.jobs.wait(&fit.id(), DEADLINE).await.unwrap();
    let took = begun.elapsed();

    let read = reading.join_next().await.unwrap();
    let read = read.unwrap().unwrap().into_body();
    let read = tokio::time::timeout(DEADLINE, read.collect()).await;
    let text = read.unwrap().unwrap().to_bytes();
    let told = events(std::str::from_utf8(&text).unwrap());
    let probes = told.iter().filter(|told| told.kind == "probe").count();
    println!(
        "{EVENTS} events with 16 readers that never read: told in {took:?}; a reader that reads got {probes} probes"
    );
    assert!(told.is_sorted_by_key(|told| told.id));
    assert_eq!(told.last().unwrap().kind, "result");
    assert!(probes > 9_900, "{probes}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    // What they did not read is there, but for what made room.
    for body in never_read.into_iter().take(2) {
        let body = body.into_body().collect();
        let text = tokio::time::timeout(DEADLINE, body).await.unwrap().unwrap();
        let text = text.to_bytes();
        let told = events(std::str::from_utf8(&text).unwrap());
        assert_eq!(told.last().unwrap().kind, "result");
    }
}

const FOLLOW: &str = "GET /v1/fits/{id}/events HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Over a socket: those who follow take no place of those who ask, and silence alone ends no stream.
#[tokio::test(flavor = "multi_thread")]
async fn followers_make_room_and_are_not_cut_off_while_there_is_nothing_to_tell() {
    let gate = Gate::closed();
    let served = Served::start(Scripted::behind(&gate), LIMITS).await;
    let mut answer = served
        .send(&post("/v1/fits", "connection: close\r\n", RESNET))
        .await;
    let mut text = String::new();
    answer.read_to_string(&mut text).await.unwrap();
    let id = text.split("\r\n\r\n").nth(1).unwrap();
    let id: Value = serde_json::from_str(id).unwrap();
    let follow = FOLLOW.replace("{id}", id["id"].as_str().unwrap());

    // Nobody will ever read what is sent to these.
    let mut followers = Vec::new();
    for _ in 0..2 * LIMITS.open {
        followers.push(served.send(&follow).await);
    }
    assert!(served.healthz().await.starts_with("HTTP/1.1 200"));
    drop(followers);

    // Their places are free again.
    let deadline = Instant::now() + DEADLINE;
    let (mut last, mut told) = loop {
        let mut last = served.send(&follow).await;
        let mut part = [0; 4096];
        let read = tokio::time::timeout(DEADLINE, last.read(&mut part)).await;
        let read = read.expect("an answer").unwrap_or(0);
        let told = String::from_utf8_lossy(&part[..read]).into_owned();
        if told.starts_with("HTTP/1.1 200") {
            break (last, told);
        }
        assert!(Instant::now() < deadline, "{told}");
    };
    // It hears nothing for longer than any client may be silent.
    tokio::time::sleep(2 * LIMITS.transfer).await;
    gate.open();
    let mut part = [0; 4096];
    while !told.contains("event: result") {
        let read = tokio::time::timeout(DEADLINE, last.read(&mut part)).await;
        let read = read.expect("more is told").unwrap();
        assert!(read > 0, "{told}");
        told += &String::from_utf8_lossy(&part[..read]);
    }
}

#[tokio::test]
async fn priorities_decide_who_is_first() {
    let gate = Gate::closed();
    let limits = Limits {
        simulated_in_parallel: 1,
        ..Limits::default()
    };
    let engine = Scripted {
        // So that no two begin within the same millisecond.
        takes: Duration::from_millis(5),
        ..Scripted::behind(&gate)
    };
    let service = Service::limited(engine, limits).await;
    service.post("/v1/fits", RESNET).await;
    gate.arrival().await;
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
    for id in &waiting {
        let fit = service.jobs.wait(id, DEADLINE).await.unwrap().unwrap();
        assert_eq!(fit.state.name(), "done");
        begun.push((fit.started_at, id.clone()));
    }
    begun.sort();
    let order: Vec<_> = begun.into_iter().map(|(_, id)| id).collect();
    assert_eq!(order[2], waiting[0], "{order:?}");
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
    let next = service.post("/v1/fits", RESNET_8).await;
    gate.cancellation().await;
    let fit = service
        .jobs
        .wait(&fit.id(), DEADLINE)
        .await
        .unwrap()
        .unwrap();

    assert_eq!(fit.state.name(), "failed");
    let error = fit.error.unwrap();
    assert_eq!(error["code"], "timed-out");
    assert!(error["detail"].as_str().unwrap().contains("1 s"), "{error}");
    gate.open();
    let next = service.jobs.wait(&next.id(), DEADLINE).await.unwrap();
    assert_eq!(next.unwrap().state.name(), "done");
}

/// Whoever shares a fit is not stopped by the impatience of another.
#[tokio::test]
async fn the_most_patient_of_those_who_ask_the_same_decides() {
    let gate = Gate::closed();
    let service = Service::start(Scripted::behind(&gate)).await;
    let body = RESNET.replace("{\"model\"", "{\"timeout_seconds\": 1, \"model\"");
    let hasty = service.post("/v1/fits", body).await;
    let patient = service.post("/v1/fits", RESNET).await;
    assert_eq!(hasty.id(), patient.id());

    tokio::time::sleep(Duration::from_millis(1_300)).await;
    gate.open();

    let fit = service.jobs.wait(&hasty.id(), DEADLINE).await.unwrap();
    assert_eq!(fit.unwrap().state.name(), "done");
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

/// What has arrived of a stream once `enough` of it has.
async fn until(body: &mut Body, text: &mut String, enough: impl Fn(&str) -> bool) {
    while !enough(text) {
        let frame = tokio::time::timeout(DEADLINE, body.frame()).await;
        let frame = frame.expect("an event in time").expect("more to come");
        if let Ok(data) = frame.unwrap().into_data() {
            text.push_str(std::str::from_utf8(&data).unwrap());
        }
    }
}

#[tokio::test]
async fn whoever_follows_all_fits_is_told_of_each_change() {
    let gate = Gate::closed();
    let service = Service::start(Scripted::behind(&gate)).await;
    let request = Request::get("/v1/events").body(Body::empty()).unwrap();
    let stream = service.router.clone().oneshot(request).await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    assert_eq!(stream.headers()["x-accel-buffering"], "no");
    let mut body = stream.into_body();
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
    let second = of(&second.id());
    assert_eq!(second.first().map(String::as_str), Some("queued"));
    assert_eq!(second.last().map(String::as_str), Some("cancelled"));
    service.stop().await;
    // The server ends the stream; nobody waits for it.
    while let Some(frame) = body.frame().await {
        frame.unwrap();
    }
}
