//! Agents, as the service sees them: here they are what a test says in their place.

mod limits;
mod registration;

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use batchfit::jobs::{JobOutcome, Limits, PROTOCOL};
use batchfit::model::{ENGINE_DIGEST, Request as Question, RequestDocument};
use batchfit::store::{Attempt, Time};
use serde_json::{Value, json};

use super::scripted::{Scripted, result};
use super::servers::change;
use super::{Answer, Service};
use crate::wait::{self, HANG};

/// A fit for any H200.
const ON_KIND: &str =
    r#"{"model": {"preset": "resnet18"}, "device": "h200", "memory_limit": "12GiB"}"#;

/// A fit for one card of one machine.
const ON_HOST: &str =
    r#"{"model": {"preset": "resnet18"}, "device": "node1/cuda:0", "memory_limit": "8GiB"}"#;

fn card(device: &str, kind: &str) -> Value {
    json!({
        "device": device, "kind": kind, "gpu": "NVIDIA H200", "memory_bytes": 85_520_809_984_u64,
        "usable_bytes": 80_000_000_000_u64, "compute_capability": "9.0", "multiprocessors": 132, "driver": "570.1",
        "cudnn": "9.19.0", "mig": null, "simulated": false
    })
}

fn registration(name: &str) -> Value {
    json!({
        "name": name, "instance": "0123456789abcdef", "version": env!("CARGO_PKG_VERSION"), "protocol": PROTOCOL,
        "rules": ENGINE_DIGEST, "cards": [card("cuda:0", "h200")]
    })
}

/// A service whose agents may be slow, and that soon notices a lease that has passed.
async fn service() -> Service {
    let soon = Duration::from_millis(100);
    let limits = Limits {
        lease: soon,
        look_around: soon,
        lease_of_agents: HANG,
        ..Limits::default()
    };
    Service::limited(Scripted::default(), limits).await
}

impl Service {
    async fn register(&self, registration: &Value) -> Answer {
        self.post("/v1/agents", registration.to_string()).await
    }

    /// The id of a new agent.
    async fn agent(&self, name: &str) -> String {
        let welcome = self.register(&registration(name)).await;
        assert_eq!(welcome.status, 200, "{}", welcome.text);
        welcome.id()
    }

    async fn claim(&self, agent: &str, wait: u32) -> Value {
        self.claim_on(agent, &["cuda:0"], wait).await
    }

    async fn claim_on(&self, agent: &str, free: &[&str], wait: u32) -> Value {
        let claim = json!({"free": free, "wait_seconds": wait});
        let answer = self
            .post(&format!("/v1/agents/{agent}/claims"), claim.to_string())
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    }

    /// The attempt at the fit that waits.
    async fn attempt(&self, agent: &str) -> String {
        let claimed = self.claim(agent, 10).await;
        let attempt = claimed["job"]["attempt"].as_str();
        attempt.unwrap_or_else(|| panic!("{claimed:#}")).to_owned()
    }

    /// Makes it an hour ago that this agent was heard of, and that the lease of its fit passed.
    async fn lose(&self, agent: &str, fit: &str) {
        let db = self.jobs.db();
        let stored = db.agent(agent).await.unwrap().unwrap();
        let long_ago = Time(stored.seen_at.0 - 3_600_000);
        let attempt = Attempt {
            id: fit,
            number: 1,
            holder: &stored.holder(),
        };
        db.agent_seen(agent, long_ago).await.unwrap();
        let renewed = db.renew(attempt, long_ago, 0).await.unwrap();
        assert_eq!(renewed, Some(long_ago));
    }

    async fn tell_job(&self, agent: &str, attempt: &str, news: &Value) -> Answer {
        let path = format!("/v1/agents/{agent}/jobs/{attempt}/progress");
        self.post(&path, news.to_string()).await
    }

    async fn finish(&self, agent: &str, attempt: &str, outcome: &Value) -> Answer {
        let path = format!("/v1/agents/{agent}/jobs/{attempt}/result");
        let request = Request::put(path);
        self.send(request.body(Body::from(outcome.to_string())).unwrap())
            .await
    }

