//! What is wrong with a request before its body is looked at, and what is said and logged about it.

use std::io;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::Request;
use batchfit::jobs::Limits;

use super::scripted::Scripted;
use super::{RESNET, RESNET_8, Service, assert_answer};

/// Paths that take no parameters.
const WITHOUT_PARAMETERS: [&str; 11] = [
    "/healthz",
    "/readyz",
    "/v1/devices",
    "/v1/presets",
    "/v1/fits/x",
    "/v1/recommendations/x",
    "/v1/searches/x",
    "/problems",
    "/openapi.yaml",
    "/metrics",
    "/docs",
];

#[tokio::test]
async fn a_cursor_is_the_next_of_a_page_before() {
    let service = Service::start(Scripted::default()).await;
    service.post_and_wait("/v1/fits", RESNET).await;
    service.post_and_wait("/v1/fits", RESNET_8).await;
    let next = async |list: &str| {
        let page = service.get(&format!("{list}?limit=1")).await.json();
        page["next"].as_str().unwrap().to_owned()
    };
    let (fits, recommendations) = ("/v1/fits", "/v1/recommendations");
    let (of_fits, of_recommendations) = (next(fits).await, next(recommendations).await);

    for (list, own, other) in [
        (fits, &of_fits, &of_recommendations),
        (recommendations, &of_recommendations, &of_fits),
    ] {
        let page = service.get(&format!("{list}?cursor={own}")).await.json();
        assert_eq!(page["items"].as_array().unwrap().len(), 1);
        for cursor in [
            other,
            "",
            "-1",
            "ffffffffffffffff",
            "0000000000000000",
            "%ff",
            "'",
        ] {
            let answer = service.get(&format!("{list}?cursor={cursor}")).await;
            assert_eq!(answer.status, 400, "{cursor}: {}", answer.text);
            assert_eq!(answer.json()["parameter"], "cursor");
        }
    }
    assert_answer!(service.get("/v1/fits?cursor=-1").await);
}

#[tokio::test]
async fn a_parameter_that_a_path_does_not_know_is_refused_everywhere() {
    let service = Service::start(Scripted::default()).await;

    for path in WITHOUT_PARAMETERS {
        let answer = service.get(&format!("{path}?verbose=1")).await;
        assert_eq!(answer.status, 422, "{path}: {}", answer.text);
        assert_eq!(answer.json()["parameter"], "verbose");
        assert_ne!(service.get(path).await.status, 422, "{path}");
    }
    // Those of another method of the same path are not known either.
    let answer = service.post("/v1/fits?state=done", RESNET).await;
    assert_eq!(answer.status, 422, "{}", answer.text);
    let answer = service.delete("/v1/fits/x?force=true").await;
    assert_eq!(answer.status, 422, "{}", answer.text);
    let head = Request::head("/v1/fits?state=done").body(Body::empty());
    assert_eq!(service.send(head.unwrap()).await.status, 200);
    assert_answer!(service.get("/healthz?verbose=1").await);
}

#[tokio::test]
async fn a_path_that_is_no_text_is_a_problem_that_says_so() {
    let service = Service::start(Scripted::default()).await;

    assert_answer!(service.get("/v1/fits/%ff").await);
}

#[tokio::test]
async fn errors_repeat_no_long_words() {
    let service = Service::start(Scripted::default()).await;
    let word = "w".repeat(30_000);
    let long = "w".repeat(1 << 20);
    let mut answers = Vec::new();
    for path in [
        format!("/{word}"),
        format!("/v1/fits/{word}"),
        format!("/v1/probes/{word}"),
        format!("/v1/recommendations/{word}"),
        format!("/problems/{word}"),
        format!("/v1/fits?{word}=1"),
        format!("/healthz?{word}"),
        format!("/v1/fits?state={word}"),
        format!("/v1/fits?limit={word}"),
        format!("/v1/fits?cursor={word}"),
        format!("/v1/fits?limit={word}&limit={word}"),
        format!("/v1/recommendations?precision={word}"),
    ] {
        answers.push(service.get(&path).await);
    }
    for query in ["memory_limit", "allocator", "compare"] {
        let path = format!("/v1/replays?{query}={word}");
        answers.push(service.post(&path, "#").await);
    }
    for name in ["host", "origin", "content-encoding"] {
        let request = Request::post("/v1/fits").header(name, &word);
        answers.push(
            service
                .send(request.body(Body::from(RESNET)).unwrap())
                .await,
        );
    }
    answers.push(service.delete(&format!("/v1/{word}")).await);
    for batch in [
        format!("\"{long}\""),
        format!("[\"{long}\"]"),
        format!("{{\"{long}\": 1}}"),
        "1".repeat(1 << 20),
    ] {
        let body = RESNET.replacen('{', &format!("{{\"batch\": {batch}, "), 1);
        answers.push(service.post("/v1/probes", body).await);
    }
    for answer in answers {
        let start: String = answer.text.chars().take(200).collect();
        assert!(
            (400..500).contains(&answer.status),
            "{}: {start}",
            answer.status
        );
        assert!(
            answer.text.len() < 4 << 10,
            "{} bytes: {start}",
            answer.text.len()
        );
    }
}

/// What is logged while it is there, of this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn refusing_for_now_is_no_error_of_the_service() {
    let limits = Limits {
        queued: 0,
        ..Limits::default()
    };
    let service = Service::limited(Scripted::default(), limits).await;
    // Whoever logs a line first decides for all threads whether anyone reads it; here nobody has, and the subscriber asks again.
    service.post("/v1/fits", RESNET).await;
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    let logging = tracing::subscriber::set_default(subscriber);

    let full = service.post("/v1/fits", RESNET).await;
    service.stop().await;
    let ending = service.get("/readyz").await;

    assert_eq!((full.status, ending.status), (503, 503));
    drop(logging);
    let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(
        logged.matches("refused: busy, or about to end").count(),
        2,
        "{logged}"
    );
    assert!(!logged.contains("ERROR"), "{logged}");
}
