//! `/v1/fits/{id}/formats/{format}`: answers as text.

use super::scripted::{Gate, Outcome, Scripted};
use super::{RESNET, Service};

#[tokio::test]
async fn the_format_follows_the_accept_header() {
    let service = Service::start(Scripted::default()).await;
    let fit = service.post_and_wait("/v1/fits", RESNET).await;
    let batch = fit.json()["result"]["recommendation"]["micro_batch"].clone();
    let path = format!("{}/formats", fit.header("location"));

    for (format, expected) in [
        ("env", format!("export BATCHFIT_MICRO_BATCH={batch}\n")),
        ("hf", format!("per_device_train_batch_size={batch}")),
        ("lightning", format!("batch_size={batch}")),
        ("accelerate", format!("batch_size={batch}")),
        ("text", format!("Train with a micro-batch of {batch}")),
        ("markdown", format!("| {batch} |")),
    ] {
        let text = service.get(&format!("{path}/{format}")).await;
        assert_eq!(text.status, 200, "{format}: {}", text.text);
        assert_eq!(text.header("content-type"), "text/plain; charset=utf-8");
        assert!(text.text.contains(&expected), "{format}: {}", text.text);
    }
    let all = service.get(&format!("{path}/env")).await.text;
    assert!(all.contains("export BATCHFIT_WORLD_SIZE=1\n"), "{all}");
}

#[tokio::test]
async fn a_launcher_asks_by_names_and_has_its_variables_in_one_call() {
    let service = Service::start(Scripted::default()).await;
    let body = r#"{"model": "resnet-50", "device": "sim:h200", "target_batch": 64}"#;

    let text = service.post("/v1/fits?format=env", body).await;

    assert_eq!(text.status, 200, "{}", text.text);
    assert_eq!(text.header("content-type"), "text/plain; charset=utf-8");
    let first = "export BATCHFIT_MICRO_BATCH=";
    assert!(text.text.starts_with(first), "{}", text.text);
    let json = service.post("/v1/fits?format=json", body).await;
    assert_eq!(
        (json.status, json.json()["state"].as_str()),
        (200, Some("done"))
    );
    let other = service.post("/v1/fits?format=yaml", body).await;
    assert_eq!(other.status, 422, "{}", other.text);
}

#[tokio::test]
async fn a_length_that_nobody_gave_is_assumed() {
    let service = Service::start(Scripted::default()).await;
    let said = async |model: &str| {
        let body = format!(r#"{{"model": {model}, "device": "sim:h200"}}"#);
        service.post("/v1/fits?format=text", body).await.text
    };

    let named = said(r#""gpt2""#).await;
    let given = said(r#"{"preset": "gpt2", "seq_len": 1024}"#).await;

    assert!(named.contains("no checkpointing, 1024 tokens"), "{named}");
    assert!(given.contains("with 1024 tokens; assumed:"), "{given}");
}

#[tokio::test]
async fn the_ranks_are_those_of_the_request() {
    let service = Service::start(Scripted::default()).await;
    let body = r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "world_size": 4, "target_batch": 64}"#;
    let fit = service.post_and_wait("/v1/fits", body).await;
    let result = &fit.json()["result"]["recommendation"];
    let of_a_rank =
        result["micro_batch"].as_u64().unwrap() * result["accumulation_steps"].as_u64().unwrap();
    let ranks = result["global_batch"].as_u64().unwrap() / of_a_rank;

    let path = format!("{}/formats/env", fit.header("location"));

    let text = service.get(&path).await.text;
    let expected = format!("export BATCHFIT_WORLD_SIZE={ranks}\n");
    assert!(text.contains(&expected), "{text}");
}

#[tokio::test]
async fn what_has_no_answer_has_no_text() {
    let gate = Gate::closed();
    let service = Service::start(Scripted::behind(&gate)).await;
    let fit = service.post("/v1/fits", RESNET).await;
    gate.arrival().await;

    let early = service
        .get(&format!("{}/formats/env", fit.header("location")))
        .await;
    let unknown = service.get("/v1/fits/none/formats/env").await;
    let other = service
        .get(&format!("{}/formats/yaml", fit.header("location")))
        .await;

    assert_eq!(early.status, 404);
    let detail = early.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("running"), "{detail}");
    assert_eq!((unknown.status, other.status), (404, 404));
    gate.open();
}

#[tokio::test]
async fn a_fit_that_failed_has_no_text() {
    let service = Service::start(Scripted::that(Outcome::Panics)).await;
    let fit = service.post_and_wait("/v1/fits", RESNET).await;

    let text = service
        .get(&format!("{}/formats/text", fit.header("location")))
        .await;

    assert_eq!(text.status, 404);
    assert!(text.text.contains("failed"), "{}", text.text);
}