    async fn patch(&self, agent: &str, state: &str) -> Answer {
        let request = Request::patch(format!("/v1/agents/{agent}"));
        let body = json!({"state": state}).to_string();
        self.send(request.body(Body::from(body)).unwrap()).await
    }

    async fn state_of(&self, fit: &str) -> String {
        let fit = self.get(&format!("/v1/fits/{fit}")).await.json();
        fit["state"].as_str().unwrap().to_owned()
    }
}

/// What an agent finds for a request, on its first card.
fn answered(request: &str) -> Value {
    let document = RequestDocument::from_json(request.as_bytes()).unwrap();
    let request = Question::parse(document).unwrap();
    let mut result = result(&request);
    "cuda:0".clone_into(&mut result.environment.device);
    serde_json::to_value(JobOutcome::Answered {
        result: Box::new(result),
    })
    .unwrap()
}

#[tokio::test]
async fn a_fit_goes_to_an_agent_and_its_answer_comes_back() {
    let service = service().await;
    let agent = service.agent("node1").await;
    let fit = service.post("/v1/fits", ON_KIND).await;
    assert_eq!(fit.status, 202, "{}", fit.text);
    assert_eq!(fit.json()["state"], "queued");

    let claimed = service.claim(&agent, 0).await;
    let job = &claimed["job"];
    assert_eq!(
        (&job["device"], &job["fit"]),
        (&json!("cuda:0"), &json!(fit.id()))
    );
    let attempt = job["attempt"].as_str().unwrap().to_owned();
    let asked = service
        .get(&format!("/v1/agents/{agent}/jobs/{attempt}/request"))
        .await;
    assert_eq!(
        asked.json(),
        serde_json::from_str::<Value>(ON_KIND).unwrap()
    );
    let agents = service.get("/v1/agents").await.json();
    assert_eq!(agents["items"][0]["state"], "busy");
    assert_eq!(agents["items"][0]["works_on"], json!([fit.id()]));

    let news = json!({"progress": {"probes_done": 3, "batch": 64, "note": "on the GPU"}});
    let lease = service.tell_job(&agent, &attempt, &news).await;
    assert_eq!(lease.json()["state"], "running");
    let running = service.get(&format!("/v1/fits/{}", fit.id())).await.json();
    assert_eq!(running["progress"]["batch"], 64);

    // Said twice, as when the answer to the first is lost.
    for _ in 0..2 {
        let done = service.finish(&agent, &attempt, &answered(ON_KIND)).await;
        assert_eq!(done.status, 204, "{}", done.text);
    }
    let done = service.get(&format!("/v1/fits/{}", fit.id())).await.json();
    assert_eq!(done["state"], "done");
    assert_eq!(done["result"]["environment"]["device"], "node1/cuda:0");
    let stored = service.get("/v1/recommendations").await.json();
    assert_eq!(stored["items"][0]["device"], "h200");
    // The same question is answered, and goes to nobody.
    let again = service.post("/v1/fits", ON_KIND).await;
    assert_eq!(again.id(), fit.id());
    assert_eq!(service.claim(&agent, 0).await["job"], Value::Null);
    service.stop().await;
}

