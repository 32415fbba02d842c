//! Clients that keep the service waiting, over real sockets.

use std::sync::Arc;
use std::time::Duration;

use batchfit::http::{ConnectionLimits, HostName, Hosts, ListenConfig, serve};
use batchfit::jobs::Limits;
use batchfit::store::Db;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::scripted::{Gate, Outcome, Scripted};
use super::{RESNET, RESNET_8};
use crate::wait;

/// Nothing of it is reached within a test, but that a connection may be closed to make room.
pub(super) const PATIENT: ConnectionLimits = ConnectionLimits {
    open: 8,
    head: wait::HANG.saturating_mul(2),
    idle: wait::HANG.saturating_mul(2),
    transfer: wait::HANG.saturating_mul(2),
    welcome: Duration::from_millis(20),
    last_words: wait::HANG.saturating_mul(2),
};

/// For the limit that a test is about: whoever it is not about does not meet it, however slow the machine is.
pub(super) const SHORT: Duration = Duration::from_millis(100);

/// A service on a port of its own.
pub(super) struct Served {
    address: std::net::SocketAddr,
    serving: JoinSet<()>,
    shutdown: CancellationToken,
    _end: DropGuard,
    _directory: TempDir,
}

impl Served {
    pub(super) async fn start(engine: Scripted, limits: ConnectionLimits) -> Served {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("batchfit.db");
        let db = Db::open(file.to_str().unwrap()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let token = shutdown.clone();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let name: HostName = "gpu-box.lan".parse().unwrap();
            let entrance = ListenConfig {
                listener,
                hosts: Hosts::default().known_as([name]),
                keys: None,
                limits,
            };
            let limits = Limits {
                simulated_in_parallel: 8,
                ..Limits::default()
            };
            serve(entrance, db, Arc::new(engine), limits, token)
                .await
                .unwrap();
        });
        Served {
            address,
            serving,
            _end: shutdown.clone().drop_guard(),
            shutdown,
            _directory: directory,
        }
    }

    /// A connection on which this was sent, or as much of it as the service wanted to have.
    pub(super) async fn send(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let _ = stream.write_all(text.as_bytes()).await;
        stream
    }

    /// Ends it, whatever it is working on.
    async fn end(mut self) {
        self.shutdown.cancel();
        let ended = wait::for_future("the end of the service", self.serving.join_next()).await;
        ended.unwrap().unwrap();
    }

    /// An ordinary request.
    pub(super) async fn healthz(&self) -> String {
        let request = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        read(self.send(request).await).await
    }
}

/// All that arrives until the connection is closed.
pub(super) async fn read(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // Closed with something unread, it is reset.
    let reading = stream.read_to_end(&mut answer);
    let _ = wait::for_future("the end of a connection", reading).await;
    String::from_utf8_lossy(&answer).into_owned()
}

