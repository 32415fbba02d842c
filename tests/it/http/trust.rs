//! What one key does changes nothing of another's.

use std::path::PathBuf;
use std::sync::Arc;

use batchfit::jobs::FitEngine;
use batchfit::store::{Scope, Time};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::RESNET;
use super::graphs::{graph, gunzip};
use super::keys::{Guarded, NO_LIMITS};
use super::scripted::{Gate, Scripted};
use crate::wait;

/// Steps so small that the batch is thousands of samples.
const SMALL: &str = r#"{"model": {"layers": [{"type": "linear", "out_features": 512}, {"type": "linear", "out_features": 10}],
    "input": {"shape": [256]}, "loss": "cross_entropy"}, "device": "sim:h200", "memory_limit": "16GiB"}"#;

const PROBE: &str = r#"{"model": {"preset": "alexnet"}, "device": "sim:h200", "batch": 8}"#;

fn id(body: &str) -> String {
    let document: Value = serde_json::from_str(body).unwrap();
    document["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_search_is_its_keys() {
    let service = Guarded::start(Scripted::default(), NO_LIMITS).await;
    let mine = service.key("mine", Scope::Fit).await;
    let other = service.key("other", Scope::Fit).await;
    let admin = service.key("admin", Scope::Admin).await;
    let begun = service.with(&mine, "POST /v1/searches", "{}").await;
    let search = format!("/v1/searches/{}", id(&begun.body));
    let tell = format!("POST {search}/observations");
    let told = r#"{"batch": 4096, "outcome": "fits"}"#;
    let (read, end) = (format!("GET {search}"), format!("DELETE {search}"));

    for (request, body) in [(&tell, told), (&read, ""), (&end, "")] {
        let said = service.with(&other, request, body).await;
        assert_eq!(said.status, 404, "{request}: {said:?}");
    }
    let seen = service.with(&mine, &read, "").await;
    assert!(seen.body.contains(r#""observations":[]"#), "{seen:?}");
    assert_eq!(service.with(&admin, &read, "").await.status, 200);
    assert_eq!(service.with(&mine, &tell, told).await.status, 201);
    assert_eq!(service.with(&admin, &end, "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fit_is_cancelled_by_its_key_and_by_admin() {
    let gate = Gate::closed();
    let service = Guarded::start(Scripted::behind(&gate), NO_LIMITS).await;
    let mine = service.key("mine", Scope::Fit).await;
    let other = service.key("other", Scope::Fit).await;
    let admin = service.key("admin", Scope::Admin).await;
    let asked = service.with(&mine, "POST /v1/fits", RESNET).await;
    // The same question at the same time is another's own fit.
    let same = service.with(&other, "POST /v1/fits", RESNET).await;
    assert_ne!(id(&same.body), id(&asked.body));

    for (key, fit, status, says) in [
        (&other, &asked, 403, "/problems/not-yours"),
        (&mine, &asked, 200, r#""state":"cancelled""#),
        (&mine, &same, 403, "/problems/not-yours"),
        (&admin, &same, 200, r#""state":"cancelled""#),
    ] {
        let end = format!("DELETE /v1/fits/{}", id(&fit.body));
        let said = service.with(key, &end, "").await;
        assert_eq!(said.status, status, "{said:?}");
        assert!(said.body.contains(says), "{said:?}");
    }
    gate.open();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_key_follows_or_waits_for_ends_with_it() {
    let gate = Gate::closed();
    let service = Guarded::start(Scripted::behind(&gate), NO_LIMITS).await;
    let key = service.key("gone", Scope::Fit).await;
    let bearer = format!("authorization: Bearer {key}\r\n");
    let mut following = service.open("GET /v1/events", &bearer, "").await;
    let mut first = [0; 64];
    following.read_exact(&mut first).await.unwrap();
    let waits = format!("prefer: wait=600\r\n{bearer}");
    let mut waiting = service.open("POST /v1/fits", &waits, RESNET).await;
    gate.arrival().await;

    assert!(service.db.revoke_key("gone", Time(2)).await.unwrap());

    let mut rest = Vec::new();
    let _ = wait::for_future("the end of a stream", following.read_to_end(&mut rest)).await;
    let mut text = Vec::new();
    let _ = wait::for_future("the end of a wait", waiting.read_to_end(&mut text)).await;
    let text = String::from_utf8_lossy(&text);
    assert!(text.starts_with("HTTP/1.1 401 "), "{text}");
    gate.open();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_fills_a_quarter_of_the_queue() {
    let gate = Gate::closed();
    let service = Guarded::start(Scripted::behind(&gate), NO_LIMITS).await;
    let greedy = service.key("greedy", Scope::Fit).await;
    let modest = service.key("modest", Scope::Fit).await;
    let asked = |classes: usize| {
        format!(
            r#"{{"model": {{"preset": "alexnet", "num_classes": {classes}}}, "device": "sim:h200"}}"#
        )
    };
    let mut statuses = Vec::new();
    // Some of them run.
    for classes in 1..60 {
        let said = service
            .with(&greedy, "POST /v1/fits", &asked(classes))
            .await;
        statuses.push(said.status);
    }
    let taken = statuses.iter().filter(|status| **status == 202).count();
    assert!((25..50).contains(&taken), "{statuses:?}");
    assert_eq!(statuses.last(), Some(&503));
    let refused = service.with(&greedy, "POST /v1/fits", &asked(60)).await;
    let share = "25 fits of this key are waiting already: one key may fill a quarter of the queue, which holds 100";
    assert!(refused.body.contains(share), "{refused:?}");

    let said = service.with(&modest, "POST /v1/fits", &asked(1_000)).await;
    assert_eq!(said.status, 202, "{said:?}");
    gate.open();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_fills_all_lanes_leaves_another_one() {
    let gate = Gate::closed();
    let service = Guarded::start(Scripted::behind(&gate), NO_LIMITS).await;
    let greedy = service.key("greedy", Scope::Fit).await;
    let modest = service.key("modest", Scope::Fit).await;
    let asked = |classes: usize| {
        format!(
            r#"{{"model": {{"preset": "alexnet", "num_classes": {classes}}}, "device": "sim:h200", "priority": "interactive"}}"#
        )
    };
    let lanes = std::thread::available_parallelism().unwrap().get();
    for classes in 1..lanes + 10 {
        let said = service
            .with(&greedy, "POST /v1/fits", &asked(classes))
            .await;
        assert_eq!(said.status, 202, "{said:?}");
    }
    for _ in 0..lanes {
        gate.arrival().await;
    }

    let said = service.with(&modest, "POST /v1/fits", &asked(1_000)).await;
    gate.arrival().await;

    let fit = format!("GET /v1/fits/{}", id(&said.body));
    let seen = service.with(&modest, &fit, "").await;
    assert!(seen.body.contains(r#""state":"running""#), "{seen:?}");
    gate.open();
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_of_a_key_are_in_the_way_of_its_own_alone() {
    let gate = Gate::closed();
    let engine = Scripted::behind(&gate);
    let probed = Arc::clone(&engine.probed);
    let service = Guarded::start(engine, NO_LIMITS).await;
    let greedy = service.key("greedy", Scope::Fit).await;
    let modest = service.key("modest", Scope::Fit).await;
    let lanes = std::thread::available_parallelism().unwrap().get();
    let mut waiting = Vec::new();
    for key in std::iter::repeat_n(&greedy, 3 * lanes + 8) {
        let bearer = format!("authorization: Bearer {key}\r\n");
        waiting.push(service.open("POST /v1/probes", &bearer, PROBE).await);
    }
    for _ in 0..lanes {
        gate.arrival().await;
    }

    let bearer = format!("authorization: Bearer {modest}\r\n");
    let own = PROBE.replace('8', "9");
    let _own = service.open("POST /v1/probes", &bearer, &own).await;

    gate.arrival().await;
    let last = probed.lock().unwrap().last().map(|(batch, _)| *batch);
    assert_eq!(last, Some(9), "another one of the greedy key");
    gate.open();
    for connection in &mut waiting {
        let _ = connection.read_u8().await;
    }
    // Nor do they get as much of the processors.
    let probed = probed.lock().unwrap();
    let niceness = |of: u64| probed.iter().filter(move |(batch, _)| *batch == of);
    let most = |of| niceness(of).map(|(_, niceness)| *niceness).max();
    assert!(most(8) > most(9), "{probed:?}");
}

/// Sends so many MiB of a body of 64, and then nothing.
async fn slow_body(service: &Guarded, key: &str, mib: usize) -> TcpStream {
    let bearer = format!("authorization: Bearer {key}\r\n");
    let mut stream = service
        .begin("POST /v1/graphs", &bearer, 64 << 20, "")
        .await;
    for _ in 0..mib {
        // It may be refused.
        let _ = stream.write_all(&vec![b' '; 1 << 20]).await;
    }
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_bodies_of_a_key_are_in_the_way_of_its_own_alone() {
    let service = Guarded::start(Scripted::default(), NO_LIMITS).await;
    let greedy = service.key("greedy", Scope::Fit).await;
    let modest = service.key("modest", Scope::Fit).await;
    let _largest = slow_body(&service, &greedy, 63).await;
    let mut refused = JoinSet::new();
    for _ in 0..8 {
        let mut slow = slow_body(&service, &greedy, 1).await;
        refused.spawn(async move { slow.read_u8().await });
    }

    let answer = wait::for_future("an answer before the end of a body", refused.join_next()).await;
    let body = " ".repeat(20 << 20);
    let said = service.with(&modest, "POST /v1/graphs", &body).await;

    assert_eq!(said.status, 422, "{said:?}");
    assert!(answer.is_some());
}

#[tokio::test]
async fn a_refusal_says_that_it_closes_the_connection_on_a_body() {
    let service = Guarded::start(Scripted::default(), NO_LIMITS).await;

    let said = service.ask("POST /v1/fits", "", RESNET).await;

    assert_eq!(said.status, 401);
    assert!(said.head.contains("connection: close"), "{said:?}");
}

#[tokio::test]
async fn what_has_a_nul_in_it_is_not_there() {
    let service = Guarded::start(Scripted::default(), NO_LIMITS).await;
    let key = service.key("any", Scope::Admin).await;

    for path in [
        "fits/a%00",
        "searches/%00",
        "agents/%00b",
        "probes/%00",
        "graphs/%00",
    ] {
        let said = service.with(&key, &format!("GET /v1/{path}"), "").await;
        assert_eq!(said.status, 404, "{path}: {said:?}");
    }
    let said = service.with(&key, "GET /v1/fits?cursor=%00", "").await;
    assert_eq!(said.kind(), "/problems/cursor-invalid");
    let said = service.with(&key, "GET /v1/accuracy?gpu=%00", "").await;
    assert_eq!(said.kind(), "/problems/query-invalid");
}

#[tokio::test]
async fn misses_of_a_key_count_fully_for_itself_and_cost_others_a_twentieth_at_most() {
    // A simulated card needs no worker.
    let engine = FitEngine::new(PathBuf::from("batchfit"));
    let service = Guarded::start(engine, NO_LIMITS).await;
    let mut keys = Vec::new();
    for name in ["victim", "liar", "third"] {
        keys.push(service.key(name, Scope::Fit).await);
    }
    let ask = async |key: &str| {
        let bearer = format!("authorization: Bearer {key}\r\nprefer: wait=60\r\n");
        let fit = service.ask("POST /v1/fits", &bearer, SMALL).await;
        let fit: Value = serde_json::from_str(&fit.body).unwrap();
        let batch = fit["result"]["recommendation"]["micro_batch"].as_u64();
        (id(&fit.to_string()), batch.unwrap())
    };
    let miss = async |key: &str| {
        let (fit, batch) = ask(key).await;
        let outcome = json!({"batch": batch, "outcome": "out_of_memory", "environment": {"gpu": "NVIDIA H200", "pytorch": "2.11"}});
        let tell = format!("POST /v1/recommendations/{fit}/outcomes");
        let told = service.with(key, &tell, &outcome.to_string()).await;
        assert_eq!(told.status, 201, "{told:?}");
    };
    let [victim, liar, third] = [0, 1, 2].map(|at| keys[at].as_str());
    let (first, before) = ask(victim).await;
    assert_eq!(ask(liar).await, (first.clone(), before));

    for _ in 0..6 {
        miss(liar).await;
    }

    let (own, lied) = ask(liar).await;
    assert!(lied * 100 < before * 82, "{lied} of {before}");
    let (mine, after) = ask(victim).await;
    assert_ne!(mine, first);
    assert!(
        before * 95 <= after * 100 && after < before,
        "{after} of {before}"
    );
    // Each has its own answer from then on, also where it is looked for, which is not out of date to it.
    for (key, fit) in [(victim, &mine), (liar, &own)] {
        assert_eq!(&ask(key).await.0, fit);
        let near = service.with(key, "POST /v1/recommendations/nearest", SMALL);
        let near: Value = serde_json::from_str(&near.await.body).unwrap();
        let said = &near["recommendation"];
        assert_eq!(
            (&near["exact"], &said["fit_id"]),
            (&json!(true), &json!(fit))
        );
        assert_eq!(said["stale"], Value::Null, "{near}");
    }
    // An answer that would be another one today is out of date to whom that holds for.
    let is_stale = async |key: &str| {
        let list = service.with(key, "GET /v1/recommendations", "").await;
        let list: Value = serde_json::from_str(&list.body).unwrap();
        let items = list["items"].as_array().unwrap().iter();
        let mut found = items.filter(|item| item["fit_id"] == first.as_str());
        let listed = found.next().unwrap().clone();
        let one = format!("GET /v1/recommendations/{}", listed["id"].as_str().unwrap());
        let one: Value = serde_json::from_str(&service.with(key, &one, "").await.body).unwrap();
        assert_eq!(one["stale"], listed["stale"]);
        listed["stale"]["because"][0]["what"] == "headroom"
    };
    assert!(is_stale(liar).await);
    assert!(!is_stale(victim).await && !is_stale(third).await);
    // Two are believed.
    miss(third).await;
    assert!(ask(victim).await.1 < after);
    assert!(is_stale(victim).await);
}

#[tokio::test]
async fn an_upload_stays_no_longer_because_another_key_names_it() {
    let service = Guarded::start(Scripted::default(), NO_LIMITS).await;
    let mine = service.key("mine", Scope::Fit).await;
    let other = service.key("other", Scope::Fit).await;
    let graph = String::from_utf8(gunzip(&graph())).unwrap();
    let sent = service.with(&mine, "POST /v1/graphs", &graph).await;
    let sent: Value = serde_json::from_str(&sent.body).unwrap();
    let contents = sent["contents"].as_str().unwrap();
    let digest = batchfit::model::Digest::parse(contents).unwrap();
    let used = async || service.db.upload(&digest).await.unwrap().unwrap().used_at;
    let first = used().await;
    let fit = format!(r#"{{"model": {{"exported": "{contents}"}}, "device": "sim:nocard"}}"#);

    for key in [&other, &mine] {
        while Time::from(jiff::Timestamp::now()) <= first {}
        let refused = service.with(key, "POST /v1/fits", &fit).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        assert_eq!(used().await > first, key == &mine);
    }
}
