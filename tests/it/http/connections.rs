//! Clients that keep the service waiting, over real sockets.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use batchfit::http::{ConnectionLimits, Entrance, HostName, Hosts, serve};
use batchfit::jobs::Limits;
use batchfit::store::Db;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::scripted::{Outcome, Scripted};
use super::{DEADLINE, RESNET};

/// Short, so that tests need not wait; a machine under load still sends a small request in time.
pub(super) const LIMITS: ConnectionLimits = ConnectionLimits {
    open: 8,
    head: Duration::from_millis(300),
    idle: Duration::from_millis(300),
    transfer: Duration::from_millis(300),
    welcome: Duration::from_millis(20),
};

/// Nothing of it is reached within a test.
const PATIENT: ConnectionLimits = ConnectionLimits {
    head: DEADLINE,
    idle: DEADLINE,
    transfer: DEADLINE,
    ..LIMITS
};

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
            let entrance = Entrance {
                listener,
                hosts: Hosts::default().known_as([name]),
                keys: None,
                limits,
            };
            let limits = Limits::default();
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

    /// A connection on which this was sent.
    pub(super) async fn send(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// An ordinary request.
    pub(super) async fn healthz(&self) -> String {
        let request = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        read(self.send(request).await).await
    }
}

/// All that arrives until the connection is closed.
async fn read(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // Closed with something unread, it is reset.
    let _ = timeout(DEADLINE, stream.read_to_end(&mut answer))
        .await
        .expect("the connection is closed");
    String::from_utf8_lossy(&answer).into_owned()
}

pub(super) fn post(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

const HALF_A_HEAD: &str = "POST /v1/fits HTTP/1.1\r\nhost: loc";
const HALF_A_BODY: &str =
    "POST /v1/fits HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{\"model\"";

#[tokio::test]
async fn a_request_that_does_not_arrive_is_given_up() {
    let served = Served::start(Scripted::default(), LIMITS).await;

    assert_eq!(read(served.send("").await).await, "");
    assert_eq!(read(served.send(HALF_A_HEAD).await).await, "");
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_answered() {
    let served = Served::start(Scripted::default(), LIMITS).await;

    let answer = read(served.send(HALF_A_BODY).await).await;

    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("/problems/body-timeout"), "{answer}");
}

/// A byte now and then is no progress.
#[tokio::test]
async fn a_body_that_trickles_is_answered_too() {
    let served = Served::start(Scripted::default(), LIMITS).await;
    let mut stream = served.send(HALF_A_BODY).await;
    stream.set_nodelay(true).unwrap();

    let mut answer = [0; 12];
    let began = Instant::now();
    loop {
        if let Ok(read) = timeout(Duration::from_millis(20), stream.read_exact(&mut answer)).await {
            read.unwrap();
            break;
        }
        assert!(began.elapsed() < DEADLINE, "it trickles on");
        let _ = stream.write_all(b" ").await;
    }

    assert_eq!(&answer, b"HTTP/1.1 408");
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_answer() {
    let served = Served::start(Scripted::default(), LIMITS).await;

    let request = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let answer = read(served.send(request).await).await;

    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// The fit does not end, and the service is as patient as it was asked to be.
#[tokio::test]
async fn who_waits_for_an_answer_is_not_idle() {
    let served = Served::start(Scripted::that(Outcome::Hangs), LIMITS).await;

    let began = Instant::now();
    let request = post(
        "/v1/fits",
        "connection: close\r\nprefer: wait=1\r\n",
        RESNET,
    );
    let answer = read(served.send(&request).await).await;

    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    assert!(began.elapsed() > 2 * LIMITS.idle);
}

/// Slow clients have all the places, and lose them to those who ask.
#[tokio::test]
async fn slow_clients_do_not_lock_others_out() {
    let served = Served::start(Scripted::default(), PATIENT).await;
    let idle = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for kind in ["", HALF_A_HEAD, HALF_A_BODY, idle] {
        let mut slow = Vec::new();
        for _ in 0..20 {
            slow.push(served.send(kind).await);
        }

        let asked = Instant::now();
        let answer = served.healthz().await;

        assert!(answer.starts_with("HTTP/1.1 200 "), "{kind:?}: {answer}");
        assert!(
            asked.elapsed() < DEADLINE / 4,
            "{kind:?}: {:?}",
            asked.elapsed()
        );
        let fit = post(
            "/v1/fits",
            "connection: close\r\nprefer: wait=10\r\n",
            RESNET,
        );
        let answer = read(served.send(&fit).await).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{kind:?}: {answer}");
        drop(slow);
    }
}

/// Who waits for fits that do not end leaves places to others.
#[tokio::test]
async fn those_who_wait_do_not_lock_others_out() {
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
    let served = Served::start(Scripted::that(Outcome::Hangs), PATIENT).await;
    let probe = RESNET.replacen('{', r#"{"batch": 1, "#, 1);
    let probe = post("/v1/probes", "", &probe);
    let mut probing = Vec::new();
    // Three quarters of the places.
    for _ in 0..6 {
        probing.push(served.send(&probe).await);
    }

    let mut refused = String::new();
    while !refused.starts_with("HTTP/1.1 503 ") {
        let more = post("/v1/fits", "connection: close\r\n", RESNET);
        refused = read(served.send(&more).await).await;
    }

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

/// A probe that does not end, a fit that does not, a body under way, and a request that never comes.
#[tokio::test]
async fn whoever_asked_gets_an_answer_when_the_service_ends() {
    let engine = Scripted::that(Outcome::Hangs);
    let fits = Arc::clone(&engine.fits);
    let mut served = Served::start(engine, PATIENT).await;
    let wait = served
        .send(&post("/v1/fits", "prefer: wait=600\r\n", RESNET))
        .await;
    while fits.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let probe = RESNET.replacen('{', r#"{"batch": 1, "#, 1);
    let probe = served.send(&post("/v1/probes", "", &probe)).await;
    let half = served.send(HALF_A_BODY).await;
    let nothing = served.send(HALF_A_HEAD).await;
    // Once an answer is here, so are all requests before it.
    served.healthz().await;

    let asked = Instant::now();
    served.shutdown.cancel();
    served.serving.join_next().await.unwrap().unwrap();

    assert!(
        asked.elapsed() < Duration::from_secs(1),
        "{:?}",
        asked.elapsed()
    );
    assert!(read(wait).await.starts_with("HTTP/1.1 202 "));
    for unanswered in [probe, half] {
        let answer = read(unanswered).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("/problems/not-ready"), "{answer}");
    }
    assert_eq!(read(nothing).await, "");
}
