//! The service as its clients see it: the router in memory, an engine that follows a script, and a
//! database file of each test's own.

mod abandoned;
mod agents;
mod bad_input;
mod browsers;
mod cancellation;
mod catalogue;
mod connections;
mod contract;
mod edges;
mod events;
mod fits;
mod formats;
mod generation;
mod graphs;
mod idempotency;
mod keys;
mod lengths;
mod maintenance;
mod outcomes;
mod page;
mod probes;
mod problems;
mod process;
mod recommendations;
mod recorded;
mod replays;
mod restart;
mod runs;
mod scripted;
mod searches;
mod servers;
mod storage;
mod trust;
mod uploads;

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response};
use batchfit::http::router;
use batchfit::jobs::{Engine, Jobs, Limits};
use batchfit::store::Db;
use serde_json::Value;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use scripted::Scripted;

use crate::wait;

/// As long as the service lets anybody wait, which is longer than [`wait::HANG`].
const LONGEST_WAIT: &str = "wait=600";

/// A small request.
const RESNET: &str =
    r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": "12GiB"}"#;

/// Another question.
const RESNET_8: &str =
    r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": "8GiB"}"#;

/// A service on a database of its own.
struct Service {
    router: Router,
    jobs: Jobs,
    shutdown: CancellationToken,
    directory: Arc<TempDir>,
    limits: Limits,
}

impl Service {
    /// A fresh service.
    async fn start(engine: Scripted) -> Service {
        Service::limited(engine, Limits::default()).await
    }

    /// A fresh service that takes on so much.
    async fn limited(engine: Scripted, limits: Limits) -> Service {
        let directory = Arc::new(TempDir::new().unwrap());
        Service::on(directory, engine, limits).await
    }

    /// A service on a database that may be there already.
    async fn on(directory: Arc<TempDir>, engine: impl Engine + 'static, limits: Limits) -> Service {
        let db = Db::open(&servers::database(&directory).await)
            .await
            .unwrap();
        let engine: Arc<dyn Engine> = Arc::new(engine);
        let shutdown = CancellationToken::new();
        let jobs = Jobs::start(db, engine, limits, shutdown.clone())
            .await
            .unwrap();
        Service {
            router: router(jobs.clone()),
            jobs,
            shutdown,
            directory,
            limits,
        }
    }

    /// The next service on the same database, as after a crash: this one reads and writes nothing any more.
    async fn after_a_crash(&self, engine: Scripted) -> Service {
        self.jobs.db().close().await;
        Service::on(Arc::clone(&self.directory), engine, self.limits).await
    }

    /// Ends in an orderly way.
    async fn stop(&self) {
        self.shutdown.cancel();
        wait::for_future("the end of all jobs", self.jobs.ended()).await;
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let asked = format!("an answer to {} {}", request.method(), request.uri());
        let answering = async {
            let response = self.router.clone().oneshot(request).await.unwrap();
            Answer::read(response).await
        };
        wait::for_future(&asked, answering).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap())
            .await
    }

    async fn delete(&self, path: &str) -> Answer {
        self.send(Request::delete(path).body(Body::empty()).unwrap())
            .await
    }

    async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.send(Request::post(path).body(body.into()).unwrap())
            .await
    }

    /// Posts and waits for the end.
    async fn post_and_wait(&self, path: &str, body: impl Into<Body>) -> Answer {
        let request = Request::post(path).header("prefer", LONGEST_WAIT);
        self.send(request.body(body.into()).unwrap()).await
    }

    /// The fit once it has ended.
    async fn ended(&self, id: &str) -> Value {
        let ending = self.jobs.wait(id, 2 * wait::HANG);
        let fit = wait::for_future(&format!("the end of fit {id}"), ending).await;
        assert!(fit.unwrap().is_some(), "there is no fit {id}");
        self.get(&format!("/v1/fits/{id}")).await.json()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shutdown.cancel();
        if Arc::strong_count(&self.directory) == 1 {
            servers::forget(&self.directory);
        }
    }
}

/// A response, read to its end.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: axum::http::HeaderMap,
    text: String,
}

impl Answer {
    async fn read(response: Response<Body>) -> Answer {
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            text: String::from_utf8_lossy(&bytes).into_owned(),
        }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    fn id(&self) -> String {
        self.json()["id"].as_str().expect("an id").to_owned()
    }

    fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    /// Status, the headers that matter, and the body, without ids and times.
    fn shown(&self) -> String {
        let mut shown = format!("{}\n", self.status);
        for name in [
            "content-type",
            "location",
            "preference-applied",
            "retry-after",
            "allow",
        ] {
            if !self.header(name).is_empty() {
                writeln!(shown, "{name}: {}", self.header(name)).unwrap();
            }
        }
        assert!(!self.header("x-request-id").is_empty(), "no request id");
        format!("{shown}\n{:#}", self.json())
    }
}

/// Compares a response with its snapshot.
macro_rules! assert_answer {
    ($answer:expr) => {
        let shown = $answer.shown();
        insta::with_settings!({filters => vec![
            (r"\b[0-9a-hjkmnp-tv-z]{16}\b", "[id]"),
            (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "[time]"),
        ], prepend_module_to_snapshot => true}, {
            insta::assert_snapshot!(shown);
        });
    };
}
use assert_answer;
