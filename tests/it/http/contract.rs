//! What holds for every route: tags of contents, numbers to be watched, and a description that programs understand.

use std::collections::HashSet;

use axum::body::Body;
use axum::http::Request;
use serde_json::Value;

use super::scripted::{Outcome, Scripted};
use super::{RESNET, RESNET_8, Service};

#[tokio::test]
async fn a_known_etag_gets_304() {
    let service = Service::start(Scripted::default()).await;
    let fit = service.post_and_wait("/v1/fits", RESNET).await.id();
    let list = service.get("/v1/recommendations").await.json();
    let recommendation = list["items"][0]["id"].as_str().unwrap();
    for path in [
        format!("/v1/recommendations/{recommendation}"),
        "/v1/recommendations?precision=fp32".to_owned(),
        format!("/v1/fits/{fit}"),
        "/v1/presets".to_owned(),
    ] {
        let first = service.get(&path).await;
        let tag = first.header("etag").to_owned();
        let again = |tag: &str| {
            let request = Request::get(&path).header("if-none-match", tag);
            service.send(request.body(Body::empty()).unwrap())
        };

        assert!(tag.starts_with("W/\""), "{path}: {tag:?}");
        let known = again(&format!("\"other\", {tag}")).await;
        assert_eq!((known.status, known.text.as_str()), (304, ""), "{path}");
        assert_eq!(known.header("etag"), tag);
        assert!(!known.header("x-request-id").is_empty());
        let other = again("\"other\"").await;
        assert_eq!((other.status, &other.text), (200, &first.text), "{path}");
    }
    let before = service.get("/v1/fits").await;
    service.post_and_wait("/v1/fits", RESNET_8).await;
    assert_ne!(
        service.get("/v1/fits").await.header("etag"),
        before.header("etag")
    );
    assert_eq!(service.get("/v1/fits/none").await.header("etag"), "");
}

