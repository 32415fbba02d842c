//! Agents that register, stay, end and are listed, and bodies that are none of theirs.

use batchfit::store::Scope;

use super::*;
use crate::http::keys::{Guarded, NO_LIMITS};

#[tokio::test]
async fn another_version_is_told_which_one_is_needed() {
    let service = service().await;
    for (member, other) in [
        ("version", json!("0.0.9")),
        ("protocol", json!(99)),
        ("rules", json!("of another build")),
    ] {
        let mut registration = registration("node1");
        registration[member] = other;
        // Of which the service knows nothing.
        registration["colour"] = json!("red");
        let refused = service.register(&registration).await;
        assert_eq!(refused.status, 409, "{}", refused.text);
        assert_eq!(refused.json()["type"], "/problems/agent-version");
        let needed = format!("batchfit {}", env!("CARGO_PKG_VERSION"));
        assert!(refused.text.contains(&needed), "{}", refused.text);
    }
    assert_eq!(service.get("/v1/agents").await.json()["items"], json!([]));
}

#[tokio::test]
async fn a_name_is_one_process_at_a_time() {
    let service = service().await;
    let first = service.agent("node1").await;
    let mut other = registration("node1");
    other["instance"] = json!("fedcba9876543210");

    assert_eq!(service.agent("node1").await, first);
    let refused = service.register(&other).await;

    assert_eq!(refused.status, 409);
    assert_eq!(refused.json()["type"], "/problems/agent-name-taken");
    let gone = service.delete(&format!("/v1/agents/{first}")).await;
    assert_eq!(gone.status, 204);
    assert_ne!(service.register(&other).await.id(), first);
}

#[tokio::test]
async fn drained_and_cordoned_agents_take_nothing() {
    let service = service().await;
    let agent = service.agent("node1").await;
    let fit = service.post("/v1/fits", ON_KIND).await.id();
    for state in ["draining", "cordoned"] {
        let changed = service.patch(&agent, state).await;
        assert_eq!(changed.json()["state"], state, "{}", changed.text);
        let claimed = service.claim(&agent, 10).await;
        assert_eq!(
            (&claimed["duty"], &claimed["job"]),
            (&json!(state), &Value::Null)
        );
    }
    assert_eq!(service.patch(&agent, "sleepy").await.status, 422);
    assert_eq!(service.patch("nobody", "ready").await.status, 404);

    service.patch(&agent, "ready").await;
    let attempt = service.attempt(&agent).await;
    // One that ends gives back what it has.
    let back = service
        .finish(&agent, &attempt, &json!({"outcome": "released"}))
        .await;

    assert_eq!(back.status, 204, "{}", back.text);
    assert_eq!(service.state_of(&fit).await, "queued");
    let mut leaving = registration("node1");
    leaving["draining"] = json!(true);
    assert_eq!(service.register(&leaving).await.json()["duty"], "draining");
}

