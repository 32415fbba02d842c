//! The real binary, over a socket.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use batchfit::device::sim::workspaces::pack;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::DEADLINE;

/// A running server; killed when it is dropped.
struct Server {
    child: Child,
    address: String,
    /// Where its log is read.
    log: Option<BufReader<ChildStderr>>,
}

impl Server {
    fn start(database: &Path) -> Server {
        // No calibrations but those of a test.
        Server::start_with(database, &database.with_extension("calibrations"))
    }

    fn start_with(database: &Path, calibrations: &Path) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_batchfit"))
            .args(["serve", "--log", "info", "--listen", "127.0.0.1:0"])
            .arg("--database")
            .arg(database)
            .env("BATCHFIT_CALIBRATIONS", calibrations)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut seen = String::new();
        let address = loop {
            let mut line = String::new();
            let read = log.read_line(&mut line).unwrap();
            assert!(read > 0, "the server ended: {seen}");
            if let Some((_, address)) = line.split_once("listening on http://") {
                break address.trim().to_owned();
            }
            seen += &line;
        };
        Server {
            child,
            address,
            log: Some(log),
        }
    }

    /// Posts a fit and gives it back as it stands after `wait` seconds at most.
    fn post(&self, body: &str, wait: u64) -> Value {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        write!(
            stream,
            "POST /v1/fits HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nprefer: wait={wait}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // As `kill -9` does it: no handler runs, nothing is flushed.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn a_log_that_nobody_reads_any_more_ends_no_request() {
    let directory = TempDir::new().unwrap();
    let mut server = Server::start(&directory.path().join("batchfit.db"));
    server.log = None;

    let fit = server.post(QUESTION, 20);

    assert_eq!(fit["state"], "done", "{fit}");
}

#[test]
fn a_card_that_was_calibrated_meanwhile_is_asked_about_anew() {
    let directory = TempDir::new().unwrap();
    let server = Server::start_with(&directory.path().join("batchfit.db"), directory.path());
    let question = r#"{"model": {"preset": "resnet18"}, "device": "sim:local"}"#;
    let largest = || server.post(question, 20)["result"]["recommendation"]["max_batch"].as_u64();
    let calibrate = |memory: u64| {
        let table = format!("{CALIBRATION}memory {memory}\n{LAYER}");
        fs::write(directory.path().join("card.txt.gz"), pack(&table).unwrap()).unwrap();
    };

    assert_eq!(largest(), None);
    calibrate(12_000_000_000);
    let small = largest().unwrap();
    calibrate(24_000_000_000);
    let large = largest().unwrap();
    calibrate(12_000_000_000);

    assert!(large > small, "{small} {large}");
    assert_eq!(largest(), Some(small));
}

/// The head of a table of a card that nobody lists, without its memory.
const CALIBRATION: &str = "batchfit workspaces 1\ncard NVIDIA Test 9000\ndriver 600.1\ncudnn 9.19.0\nrecorded 2026-11-23\n\
    command batchfit calibrate\ncompute 8.9\nmultiprocessors 84\nthreads_per_multiprocessor 1536\n";

/// And the rest.
const LAYER: &str =
    "grid 1 2 4\nlayer 3,64,1,224,224,7,7,2,2,3,3,1,1,0\njob forward f32 0 |100+10 0+0|0.1|0*3\n";

/// A small request.
const QUESTION: &str = r#"{"model": {"preset": "resnet18"}, "device": "sim:h200"}"#;

#[test]
fn suggestions_are_part_of_what_is_stored() {
    let directory = TempDir::new().unwrap();
    let database = directory.path().join("batchfit.db");
    let question = r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": "8GiB", "suggest": true}"#;

    let asked = Server::start(&database).post(question, 20);
    let again = Server::start(&database).post(question, 20);

    let suggestions = &asked["result"]["suggestions"];
    assert!(
        suggestions.as_array().is_some_and(|all| !all.is_empty()),
        "{asked}"
    );
    let wanted = 2 * asked["result"]["recommendation"]["micro_batch"]
        .as_u64()
        .unwrap();
    assert_eq!(asked["result"]["suggested_for"], wanted);
    assert_eq!(again["id"], asked["id"]);
    assert_eq!(&again["result"]["suggestions"], suggestions);
}

#[test]
fn one_server_works_on_a_database_and_everybody_else_may_use_it() {
    let directory = TempDir::new().unwrap();
    let database = directory.path().join("batchfit.db");
    let first = Server::start(&database);
    let request = directory.path().join("request.json");
    fs::write(&request, QUESTION).unwrap();
    let batchfit = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_batchfit"));
        command.args(arguments).arg("--database").arg(&database);
        command.output().unwrap()
    };

    let refused = batchfit(&["serve", "--listen", "127.0.0.1:0"]);
    let fit = batchfit(&["fit", request.to_str().unwrap(), "--json"]);

    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.contains("another batchfit server uses the database"),
        "{said}"
    );
    let fit: Value = serde_json::from_slice(&fit.stdout).unwrap();
    let found = first.post(QUESTION, 20);
    assert_eq!(
        found["id"], fit["id"],
        "the server answers with what `fit` found"
    );

    // However the first one ends, its lock ends with it.
    drop(first);
    let second = Server::start(&database);
    assert_eq!(second.post(QUESTION, 20)["id"], fit["id"]);
}

/// Kills of the server are nothing that a fit did: however many there are, none fails.
#[test]
fn a_killed_server_loses_no_fit() {
    let directory = TempDir::new().unwrap();
    let database = directory.path().join("batchfit.db");
    let requests: Vec<String> = (8..16)
        .map(|limit| {
            format!(
                r#"{{"model": {{"preset": "resnet50"}}, "device": "sim:h200", "memory_limit": "{limit}GiB"}}"#
            )
        })
        .collect();
    let first = Server::start(&database);
    let asked: Vec<Value> = requests.iter().map(|body| first.post(body, 0)).collect();

    drop(first);
    for _ in 0..4 {
        let server = Server::start(&database);
        // While the first of them run.
        server.post(&requests[0], 0);
        drop(server);
    }
    let last = Server::start(&database);
    let answered: Vec<Value> = requests.iter().map(|body| last.post(body, 20)).collect();

    for (asked, answered) in asked.iter().zip(&answered) {
        assert_eq!(asked["id"], answered["id"]);
        assert_eq!(answered["state"], "done", "{answered:#}");
    }
}

/// A recording whose comparison takes much longer than a second.
fn long_recording() -> String {
    let block = "alloc 7f0000000000 512 0\nfree_requested 7f0000000000 512 0\nfree_completed 7f0000000000 512 0\n";
    let header = r#"# {"total": 17179869184, "limit": 17179869184, "alloc_conf": ""}"#;
    format!(
        "{header}\nsegment_alloc 7f0000000000 2097152 0\n{}",
        block.repeat(130_000)
    )
}

#[test]
fn a_server_that_is_busy_ends_within_a_second_and_answers() {
    let directory = TempDir::new().unwrap();
    let mut server = Server::start(&directory.path().join("batchfit.db"));
    let recording = long_recording();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(
        stream,
        "POST /v1/replays?compare=true HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{recording}",
        recording.len()
    )
    .unwrap();
    // It is read within milliseconds, and replayed for seconds.
    thread::sleep(Duration::from_millis(300));

    let asked = Instant::now();
    let pid = Pid::from_child(&server.child);
    kill_process(pid, Signal::TERM).unwrap();
    let status = server.child.wait().unwrap();
    let took = asked.elapsed();

    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("/problems/not-ready"), "{answer}");
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_secs(1), "{took:?}");
}
