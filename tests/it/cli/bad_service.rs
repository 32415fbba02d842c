//! Agents and their lists against a service that means harm.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use batchfit::store::Time;
use serde_json::{Value, json};

use super::Sandbox;
use super::agent::command;

/// A service that answers what is said here, with this status; where nothing is said it stays silent.
struct BadService {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl BadService {
    fn start<A>(answer: A) -> BadService
    where
        A: Fn(&str) -> Option<(u16, Value)> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let line = request_line(&stream);
                let said = answer(&line);
                log.lock().unwrap().push(line);
                let Some((status, body)) = said else {
                    silent.push(stream);
                    continue;
                };
                let body = body.to_string();
                // A client may have had enough.
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        BadService { address, asked }
    }

    /// How the program ends that asks it, and what it says.
    fn meets(&self, arguments: &str) -> (Option<i32>, String) {
        let place = Sandbox::new();
        let mut command = command(&place);
        command.args(arguments.split(' '));
        command.args(["--server", &format!("http://{}", self.address)]);
        let output = command.output().unwrap();
        let [out, err] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
        (output.status.code(), format!("{out}{err}"))
    }
}

/// The first line of a request, which is read to its end.
fn request_line(stream: &TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
    reader.read_line(&mut first).unwrap();
    while reader.read_line(&mut line).unwrap() > 2 {
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    reader.take(length).read_to_end(&mut Vec::new()).unwrap();
    first
}

/// What an agent is told that registers.
fn welcome() -> Value {
    json!({
        "id": "a1", "name": "node1", "state": "ready", "version": "1", "cards": [], "works_on": [], "registered_at": Time(0),
        "seen_at": Time(0), "duty": "ready", "lease_seconds": 3600, "server_version": "1"
    })
}

/// An agent that takes one job, and waits for it this long.
const ONCE: &str = "agent --simulate l4 --name node1 --once --wait 1";

#[test]
fn what_a_service_says_is_short_and_turns_no_text() {
    let long = format!("\u{202e}{}", "a".repeat(5 << 20));
    let problem = json!({"type": "/problems/x", "detail": long});
    let mut list = json!({"items": [welcome()], "next": null});
    list["items"][0]["state"] = json!(long);
    for (status, body) in [(403, problem), (200, list), (200, json!(long))] {
        let service = BadService::start(move |_| Some((status, body.clone())));
        for arguments in ["agents", ONCE] {
            let (_, said) = service.meets(arguments);

            assert!((1..20_000).contains(&said.len()), "{} bytes", said.len());
            assert!(!said.contains('\u{202e}'), "{said}");
        }
    }
}

#[test]
fn an_agent_for_one_job_waits_no_longer_for_a_silent_service() {
    let silent = BadService::start(|_| None);
    let (code, said) = silent.meets(ONCE);
    assert_eq!(code, Some(5));
    assert!(said.contains("could not register in time"), "{said}");
    assert!(!said.contains("did not answer"), "{said}");

    let takes_it = |line: &str| {
        line.starts_with("POST /v1/agents ")
            .then(|| (200, welcome()))
    };
    let (code, said) = BadService::start(takes_it).meets(ONCE);
    assert_eq!(code, Some(5));
    assert!(!said.contains("did not answer within 1"), "{said}");
}

#[test]
fn a_job_without_the_name_of_an_attempt_is_refused() {
    for attempt in [
        "../../../healthz?x=.1",
        "f1\r\n\u{1b}[2J.1",
        "f1.",
        "f1.-1",
        "f2.1",
        "",
    ] {
        let job = json!({
            "attempt": attempt, "fit": "f1", "device": "cuda:0", "cards": 1, "apart": false, "timeout_seconds": null, "taught": [],
            "lease_seconds": 3600
        });
        let claims = AtomicU32::new(0);
        let service = BadService::start(move |line| {
            let answer = if !line.starts_with("POST /v1/agents/a1/claims ") {
                welcome()
            } else if claims.fetch_add(1, Ordering::Relaxed) == 0 {
                json!({"duty": "ready", "job": job})
            } else {
                json!({"duty": "draining", "job": null})
            };
            Some((200, answer))
        });

        let (code, said) = service.meets(&ONCE.replace("--wait 1", "--wait 600"));

        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("a job whose attempt has no name"), "{said}");
        let asked = service.asked.lock().unwrap().join("\n");
        assert!(
            !asked.contains("healthz") && !asked.contains("/jobs/"),
            "{asked}"
        );
    }
}
