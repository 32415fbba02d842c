//! Keys: who may ask where not everybody may, over real sockets and with the real binary.

use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use batchfit::http::{ConnectionLimits, Hosts, KeyLimits, ListenConfig, ServeError, serve};
use batchfit::jobs::{Engine, Limits};
use batchfit::store::{ApiKey, Db, Scope, Time};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::scripted::{Gate, Scripted};
use super::{LONGEST_WAIT, RESNET, RESNET_8};
use crate::wait::{self, HANG};

pub(super) const NO_LIMITS: KeyLimits = KeyLimits {
    per_second: None,
    at_a_time: None,
};

/// A service that asks for keys.
pub(super) struct Guarded {
    address: std::net::SocketAddr,
    pub(super) db: Db,
    _end: DropGuard,
    _server: JoinSet<Result<(), ServeError>>,
    _directory: TempDir,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Reply {
    pub(super) fn kind(&self) -> String {
        let problem: Value = serde_json::from_str(&self.body).unwrap();
        problem["type"].as_str().unwrap().to_owned()
    }
}

impl Guarded {
    pub(super) async fn start(engine: impl Engine + 'static, limits: KeyLimits) -> Guarded {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("batchfit.db");
        let db = Db::open(file.to_str().unwrap()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let entrance = ListenConfig {
            listener,
            hosts: Hosts::default(),
            keys: Some(limits),
            limits: ConnectionLimits {
                head: HANG,
                idle: HANG,
                transfer: HANG,
                ..ConnectionLimits::default()
            },
        };
        let serving = serve(
            entrance,
            db.clone(),
            Arc::new(engine),
            Limits::default(),
            shutdown.clone(),
        );
        let mut server = JoinSet::new();
        server.spawn(serving);
        Guarded {
            address,
            db,
            _end: shutdown.drop_guard(),
            _server: server,
            _directory: directory,
        }
    }

    /// A key of this scope.
    pub(super) async fn key(&self, name: &str, scope: Scope) -> String {
        let id = format!("id-{name}");
        let mut chance = [0; 32];
        chance[..name.len()].copy_from_slice(name.as_bytes());
        let (key, text) = ApiKey::issue(id, name, scope, &chance, Time(1)).unwrap();
        assert!(self.db.add_key(&key).await.unwrap());
        text
    }

    pub(super) async fn open(&self, request: &str, headers: &str, body: &str) -> TcpStream {
        self.begin(request, headers, body.len(), body).await
    }

    /// Sends the beginning of a body.
    pub(super) async fn begin(
        &self,
        request: &str,
        headers: &str,
        length: usize,
        body: &str,
    ) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!(
            "{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }

    pub(super) async fn ask(&self, request: &str, headers: &str, body: &str) -> Reply {
        let mut stream = self.open(request, headers, body).await;
        let mut text = Vec::new();
        let _ = wait::for_future("an answer", stream.read_to_end(&mut text)).await;
        let text = String::from_utf8_lossy(&text);
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
        Reply {
            status: head[9..12].parse().unwrap(),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    pub(super) async fn with(&self, key: &str, request: &str, body: &str) -> Reply {
        let header = format!("authorization: Bearer {key}\r\n");
        self.ask(request, &header, body).await
    }
}

#[tokio::test]
async fn nothing_but_how_the_service_is_can_be_asked_without_a_key() {
    let service = Guarded::start(Scripted::default(), NO_LIMITS).await;

    for open in [
        "/healthz",
        "/readyz",
        "/openapi.yaml",
        "/docs",
        "/",
        "/page/app.js",
    ] {
        let said = service.ask(&format!("GET {open}"), "", "").await;
        // Where the disk is slow, it is not ready.
        let is_slow = open == "/readyz" && said.status == 503;
        assert!(is_slow || said.status == 200, "{open}: {said:?}");
    }
    let closed = [
        "GET /v1/fits",
        "POST /v1/fits",
        "GET /v1/devices",
        "GET /v1/cards",
        "GET /metrics",
        "GET /problems",
        "GET /nowhere",
        "DELETE /v1/graphs/x",
        "OPTIONS /v1/fits",
        "GET //healthz",
        "GET /healthz/",
        "GET /healthz/../v1/fits",
        "GET /%68ealthz",
        "PATCH /v1/fits",
    ];
    for request in closed {
        let said = service.ask(request, "", "").await;
        assert_eq!(said.status, 401, "{request}: {said:?}");
        assert_eq!(said.kind(), "/problems/unauthorized");
        let challenge = "www-authenticate: Bearer realm=\"batchfit\"";
        assert!(said.head.contains(challenge), "{said:?}");
    }
}

#[tokio::test]
async fn a_wrong_key_is_as_good_as_none() {
    let service = Guarded::start(Scripted::default(), NO_LIMITS).await;
    let key = service.key("ci", Scope::Read).await;
    let said = service.with(&key, "GET /v1/fits", "").await;
    assert_eq!(said.status, 200, "{said:?}");

    let last = key.len() - 1;
    let wrong = [
        format!("authorization: Bearer {}x\r\n", &key[..last]),
        format!("authorization: Bearer {}\r\n", &key[..last]),
        format!("authorization: Bearer {key}0\r\n"),
        format!("authorization: Bearer {}\r\n", key.to_uppercase()),
        format!("authorization: Bearer {key} {key}\r\n"),
        format!("authorization: Basic {key}\r\n"),
        format!("authorization: {key}\r\n"),
        format!("authorization: Bearer {}\r\n", "a".repeat(10_000)),
        format!("authorization: Bearer {key}\r\nauthorization: Bearer {key}\r\n"),
        "authorization: Bearer \r\n".to_owned(),
        "authorization: Bearer batchfit__\r\n".to_owned(),
        "authorization: Bearer batchfit_' OR 1=1 --_\r\n".to_owned(),
        format!("x-api-key: {key}\r\n"),
    ];
    for header in wrong {
        let said = service.ask("GET /v1/fits", &header, "").await;
        assert_eq!(said.status, 401, "{header}: {said:?}");
        assert!(!said.body.contains(&key), "{said:?}");
    }
    let other_case = format!("Authorization: bEARER   {key}\r\n");
    assert_eq!(
        service.ask("GET /v1/fits", &other_case, "").await.status,
        200
    );
}

/// A training that somebody tells of.
const OUTCOME: &str = r#"{"batch": 1, "outcome": "fits"}"#;

#[tokio::test]
async fn a_key_is_for_its_scope_and_what_that_includes() {
    let service = Guarded::start(Scripted::default(), NO_LIMITS).await;
    let mut keys = Vec::new();
    for scope in Scope::ALL {
        keys.push(service.key(scope.name(), scope).await);
    }
    let mut statuses = Vec::new();
    for key in keys {
        let mut of_scope = Vec::new();
        for (request, body) in [
            ("GET /v1/fits", ""),
            ("POST /v1/fits", RESNET),
            ("DELETE /v1/fits/x", ""),
            ("POST /v1/recommendations/x/outcomes", OUTCOME),
            ("POST /v1/recommendations/x/refresh", ""),
            ("DELETE /v1/graphs/x", ""),
            ("GET /v1/agents", ""),
            ("POST /v1/agents", "{}"),
            ("POST /v1/agents/x/claims", r#"{"free": []}"#),
            ("GET /v1/agents/x/jobs/y.1/request", ""),
            (
                "PUT /v1/agents/x/jobs/y.1/result",
                r#"{"outcome": "released"}"#,
            ),
            ("DELETE /v1/agents/x", ""),
            ("PATCH /v1/agents/x", r#"{"state": "ready"}"#),
        ] {
            let said = service.with(&key, request, body).await;
            if said.status == 403 {
                assert_eq!(said.kind(), "/problems/scope-missing");
                assert!(said.head.contains("insufficient_scope"), "{said:?}");
            }
            of_scope.push(said.status);
        }
        statuses.push(of_scope);
    }
    let none = [403; 6];
    assert_eq!(statuses[0][..6], [200, 403, 403, 403, 403, 403]);
    assert_eq!(statuses[0][6..], [&[200], &none[..]].concat());
    assert_eq!(statuses[1][..6], [200, 202, 404, 404, 404, 403]);
    assert_eq!(statuses[1][6..], [&[200], &none[..]].concat());
    // An agent, and nothing else.
    assert_eq!(statuses[2][..7], [403; 7]);
    assert_eq!(statuses[2][7..], [422, 404, 404, 404, 404, 403]);
    assert_eq!(statuses[3][..5], [200, 202, 404, 404, 404]);
    assert_eq!(statuses[3][5], 422, "a digest is missing, not a right");
    assert_eq!(statuses[3][6..], [200, 422, 404, 404, 404, 404, 404]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_key_has_so_many_requests_at_a_time() {
    let gate = Gate::closed();
    let limits = KeyLimits {
        per_second: None,
        at_a_time: Some(2),
    };
    let service = Guarded::start(Scripted::behind(&gate), limits).await;
    let busy = service.key("busy", Scope::Fit).await;
    let other = service.key("other", Scope::Fit).await;
    let bearer = format!("authorization: Bearer {busy}\r\n");
    let fit = service.with(&busy, "POST /v1/fits", RESNET).await;
    gate.arrival().await;
    let fit: Value = serde_json::from_str(&fit.body).unwrap();

    // One that waits for an answer, and one that follows.
    let waits = format!("prefer: {LONGEST_WAIT}\r\n{bearer}");
    let mut waiting = service.open("POST /v1/fits", &waits, RESNET_8).await;
    let events = format!("GET /v1/fits/{}/events", fit["id"].as_str().unwrap());
    let mut following = service.open(&events, &bearer, "").await;
    let mut first = [0; 64];
    following.read_exact(&mut first).await.unwrap();
    wait::until_async("the second fit to be asked for", async || {
        let fits = service.with(&other, "GET /v1/fits", "").await;
        let fits: Value = serde_json::from_str(&fits.body).unwrap();
        fits["items"].as_array().unwrap().len() == 2
    })
    .await;

    let refused = service.with(&busy, "GET /v1/fits", "").await;
    assert_eq!(
        (refused.status, refused.kind().as_str()),
        (503, "/problems/key-busy")
    );
    assert!(refused.head.contains("retry-after: "), "{refused:?}");
    assert_eq!(service.with(&other, "GET /v1/fits", "").await.status, 200);

    gate.open();
    let mut text = Vec::new();
    waiting.read_to_end(&mut text).await.unwrap();
    following.read_to_end(&mut text).await.unwrap();
    assert_eq!(service.with(&busy, "GET /v1/fits", "").await.status, 200);
    // Answers that are held keep their length.
    let said = service.with(&busy, "GET /v1/presets", "").await;
    assert!(said.head.contains("content-length: "), "{said:?}");
}

#[tokio::test]
async fn clients_do_not_meet_each_others_idempotency_keys() {
    let service = Guarded::start(Scripted::default(), NO_LIMITS).await;
    let first = service.key("first", Scope::Fit).await;
    let second = service.key("second", Scope::Fit).await;
    let headers = |key: &str| format!("authorization: Bearer {key}\r\nidempotency-key: k\r\n");

    let one = service.ask("POST /v1/fits", &headers(&first), RESNET).await;
    let other = service
        .ask("POST /v1/fits", &headers(&second), RESNET_8)
        .await;
    let again = service
        .ask("POST /v1/fits", &headers(&first), RESNET_8)
        .await;

    assert_eq!((one.status, other.status, again.status), (202, 202, 422));
}

/// The real binary with its own database.
struct Program {
    directory: TempDir,
}

impl Program {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_batchfit"));
        command
            .args(arguments)
            .arg("--database")
            .arg(self.directory.path().join("batchfit.db"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

#[test]
fn keys_are_made_listed_and_revoked() {
    let program = Program {
        directory: TempDir::new().unwrap(),
    };

    let made = program.run(&["keys", "create", "--name", "ci", "--scope", "fit"]);
    let key = String::from_utf8(made.stdout).unwrap();
    assert!(made.status.success());
    assert!(
        key.starts_with("batchfit_") && key.trim().len() == 9 + 16 + 1 + 64,
        "{key}"
    );
    let second = program.run(&["keys", "create", "--name", "ci", "--scope", "read"]);
    assert_eq!(second.status.code(), Some(2));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("there is a key ci already"), "{said}");
    for odd in ["", "a b", "-x", "né", "'; DROP TABLE api_key; --"] {
        let name = format!("--name={odd}");
        let refused = program.run(&["keys", "create", &name, "--scope", "fit"]);
        assert_eq!(refused.status.code(), Some(2), "{odd:?}");
        assert!(refused.stdout.is_empty());
    }

    let listed = program.run(&["keys", "list", "--json"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    let secret = key.trim().rsplit('_').next().unwrap();
    assert!(!listed.contains(secret), "{listed}");
    let list: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(list["items"][0]["name"], "ci");
    assert_eq!(list["items"][0]["scope"], "fit");
    // Nothing in any of the files lets anybody in.
    for file in std::fs::read_dir(program.directory.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        let found = bytes
            .windows(32)
            .any(|part| secret.as_bytes().starts_with(part));
        assert!(!found, "the key is stored");
    }

    assert!(program.run(&["keys", "revoke", "ci"]).status.success());
    assert_eq!(
        program.run(&["keys", "revoke", "ci"]).status.code(),
        Some(2)
    );
    let table = program.run(&["keys", "list"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.lines().nth(1).unwrap().contains("ci"), "{table}");
}

/// What the binary decides from where it listens, and what it writes down meanwhile.
#[test]
fn keys_are_needed_off_loopback_and_nothing_secret_is_logged() {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};

    let program = Program {
        directory: TempDir::new().unwrap(),
    };
    let made = program.run(&["keys", "create", "--name", "ci", "--scope", "fit"]);
    let key = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let ask = |arguments: &[&str], headers: &str| -> (u16, String) {
        let mut server = program
            .command(&[&["serve", "--log", "trace"], arguments].concat())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(server.stderr.take().unwrap());
        let mut seen = String::new();
        let port = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "{seen}");
            seen += &line;
            if let Some((_, address)) = line.split_once("listening on http://") {
                break address.trim().rsplit(':').next().unwrap().to_owned();
            }
        };
        let reading = std::thread::spawn(move || {
            let mut rest = String::new();
            let _ = log.read_to_string(&mut rest);
            seen + &rest
        });
        let mut stream = std::net::TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        let body = RESNET.replace("resnet18", "resnet-of-a-secret-project");
        let length = body.len();
        write!(
            stream,
            "POST /v1/fits HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        // In an orderly way, and not before all is logged.
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        server.wait().unwrap();
        (answer[9..12].parse().unwrap(), reading.join().unwrap())
    };
    let bearer = format!("authorization: Bearer {key}\r\nidempotency-key: hush-hush\r\n");

    // 422 is what everybody gets who is let in: there is no such preset.
    let (status, log) = ask(&["--listen", "0.0.0.0:0"], &bearer);
    assert_eq!(status, 422, "{log}");
    for secret in [&key[30..], "secret-project", "hush-hush"] {
        assert!(!log.contains(secret), "{secret} is in the log: {log}");
    }
    assert!(
        log.contains("key=\"ci\"") || log.contains("key=ci"),
        "{log}"
    );
    assert_eq!(ask(&["--listen", "0.0.0.0:0"], "").0, 401);
    assert_eq!(ask(&["--listen", "127.0.0.1:0"], "").0, 422);
    assert_eq!(
        ask(&["--listen", "127.0.0.1:0", "--require-keys"], "").0,
        401
    );
    let (status, log) = ask(&["--listen", "0.0.0.0:0", "--allow-anonymous"], "");
    assert_eq!(status, 422);
    assert!(log.contains("all clients that reach"), "{log}");
}