pub(super) fn post(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

/// A request after which the connection stays open.
pub(super) const HEALTHZ: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
const HALF_A_HEAD: &str = "POST /v1/fits HTTP/1.1\r\nhost: loc";
const HALF_A_BODY: &str =
    "POST /v1/fits HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{\"model\"";

#[tokio::test]
async fn a_request_that_does_not_arrive_is_given_up() {
    let limits = ConnectionLimits {
        head: SHORT,
        ..PATIENT
    };
    let served = Served::start(Scripted::default(), limits).await;

    assert_eq!(read(served.send("").await).await, "");
    assert_eq!(read(served.send(HALF_A_HEAD).await).await, "");
}

/// A service that waits for bodies alone for no longer than [`SHORT`].
async fn hasty_for_bodies() -> Served {
    let limits = ConnectionLimits {
        transfer: SHORT,
        ..PATIENT
    };
    Served::start(Scripted::default(), limits).await
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_answered() {
    let served = hasty_for_bodies().await;

    let answer = read(served.send(HALF_A_BODY).await).await;

    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("/problems/body-timeout"), "{answer}");
}

/// A byte now and then is no progress.
#[tokio::test]
async fn a_body_that_trickles_is_answered_too() {
    let served = hasty_for_bodies().await;
    let stream = served.send(HALF_A_BODY).await;
    stream.set_nodelay(true).unwrap();

    let mut answer = [0; 12];
    wait::until_async("an answer to a body that trickles", async || {
        let _ = stream.try_write(b" ");
        stream.try_read(&mut answer).is_ok()
    })
    .await;

    assert_eq!(&answer, b"HTTP/1.1 408");
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_answer() {
    let limits = ConnectionLimits {
        idle: SHORT,
        ..PATIENT
    };
    let served = Served::start(Scripted::default(), limits).await;

    let answer = read(served.send(HEALTHZ).await).await;

    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// The service is as patient as it was asked to be.
#[tokio::test]
async fn a_connection_that_waits_for_an_answer_is_not_idle() {
    let gate = Gate::closed();
    let limits = ConnectionLimits {
        idle: SHORT,
        transfer: SHORT,
        ..PATIENT
    };
    let served = Served::start(Scripted::behind(&gate), limits).await;
    let request = post(
        "/v1/fits",
        "connection: close\r\nprefer: wait=600\r\n",
        RESNET,
    );
    let waiting = served.send(&request).await;
    gate.arrival().await;

    // One that came later is closed.
    read(served.send(HEALTHZ).await).await;
    gate.open();

    let answer = read(waiting).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// Slow clients have all the places, and lose them to those who ask.
#[tokio::test]
async fn slow_clients_do_not_lock_others_out() {
    let served = Served::start(Scripted::default(), PATIENT).await;
    for kind in ["", HALF_A_HEAD, HALF_A_BODY, HEALTHZ] {
        let mut slow = Vec::new();
        for _ in 0..20 {
            slow.push(served.send(kind).await);
        }

        let answer = served.healthz().await;

        assert!(answer.starts_with("HTTP/1.1 200 "), "{kind:?}: {answer}");
        let fit = post(
            "/v1/fits",
            "connection: close\r\nprefer: wait=600\r\n",
            RESNET,
        );
        let answer = read(served.send(&fit).await).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{kind:?}: {answer}");
        drop(slow);
    }
}

/// Who waits for fits that do not end leaves places to others.
#[tokio::test]
async fn waiting_requests_leave_connections_for_others() {
    let served = Served::start(Scripted::that(Outcome::Hangs), PATIENT).await;
    let wait = post("/v1/fits", "prefer: wait=600\r\n", RESNET);
    let mut waiting = Vec::new();
    for _ in 0..20 {
        waiting.push(served.send(&wait).await);
    }

    let answer = served.healthz().await;

    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// Work that was asked for is bounded apart from connections.
#[tokio::test]
async fn requests_beyond_what_can_be_worked_on_are_refused() {
    let gate = Gate::closed();
    let served = Served::start(Scripted::behind(&gate), PATIENT).await;
    // Three quarters of the places: as many fits as may be waited for, and as many probes as are read at a time.
    let fit = |request| post("/v1/fits", "prefer: wait=600\r\n", request);
    let probe = RESNET.replacen('{', r#"{"batch": 1, "#, 1);
    let probe = post("/v1/probes", "", &probe);
    let mut asking = Vec::new();
    for request in [fit(RESNET), fit(RESNET_8)].iter().chain([&probe; 4]) {
        asking.push(served.send(request).await);
        gate.arrival().await;
    }

    let more = post("/v1/fits", "connection: close\r\n", RESNET);
    let refused = read(served.send(&more).await).await;

    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(refused.contains("/problems/too-many-requests"), "{refused}");
    assert!(refused.contains("retry-after: "), "{refused}");
    let answer = served.healthz().await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn the_service_answers_to_its_names_alone() {
    let served = Served::start(Scripted::default(), PATIENT).await;

    for (host, status) in [
        ("gpu-box.lan:8080", 200),
        ("127.0.0.1", 200),
        ("rebind.evil.example", 421),
    ] {
        let request = format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = read(served.send(&request).await).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{host}: {answer}"
        );
    }
}

/// A fit that does not end, a probe that does not, and a request that never comes.
#[tokio::test]
async fn open_requests_are_answered_when_the_service_ends() {
    let gate = Gate::closed();
    gate.open();
    let engine = Scripted {
        outcome: Outcome::Hangs,
        ..Scripted::behind(&gate)
    };
    let served = Served::start(engine, PATIENT).await;
    let waiting = served
        .send(&post("/v1/fits", "prefer: wait=600\r\n", RESNET))
        .await;
    gate.arrival().await;
    let probe = RESNET.replacen('{', r#"{"batch": 1, "#, 1);
    let probe = served.send(&post("/v1/probes", "", &probe)).await;
    gate.arrival().await;
    let nothing = served.send(HALF_A_HEAD).await;
    // Once an answer is here, so are all requests before it.
    served.healthz().await;

    served.end().await;

    assert!(read(waiting).await.starts_with("HTTP/1.1 202 "));
    let answer = read(probe).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("/problems/not-ready"), "{answer}");
    assert_eq!(read(nothing).await, "");
}

/// Its handler would wait for the rest for ever.
#[tokio::test]
async fn a_body_under_way_is_answered_when_the_service_ends() {
    let limits = ConnectionLimits {
        last_words: Duration::ZERO,
        ..PATIENT
    };
    let served = Served::start(Scripted::default(), limits).await;
    let half = served.send(HALF_A_BODY).await;
    served.healthz().await;

    served.end().await;

    let answer = read(half).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("/problems/not-ready"), "{answer}");
}

/// The first three never reach the router: they have a status and no document.
#[tokio::test]
async fn what_is_not_http_gets_a_status_and_a_wrong_request_a_problem() {
    let served = Served::start(Scripted::default(), PATIENT).await;
    let many = "x: 1\r\n".repeat(200);
    for (sent, status, code) in [
        ("no request at all\r\n\r\n".to_owned(), 400, None),
        (
            "GET /healthz HTTP/1.1\r\nhost: local\x01host\r\n\r\n".to_owned(),
            400,
            None,
        ),
        (
            format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"),
            431,
            None,
        ),
        (
            "GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n".to_owned(),
            400,
            Some("header-invalid"),
        ),
        (
            "GET /v1/fits/%ff HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".to_owned(),
            400,
            Some("bad-request"),
        ),
        (
            "PATCH /v1/fits HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".to_owned(),
            405,
            Some("method-not-allowed"),
        ),
    ] {
        let answer = read(served.send(&sent).await).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));

        let begin: String = sent.chars().take(40).collect();
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{begin}: {answer}"
        );
        let Some(code) = code else {
            assert_eq!(body, "", "{begin}");
            continue;
        };
        assert!(
            head.contains("content-type: application/problem+json"),
            "{begin}: {answer}"
        );
        assert!(head.contains("x-request-id: "), "{begin}: {answer}");
        let problem: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(problem["type"], format!("/problems/{code}"), "{begin}");
        assert_eq!(problem["status"], status, "{begin}");
    }
}