#[tokio::test]
async fn an_answer_is_sent_again_as_it_was() {
    let service = Service::start(Scripted::default()).await;
    let first = service.post_and_wait("/v1/fits", RESNET).await;
    // The request that waited for the answer cached it.
    let found = service.post_and_wait("/v1/fits", RESNET).await;

    let at_hand = service.post_and_wait("/v1/fits", RESNET).await;
    let without_waiting = service.post("/v1/fits", RESNET).await;

    assert_eq!(at_hand.json(), first.json());
    assert_eq!(at_hand.shown(), found.shown());
    assert_eq!(without_waiting.status, 202);
    assert_eq!(without_waiting.json(), first.json());
    assert_eq!(without_waiting.header("location"), first.header("location"));
    assert_eq!(without_waiting.header("preference-applied"), "");
    let metrics = service.get("/metrics").await.text;
    assert!(
        metrics.contains("batchfit_fits_at_hand_total 3\n"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_failed_fit_is_not_cached() {
    let service = Service::start(Scripted::that(Outcome::Panics)).await;

    let ids: HashSet<String> = [
        service.post_and_wait("/v1/fits", RESNET).await,
        service.post_and_wait("/v1/fits", RESNET).await,
        service.post_and_wait("/v1/fits", RESNET).await,
    ]
    .iter()
    .map(super::Answer::id)
    .collect();

    assert_eq!(ids.len(), 3);
}

#[tokio::test]
async fn what_is_watched_is_counted() {
    let service = Service::start(Scripted::default()).await;
    service.post_and_wait("/v1/fits", RESNET).await;
    service.get("/v1/fits/none").await;
    service.get("/nowhere").await;

    let metrics = service.get("/metrics").await;

    assert_eq!(metrics.status, 200);
    assert!(
        metrics
            .header("content-type")
            .starts_with("application/openmetrics-text")
    );
    for line in [
        r#"batchfit_http_requests_total{method="POST",route="/v1/fits",status="200"} 1"#,
        r#"batchfit_http_requests_total{method="GET",route="/v1/fits/{id}",status="404"} 1"#,
        r#"batchfit_http_requests_total{method="GET",route="other",status="404"} 1"#,
        r#"batchfit_http_request_duration_seconds_count{route="/v1/fits"} 1"#,
        r#"batchfit_fits{state="queued"} 0"#,
        "batchfit_recommendations 1",
        "batchfit_ready 1",
        "# EOF",
    ] {
        assert!(
            metrics.text.lines().any(|other| other == line),
            "{line}\n{}",
            metrics.text
        );
    }
    service.stop().await;
    let ending = service.get("/metrics").await.text;
    assert!(ending.contains("batchfit_ready 0\n"), "{ending}");
}

/// Every metric that the dashboard shows.
#[tokio::test]
async fn the_dashboard_shows_metrics_that_there_are() {
    let service = Service::start(Scripted::default()).await;
    service.post_and_wait("/v1/fits", RESNET).await;
    let metrics = service.get("/metrics").await.text;
    let dashboard = std::fs::read_to_string("deploy/grafana.json").unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let expressions: Vec<&str> = dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    let words = expressions
        .iter()
        .flat_map(|expression| expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let names: HashSet<&str> = words
        .filter(|word| word.starts_with("batchfit_") || word.starts_with("process_"))
        .collect();

    assert!(names.len() > 8, "{names:?}");
    for name in names {
        assert!(metrics.contains(&format!("\n{name}")), "{name}\n{metrics}");
    }
}

#[tokio::test]
async fn the_page_about_the_api_names_every_operation_and_loads_nothing() {
    let service = Service::start(Scripted::default()).await;
    let read = Request::get("/docs").header("host", "localhost:9321");
    let page = service.send(read.body(Body::empty()).unwrap()).await;
    let document = batchfit::http::openapi();

    assert!(page.text.contains("curl -s http://localhost:9321/v1/fits "));

    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert!(
        page.header("content-security-policy")
            .contains("default-src 'none'")
    );
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(
                page.text.contains(&format!("<h3 id=\"{id}\">")),
                "{path}: {id}"
            );
        }
    }
    for loads in ["<script", "src=", "<link", "@import", "url("] {
        assert!(!page.text.contains(loads), "{loads}");
    }
    let references: Vec<&str> = page
        .text
        .split("href=\"#")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    for reference in references {
        assert!(
            page.text.contains(&format!("id=\"{reference}\"")),
            "{reference}"
        );
    }
}

/// What generators of clients stumble over.
#[test]
fn names_in_the_description_are_there_and_apart() {
    let document = batchfit::http::openapi();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut seen = HashSet::new();
    for name in schemas.keys() {
        assert!(seen.insert(name.to_lowercase()), "{name} is there twice");
    }
    look(&document, &mut |path, value| {
        if let Some(reference) = value["$ref"].as_str() {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{path}: {reference}");
        }
        let is_inline = value["title"].is_string() && value["properties"].is_object();
        assert!(
            !is_inline || path.ends_with("/problem"),
            "{path} has a title and no name"
        );
    });
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let content = operation["requestBody"]["content"].as_object();
            let is_json = content.is_some_and(|content| content.contains_key("application/json"));
            assert!(
                !is_json || content.unwrap()["application/json"]["example"].is_object(),
                "{method} {path} has no example"
            );
            for status in ["400", "403", "405", "421", "503"] {
                assert!(
                    operation["responses"][status].is_object(),
                    "{method} {path}: {status}"
                );
            }
        }
    }
}

fn look(value: &Value, see: &mut impl FnMut(&str, &Value)) {
    fn down(path: &str, value: &Value, see: &mut impl FnMut(&str, &Value)) {
        see(path, value);
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    down(&format!("{path}/{name}"), member, see);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    down(&format!("{path}/{index}"), item, see);
                }
            }
            _other => {}
        }
    }
    down("", value, see);
}