#[tokio::test]
async fn agents_are_listed_page_by_page_and_few_cards_at_a_time() {
    let service = service().await;
    for number in 0..6 {
        let cards: Vec<Value> = (0..128)
            .map(|card_number| card(&format!("cuda:{card_number}"), "h200"))
            .collect();
        let mut registration = registration(&format!("node{number}"));
        registration["cards"] = json!(cards);
        assert_eq!(service.register(&registration).await.status, 200);
    }
    let page = async |query: &str| {
        let page = service.get(&format!("/v1/agents{query}")).await.json();
        let agents = page["items"].as_array().unwrap().iter();
        let names: Vec<String> = agents.map(|agent| agent["name"].to_string()).collect();
        (names.concat(), page["next"].clone())
    };

    let first = r#""node0""node1""node2""node3""#.to_owned();
    assert_eq!(page("").await, (first, json!("node3")));
    let rest = r#""node4""node5""#.to_owned();
    assert_eq!(page("?cursor=node3").await, (rest, Value::Null));
    let one = (r#""node4""#.to_owned(), json!("node4"));
    assert_eq!(page("?cursor=node3&limit=1").await, one);
    assert_eq!(service.get("/v1/agents?cursor=%2F").await.status, 400);
    let devices = service.get("/v1/devices").await.json();
    let of_agents = devices["items"].as_array().unwrap().iter();
    let of_agents = of_agents.filter(|device| device["device"].as_str().unwrap().contains('/'));
    assert_eq!(of_agents.count(), 500);
}

#[tokio::test]
async fn an_agent_of_an_earlier_build_is_not_known_to_the_next() {
    let service = service().await;
    let agent = service.agent("node1").await;
    let fit = service.post("/v1/fits", ON_KIND).await;
    let attempt = service.attempt(&agent).await;

    // As if the service had been begun again, with other rules.
    change(&service, "UPDATE agent SET rules = 'older'").await;

    let claim = json!({"free": ["cuda:0"], "wait_seconds": 0}).to_string();
    let claims = format!("/v1/agents/{agent}/claims");
    assert_eq!(service.post(&claims, claim).await.status, 404);
    let late = service.finish(&agent, &attempt, &answered(ON_KIND)).await;
    assert_eq!(late.status, 404, "{}", late.text);
    assert_eq!(service.state_of(&fit.id()).await, "running");
    // It may leave, and whoever comes in its place is known.
    let left = service.delete(&format!("/v1/agents/{agent}")).await;
    assert_eq!(left.status, 204, "{}", left.text);
    assert_ne!(service.agent("node1").await, agent);
}

#[tokio::test]
async fn hostile_bodies_are_refused_and_fail_only_the_fit_that_they_answer() {
    let service = service().await;
    let agent = service.agent("node1").await;
    let fit = service.post("/v1/fits", ON_KIND).await.id();
    let attempt = service.attempt(&agent).await;
    let paths = [
        "/v1/agents".to_owned(),
        format!("/v1/agents/{agent}/claims"),
        format!("/v1/agents/{agent}/jobs/{attempt}/progress"),
        format!("/v1/agents/{agent}/jobs/{attempt}/result"),
    ];
    let deep = "[".repeat(200_000);
    let long = format!(r#"{{"name": "{}"}}"#, "a".repeat(9 << 20));
    let bodies = [
        "",
        "null",
        "{",
        "[]",
        "\u{0}",
        r#"{"free": 1}"#,
        r#"{"progress": {"probes_done": -1}}"#,
        r#"{"outcome": "answered", "result": {}}"#,
        r#"{"outcome": "else"}"#,
        &deep,
        &long,
    ];
    for path in &paths {
        if path.ends_with("/result") {
            let told = service.tell_job(&agent, &attempt, &json!({})).await;
            assert_eq!(told.json()["state"], "running");
        }
        for body in bodies {
            let request = if path.ends_with("/result") {
                Request::put(path)
            } else {
                Request::post(path)
            };
            let answer = service
                .send(request.body(Body::from(body.to_owned())).unwrap())
                .await;
            // Of progress every member may be missing, and those that are not known are not looked at.
            let is_harmless = path.ends_with("/progress") && answer.status == 200;
            assert!(
                is_harmless || (400..500).contains(&answer.status),
                "{path} {}: {}",
                body.get(..40).unwrap_or(body),
                answer.text
            );
        }
    }
    for attempt in [
        "",
        "x",
        "x.y",
        &format!("{fit}.99"),
        &format!("{fit}.-1"),
        &"9".repeat(5_000),
    ] {
        let told = service.tell_job(&agent, attempt, &json!({})).await;
        assert!(
            matches!(told.status, 404 | 405 | 409),
            "{attempt}: {}",
            told.text
        );
    }
    let mut many = registration("node3");
    many["cards"] = (0..129)
        .map(|number| card(&format!("cuda:{number}"), "h200"))
        .collect();
    assert_eq!(service.register(&many).await.status, 422);
    assert_eq!(service.state_of(&fit).await, "failed");
}

#[tokio::test]
async fn who_forgets_its_own_cordoned_agent_hears_that_it_stays() {
    let service = Guarded::start(Scripted::default(), NO_LIMITS).await;
    let agent = service.key("node", Scope::Agent).await;
    let admin = service.key("admin", Scope::Admin).await;
    let body = registration("node1").to_string();
    let welcome = service.with(&agent, "POST /v1/agents", &body).await;
    let welcome: Value = serde_json::from_str(&welcome.body).unwrap();
    let its = format!("/v1/agents/{}", welcome["id"].as_str().unwrap());
    let patch = format!("PATCH {its}");
    service
        .with(&admin, &patch, r#"{"state": "cordoned"}"#)
        .await;

    for (key, status, says) in [
        (&agent, 200, r#""state":"cordoned""#),
        (&admin, 204, ""),
        (&agent, 404, "/problems/not-found"),
    ] {
        let said = service.with(key, &format!("DELETE {its}"), "").await;
        assert_eq!(said.status, status, "{said:?}");
        assert!(said.body.contains(says), "{said:?}");
    }
}
