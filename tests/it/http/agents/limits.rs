//! What an agent may not do, whatever it says: hold a fit beyond its time limit, and take more than its cards can run.

use super::*;

/// A fit that may be worked on for three seconds.
fn brief(classes: u32) -> String {
    let classes =
        format!(r#""preset": "resnet18", "num_classes": {classes}}}, "timeout_seconds": 3"#);
    ON_KIND.replace(r#""preset": "resnet18"}"#, &classes)
}

/// Makes it an hour ago that all running fits began; their leases are those that an agent has which renewed them since.
async fn an_hour_passes(service: &Service) {
    let update = format!(
        "UPDATE fit SET started_at = started_at - 3600000,
                        lease_until = started_at - 3600000 + timeout_seconds * 1000 + {}
          WHERE state = 'running'",
        HANG.as_millis()
    );
    change(service, update).await;
}

async fn timed_out(service: &Service, fit: &str) {
    let failed = service.get(&format!("/v1/fits/{fit}")).await.json();
    assert_eq!(failed["error"]["code"], "timed-out", "{failed:#}");
    let detail = failed["error"]["detail"].as_str().unwrap();
    assert!(detail.starts_with("it was stopped after 3 s;"), "{detail}");
}

#[tokio::test]
async fn beyond_the_time_limit_neither_news_nor_an_answer_are_taken() {
    let limits = Limits {
        // This server has not watched for long enough to end fits by itself.
        lease: Duration::from_hours(1),
        lease_of_agents: HANG,
        ..Limits::default()
    };
    let service = Service::limited(Scripted::default(), limits).await;
    let agent = service.agent("node1").await;
    for answer_first in [false, true] {
        let asked = brief(10 + u32::from(answer_first));
        let fit = service.post("/v1/fits", asked.clone()).await.id();
        let attempt = service.attempt(&agent).await;
        let in_time = service.tell_job(&agent, &attempt, &json!({})).await;
        assert_eq!(in_time.json()["state"], "running", "{}", in_time.text);

        an_hour_passes(&service).await;
        let answer = answered(&asked);
        let mut late = Vec::new();
        if answer_first {
            late.push(service.finish(&agent, &attempt, &answer).await);
        }
        late.push(service.tell_job(&agent, &attempt, &json!({})).await);
        late.push(service.finish(&agent, &attempt, &answer).await);

        for refused in late {
            assert_eq!(refused.status, 409, "{}", refused.text);
            assert_eq!(refused.json()["type"], "/problems/lease-lost");
        }
        timed_out(&service, &fit).await;
    }
}

#[tokio::test]
async fn a_fit_that_is_held_beyond_its_time_limit_fails_without_another_word() {
    let service = service().await;
    let agent = service.agent("node1").await;
    let fit = service.post("/v1/fits", brief(10)).await.id();
    service.attempt(&agent).await;

    an_hour_passes(&service).await;
    wait::until_async("the fit to end", async || {
        service.state_of(&fit).await != "running"
    })
    .await;

    timed_out(&service, &fit).await;
}

#[tokio::test]
async fn an_agent_takes_one_fit_for_each_card_whatever_it_calls_free() {
    let service = service().await;
    let mut two = registration("node1");
    two["cards"] = json!([card("cuda:0", "h200"), card("cuda:1", "h200")]);
    let agent = service.register(&two).await.id();
    for classes in 10..13 {
        service.post("/v1/fits", brief(classes)).await;
    }
    let both = ["cuda:0", "cuda:1"];

    let first = service.claim_on(&agent, &both[1..], 0).await;
    let second = service.claim_on(&agent, &both, 0).await;
    let third = service.claim_on(&agent, &both, 0).await;

    let device = |claimed: &Value| claimed["job"]["device"].clone();
    assert_eq!(device(&first), "cuda:1");
    assert_eq!(third["job"], Value::Null, "{third:#}");
    assert_ne!(device(&second), Value::Null);
    // One is free as soon as its fit has ended.
    let attempt = first["job"]["attempt"].as_str().unwrap();
    let done = service
        .finish(&agent, attempt, &json!({"outcome": "released"}))
        .await;
    assert_eq!(done.status, 204, "{}", done.text);
    let again = service.claim_on(&agent, &both[1..], 0).await;
    assert_eq!(device(&again), "cuda:1");
}

#[tokio::test]
async fn claims_at_the_same_time_take_one_fit_for_each_card() {
    let service = service().await;
    let agent = service.agent("node1").await;
    for classes in 10..13 {
        service.post("/v1/fits", brief(classes)).await;
    }

    let (a, b, c) = tokio::join!(
        service.claim(&agent, 0),
        service.claim(&agent, 0),
        service.claim(&agent, 0)
    );

    let given = [a, b, c]
        .iter()
        .filter(|claimed| !claimed["job"].is_null())
        .count();
    assert_eq!(given, 1);
}

#[tokio::test]
async fn attempts_that_are_given_back_count_towards_the_time_limit() {
    let service = service().await;
    let mut agent = service.agent("node1").await;
    let fit = service.post("/v1/fits", brief(10)).await.id();
    for leaves in [false, true] {
        let attempt = service.attempt(&agent).await;
        let shown = service.get(&format!("/v1/fits/{fit}")).await.json();
        assert_eq!(shown["progress"], Value::Null, "it is of this attempt");
        let news = json!({"progress": {"probes_done": 3, "batch": 64, "note": "on the GPU"}});
        let told = service.tell_job(&agent, &attempt, &news).await;
        assert_eq!(told.status, 200, "{}", told.text);

        let earlier = "UPDATE fit SET started_at = started_at - 2000 WHERE state = 'running'";
        change(&service, earlier).await;
        if leaves {
            service.delete(&format!("/v1/agents/{agent}")).await;
            agent = service.agent("node1").await;
        } else {
            let released = json!({"outcome": "released"});
            let given_back = service.finish(&agent, &attempt, &released).await;
            assert_eq!(given_back.status, 204, "{}", given_back.text);
        }
        assert_eq!(service.state_of(&fit).await, "queued");
    }

    let claimed = service.claim(&agent, 0).await;

    assert_eq!(claimed["job"], Value::Null, "{claimed:#}");
    timed_out(&service, &fit).await;
}

#[tokio::test]
async fn recommendations_keep_the_beginning_of_a_long_text() {
    let service = service().await;
    let agent = service.agent("node1").await;
    service.post("/v1/fits", ON_KIND).await;
    let attempt = service.attempt(&agent).await;
    let mut answer = answered(ON_KIND);
    let long = json!("x".repeat(4_000));
    answer["result"]["recommendation"]["limited_by"] = long.clone();
    answer["result"]["variants"][0]["recommendation"]["limited_by"] = long;

    let done = service.finish(&agent, &attempt, &answer).await;

    assert_eq!(done.status, 204, "{}", done.text);
    let stored = service.get("/v1/recommendations").await.json();
    let kept = &stored["items"][0]["limited_by"];
    assert_eq!(kept, &json!("x".repeat(200)));
}

#[tokio::test]
async fn an_agents_answer_is_the_one_of_today_while_agents_answer() {
    let service = service().await;
    let mut simulated = registration("node1");
    simulated["cards"][0]["simulated"] = json!(true);
    let of_simulations = service.register(&simulated).await.id();
    let near = async || {
        let near = service.post("/v1/recommendations/nearest", ON_KIND).await;
        near.json()["exact"].clone()
    };
    let answer = async |agent: &str, device: &str| {
        service.post("/v1/fits", ON_KIND).await;
        let attempt = service.attempt(agent).await;
        let mut answer = answered(ON_KIND);
        answer["result"]["environment"]["device"] = json!(device);
        let told = service.finish(agent, &attempt, &answer).await;
        assert_eq!(told.status, 204, "{}", told.text);
    };
    answer(&of_simulations, "sim:h200").await;
    assert_eq!(near().await, true);
    // Real cards go before simulated ones.
    let real = service.agent("node2").await;
    assert_eq!(near().await, false);
    answer(&real, "cuda:0").await;

    assert_eq!(near().await, true);
}

#[tokio::test]
async fn who_asks_the_same_while_an_agent_works_on_it_gets_its_answer() {
    let service = service().await;
    let agent = service.agent("node1").await;
    let first = service.post("/v1/fits", ON_KIND).await.id();
    change(&service, "UPDATE fit SET owner = 'other'").await;
    let attempt = service.attempt(&agent).await;
    let second = service.post("/v1/fits", ON_KIND).await.id();
    assert_ne!(first, second, "each key has a fit of its own");
    let elsewhere = service.post("/v1/fits", ON_HOST).await.id();

    let told = service.finish(&agent, &attempt, &answered(ON_KIND)).await;

    assert_eq!(told.status, 204, "{}", told.text);
    let answer = async |fit: &str| {
        let fit = service.get(&format!("/v1/fits/{fit}")).await.json();
        fit["result"]["recommendation"].clone()
    };
    assert_eq!(answer(&first).await["micro_batch"], 256);
    assert_eq!(answer(&second).await, answer(&first).await);
    let stored = service.get("/v1/recommendations").await.json();
    assert_eq!(stored["items"].as_array().unwrap().len(), 2);
    // What is left is another question.
    let left = service.claim(&agent, 0).await;
    assert_eq!(left["job"]["fit"], elsewhere, "{left:#}");
}

#[tokio::test]
async fn an_agent_hears_of_its_own_answer_where_that_of_others_cannot_be_stored() {
    let service = service().await;
    let agent = service.agent("node1").await;
    let first = service.post("/v1/fits", ON_KIND).await.id();
    change(&service, "UPDATE fit SET owner = 'other'").await;
    let attempt = service.attempt(&agent).await;
    let second = service.post("/v1/fits", ON_KIND).await.id();
    let refuses = "CREATE UNIQUE INDEX one_answer ON fit (fingerprint, finished_at)";
    change(&service, refuses).await;

    let told = service.finish(&agent, &attempt, &answered(ON_KIND)).await;

    assert_eq!(told.status, 204, "{}", told.text);
    assert_eq!(service.state_of(&first).await, "done");
    assert_eq!(service.state_of(&second).await, "queued");
}