#[tokio::test]
async fn an_answer_that_cannot_be_one_is_refused_and_its_fit_fails() {
    let service = service().await;
    let agent = service.agent("node1").await;
    let both = |name: &str, value: Value| {
        let mut answer = answered(ON_KIND);
        answer["result"]["recommendation"][name] = value.clone();
        answer["result"]["variants"][0]["recommendation"][name] = value;
        answer
    };
    let headroom =
        |fraction: f64| both("headroom", json!({"fraction": fraction, "from": "learnt"}));
    let one = |pointer: &str, value: Value| {
        let mut answer = answered(ON_KIND);
        *answer.pointer_mut(pointer).unwrap() = value;
        answer
    };
    let lies = [
        both("micro_batch", json!(1 << 30)),
        both("micro_batch", json!(u64::MAX)),
        both("global_batch", json!(3)),
        both("limit_bytes", json!(1_u64 << 50)),
        both("peak_reserved_bytes", json!(1_u64 << 50)),
        headroom(-1.0),
        headroom(0.0),
        both("step_ms", json!(-1e308)),
        both("evidence", json!("trained")),
        both("fits", json!(false)),
        both("limited_by", json!("a\u{0}b")),
        both("limited_by", json!("\u{202e}b")),
        both("notes", json!(["x".repeat(1 << 20)])),
        one("/result/recommendation/micro_batch", json!(7)),
        one("/result/environment/gpu", json!("NVIDIA L4")),
        one("/result/environment/device", json!("sim:h200")),
        one("/result/environment/pytorch", json!("99.99")),
        one("/result/variants/0/rank", json!(u32::MAX)),
        one("/result/variants/0/training/precision", json!("bf16")),
        one("/result/recommendation", json!({})),
        one("/result/recommendation/fits", json!(false)),
        one("/result/recommendation/shortfall", json!(1)),
        one("/result/recommendation/notes", json!(["none"])),
        both("max_batch_steady", json!(1_u64 << 53)),
        both("max_batch_steady", json!(0)),
        both("max_batch_without_retries", json!(1_u64 << 53)),
        json!({"outcome": "answered"}),
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let asked = ON_KIND.replace(
            "\"resnet18\"",
            &format!("\"resnet18\", \"num_classes\": {}", number + 2),
        );
        let fit = service.post("/v1/fits", asked).await.id();
        let attempt = service.attempt(&agent).await;

        let refused = service.finish(&agent, &attempt, &lie).await;

        assert_eq!(refused.status, 422, "{number}: {}", refused.text);
        assert_eq!(service.state_of(&fit).await, "failed", "{number}");
    }
    let stored = service.get("/v1/recommendations").await.json();
    assert_eq!(stored["items"], json!([]));
    service.stop().await;
}

#[tokio::test]
async fn an_answer_without_what_was_asked_is_refused_and_its_fit_fails() {
    let service = service().await;
    let agent = service.agent("node1").await;
    let more = [
        r#""preset": "resnet18"}, "headroom": 0.3"#,
        r#""preset": "gpt2"}, "lengths": {"seq_len": "64:5,128:5"}"#,
    ];
    for more in more {
        let asked = ON_KIND.replace(r#""preset": "resnet18"}"#, more);
        let fit = service.post("/v1/fits", asked).await.id();
        let attempt = service.attempt(&agent).await;

        let answer = answered(ON_KIND);
        let refused = service.finish(&agent, &attempt, &answer).await;

        assert_eq!(refused.status, 422, "{more}: {}", refused.text);
        assert_eq!(service.state_of(&fit).await, "failed", "{more}");
    }
    service.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_no_json_fails_its_fit_at_once() {
    let service = service().await;
    let agent = service.agent("node1").await;
    let fit = service.post("/v1/fits", ON_KIND).await.id();
    let attempt = service.attempt(&agent).await;

    let path = format!("/v1/agents/{agent}/jobs/{attempt}/result");
    let sent = Request::put(path).body(Body::from(r#"{"outcome": "\ud800"}"#));
    let refused = service.send(sent.unwrap()).await;

    assert_eq!(refused.status, 400, "{}", refused.text);
    assert_eq!(service.state_of(&fit).await, "failed");
    service.stop().await;
}

#[tokio::test]
async fn a_kind_of_card_without_an_agent_is_simulated() {
    let service = service().await;
    let request = r#"{"model": {"preset": "resnet18"}, "device": "h200", "memory_limit": "12GiB"}"#;
    let soaked = r#"{"model": {"preset": "resnet18"}, "device": "h200", "soak": {"steps": 5}, "timeout_seconds": 600}"#;

    for request in [request, soaked] {
        let accepted = service.post("/v1/fits", request).await;
        assert_eq!(accepted.status, 202, "{}", accepted.text);
        let timeout = service.jobs.db().fit_timeout(&accepted.id()).await;
        assert_eq!(timeout.unwrap(), Some(60));
    }
}

#[tokio::test]
async fn a_card_of_one_machine_goes_to_that_machine_alone() {
    let service = service().await;
    let other = service.agent("node2").await;
    let unknown = service.post("/v1/fits", ON_HOST).await;
    assert_eq!(unknown.status, 422);
    assert!(
        unknown.text.contains("hosts with an agent are node2"),
        "{}",
        unknown.text
    );
    let node1 = service.agent("node1").await;

    let fit = service.post("/v1/fits", ON_HOST).await;

    assert_eq!(fit.status, 202, "{}", fit.text);
    assert_eq!(service.claim(&other, 0).await["job"], Value::Null);
    assert_eq!(service.claim(&node1, 0).await["job"]["fit"], fit.id());
    let busy = service.post(
        "/v1/probes",
        r#"{"model": {"preset": "resnet18"}, "device": "node1/cuda:0", "batch": 1}"#,
    );
    let busy = busy.await;
    assert_eq!(busy.status, 422);
    assert!(busy.text.contains("POST /v1/fits"), "{}", busy.text);
    let devices = service.get("/v1/devices").await.json();
    let named = |name: &str| {
        let mut items = devices["items"].as_array().unwrap().iter();
        items.any(|item| {
            item["device"] == name && item["card"] == "h200" && item["cudnn"] == "9.19.0"
        })
    };
    assert!(
        named("node1/cuda:0") && named("node2/cuda:0"),
        "{devices:#}"
    );
}

#[tokio::test]
async fn claim_returns_job_queued_while_waiting() {
    let service = service().await;
    let agent = service.agent("node1").await;

    let given = wait::until_some_async("a fit to be given", async || {
        let claimed = service.claim(&agent, 15).await;
        claimed["job"]["fit"].as_str().map(str::to_owned)
    });
    let (given, fit) = tokio::join!(given, service.post("/v1/fits", ON_KIND));

    assert_eq!(given, fit.id());
}

#[tokio::test]
async fn a_lease_that_passes_gives_the_fit_to_another_and_the_late_answer_is_refused() {
    let service = service().await;
    let slow = service.agent("node1").await;
    let fit = service.post("/v1/fits", ON_KIND).await.id();
    let first = service.attempt(&slow).await;
    let other = service.agent("node2").await;

    service.lose(&slow, &fit).await;
    let second = wait::until_some_async("the fit to be given to another", async || {
        let claimed = service.claim(&other, 1).await;
        let attempt = claimed["job"]["attempt"].as_str()?.to_owned();
        assert_eq!(claimed["job"]["apart"], true);
        Some(attempt)
    })
    .await;

    assert_eq!(
        (first, second.as_str()),
        (format!("{fit}.1"), format!("{fit}.2").as_str())
    );
    let agents = service.get("/v1/agents").await.json();
    assert_eq!(agents["items"][0]["state"], "lost");
    for late in [
        service
            .tell_job(&slow, &format!("{fit}.1"), &json!({}))
            .await,
        service
            .finish(&slow, &format!("{fit}.1"), &answered(ON_KIND))
            .await,
        // Somebody else's attempt is nobody's business.
        service.finish(&slow, &second, &answered(ON_KIND)).await,
    ] {
        assert_eq!(late.status, 409, "{}", late.text);
        assert_eq!(late.json()["type"], "/problems/lease-lost");
    }
    let done = service.finish(&other, &second, &answered(ON_KIND)).await;
    assert_eq!(done.status, 204, "{}", done.text);
    assert_eq!(service.state_of(&fit).await, "done");
}

#[tokio::test]
async fn cancelling_reaches_the_agent() {
    let service = service().await;
    let agent = service.agent("node1").await;
    let fit = service.post("/v1/fits", ON_KIND).await.id();
    let attempt = service.attempt(&agent).await;

    let cancelled = service.delete(&format!("/v1/fits/{fit}")).await;

    assert_eq!(cancelled.status, 200);
    let told = service.tell_job(&agent, &attempt, &json!({})).await;
    assert_eq!(
        (told.status, &told.json()["state"]),
        (200, &json!("cancelled"))
    );
    let late = service.finish(&agent, &attempt, &answered(ON_KIND)).await;
    assert_eq!(late.status, 409);
    assert_eq!(service.state_of(&fit).await, "cancelled");
}

#[tokio::test]
async fn what_an_agent_simulated_is_not_offered_as_the_services_own() {
    let service = service().await;
    let mut simulated = registration("node1");
    simulated["cards"][0]["simulated"] = json!(true);
    let agent = service.register(&simulated).await.id();
    service.post("/v1/fits", ON_KIND).await;
    let attempt = service.attempt(&agent).await;
    let mut answer = answered(ON_KIND);
    answer["result"]["environment"]["device"] = json!("sim:h200");
    let told = service.finish(&agent, &attempt, &answer).await;
    assert_eq!(told.status, 204, "{}", told.text);

    let near = async |request: &str| {
        let request = request.to_owned();
        service.post("/v1/recommendations/nearest", request).await
    };
    assert_eq!(near(ON_KIND).await.status, 200);
    let of_service = ON_KIND.replace("\"h200\"", "\"sim:h200\"");
    let refused = near(&of_service).await;
    assert_eq!(refused.status, 404, "{}", refused.text);
    // What trainings tell of it is told of a simulated answer.
    let stored = service.get("/v1/recommendations").await.json()["items"][0].clone();
    let path = format!(
        "/v1/recommendations/{}/outcomes",
        stored["id"].as_str().unwrap()
    );
    let oom = r#"{"batch": 256, "outcome": "out_of_memory", "environment": {"gpu": "NVIDIA H200", "pytorch": "2.11"}}"#;
    assert_eq!(service.post(&path, oom).await.status, 201);
    let accuracy = service.get("/v1/accuracy").await.json();
    assert_eq!(accuracy["items"][0]["source"], "simulated");
    // So it is known by both names of the card.
    for request in [ON_KIND, ON_HOST] {
        let fit = service.post("/v1/fits", request).await.id();
        let claimed = service.claim(&agent, 10).await;
        let taught = &claimed["job"]["taught"][0];
        assert_eq!(taught["of"], "itself", "{claimed:#}");
        service.delete(&format!("/v1/fits/{fit}")).await;
    }
}

#[tokio::test]
async fn what_an_agent_cannot_do_is_why_there_is_no_answer() {
    let service = service().await;
    let agent = service.agent("node1").await;
    let fit = service.post("/v1/fits", ON_KIND).await.id();
    let attempt = service.attempt(&agent).await;
    let error = json!({"code": "device-failed", "detail": "cuda:0 failed: it fell off the bus", "pointer": null, "simulated": null});

    let told = service
        .finish(
            &agent,
            &attempt,
            &json!({"outcome": "failed", "error": error}),
        )
        .await;

    assert_eq!(told.status, 204, "{}", told.text);
    let failed = service.get(&format!("/v1/fits/{fit}")).await.json();
    assert_eq!(failed["state"], "failed");
    assert_eq!(failed["error"]["code"], "device-failed");
}

#[tokio::test]
async fn an_answer_to_something_else_fails_the_fit() {
    let service = service().await;
    let agent = service.agent("node1").await;
    let fit = service.post("/v1/fits", ON_KIND).await.id();
    let attempt = service.attempt(&agent).await;
    let mut other = answered(ON_KIND);
    other["result"]["variants"] = json!([]);

    let refused = service.finish(&agent, &attempt, &other).await;

    assert_eq!(refused.status, 422, "{}", refused.text);
    let failed = service.get(&format!("/v1/fits/{fit}")).await.json();
    assert_eq!(failed["state"], "failed");
    assert!(
        failed["error"]["detail"]
            .as_str()
            .unwrap()
            .contains("node1")
    );
}
