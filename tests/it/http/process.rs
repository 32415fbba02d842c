//! The real binary, over a socket.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, SystemTime};

use batchfit::device::sim::workspaces::pack;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::LONGEST_WAIT;
use super::connections::{post, read};
use crate::wait;

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

    /// A connection on which this was sent.
    async fn send(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let sending = stream.write_all(text.as_bytes());
        wait::for_future("a request to be sent", sending)
            .await
            .unwrap();
        stream
    }

    /// Posts a fit and gives it back as it stands after as long as it is waited for.
    async fn post(&self, body: &str, prefer: &str) -> Value {
        let headers = format!("connection: close\r\nprefer: {prefer}\r\n");
        let answer = read(self.send(&post("/v1/fits", &headers, body)).await).await;
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    }

    /// Posts a fit and waits for its end.
    async fn ask(&self, body: &str) -> Value {
        self.post(body, LONGEST_WAIT).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // As `kill -9` does it: no handler runs, nothing is flushed.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[tokio::test]
async fn a_closed_log_pipe_ends_no_request() {
    let directory = TempDir::new().unwrap();
    let mut server = Server::start(&directory.path().join("batchfit.db"));
    server.log = None;

    let fit = server.ask(QUESTION).await;

    assert_eq!(fit["state"], "done", "{fit}");
}

#[tokio::test]
async fn a_calibration_makes_cached_answers_stale() {
    let directory = TempDir::new().unwrap();
    let server = Server::start_with(&directory.path().join("batchfit.db"), directory.path());
    let question = r#"{"model": {"preset": "resnet18"}, "device": "sim:local"}"#;
    let largest = async || {
        let fit = server.ask(question).await;
        fit["result"]["recommendation"]["max_batch"].as_u64()
    };
    let calibrate = |gigabytes: u64| {
        let table = format!("{CALIBRATION}memory {gigabytes}000000000\n{LAYER}");
        let file = directory.path().join("card.txt.gz");
        fs::write(&file, pack(&table).unwrap()).unwrap();
        // However coarse the clock of the file system is.
        let written = SystemTime::UNIX_EPOCH + Duration::from_secs(gigabytes);
        let file = fs::File::options().append(true).open(&file).unwrap();
        file.set_modified(written).unwrap();
    };

    assert_eq!(largest().await, None);
    calibrate(12);
    let small = largest().await.unwrap();
    calibrate(24);
    let large = largest().await.unwrap();
    calibrate(12);

    assert!(large > small, "{small} {large}");
    assert_eq!(largest().await, Some(small));
}

/// The head of a table of a card that nobody lists, without its memory.
const CALIBRATION: &str = "batchfit workspaces 1\ncard NVIDIA Test 9000\ndriver 600.1\ncudnn 9.19.0\nrecorded 2026-11-23\n\
    command batchfit calibrate\ncompute 8.9\nmultiprocessors 84\nthreads_per_multiprocessor 1536\n";

/// And the rest.
const LAYER: &str =
    "grid 1 2 4\nlayer 3,64,1,224,224,7,7,2,2,3,3,1,1,0\njob forward f32 0 |100+10 0+0|0.1|0*3\n";

/// A small request.
const QUESTION: &str = r#"{"model": {"preset": "resnet18"}, "device": "sim:h200"}"#;

#[tokio::test]
async fn suggestions_are_part_of_what_is_stored() {
    let directory = TempDir::new().unwrap();
    let database = directory.path().join("batchfit.db");
    let question = r#"{"model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": "8GiB", "suggest": true}"#;

    let asked = Server::start(&database).ask(question).await;
    let again = Server::start(&database).ask(question).await;

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

#[tokio::test]
async fn one_server_works_on_a_database_and_commands_may_use_it() {
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
    let found = first.ask(QUESTION).await;
    assert_eq!(
        found["id"], fit["id"],
        "the server answers with what `fit` found"
    );

    // However the first one ends, its lock ends with it.
    drop(first);
    let second = Server::start(&database);
    assert_eq!(second.ask(QUESTION).await["id"], fit["id"]);
}

/// Kills of the server are nothing that a fit did: however many there are, none fails.
#[tokio::test]
async fn a_killed_server_loses_no_fit() {
    let directory = TempDir::new().unwrap();
    let database = directory.path().join("batchfit.db");
    let requests: Vec<String> = (8..12)
        .map(|limit| {
            format!(
                r#"{{"model": {{"preset": "resnet34"}}, "device": "sim:h200", "memory_limit": "{limit}GiB"}}"#
            )
        })
        .collect();
    let first = Server::start(&database);
    let mut asked = Vec::new();
    for body in &requests {
        asked.push(first.post(body, "wait=0").await);
    }

    drop(first);
    for _ in 0..2 {
        let server = Server::start(&database);
        // While the first of them run.
        server.post(&requests[0], "wait=0").await;
        drop(server);
    }
    let last = Server::start(&database);

    for (body, asked) in requests.iter().zip(&asked) {
        let answered = last.ask(body).await;
        assert_eq!(asked["id"], answered["id"]);
        assert_eq!(answered["state"], "done", "{answered:#}");
    }
}

/// A recording whose comparison takes long.
fn long_recording() -> String {
    let block = "alloc 7f0000000000 512 0\nfree_requested 7f0000000000 512 0\nfree_completed 7f0000000000 512 0\n";
    let header = r#"# {"total": 17179869184, "limit": 17179869184, "alloc_conf": ""}"#;
    format!(
        "{header}\nsegment_alloc 7f0000000000 2097152 0\n{}",
        block.repeat(130_000)
    )
}

#[tokio::test]
async fn a_server_that_is_busy_ends_when_it_is_asked_to() {
    let directory = TempDir::new().unwrap();
    let mut server = Server::start(&directory.path().join("batchfit.db"));
    let replay = post("/v1/replays?compare=true", "", &long_recording());
    let asking = server.send(&replay).await;
    let threads = format!("/proc/{}/task", server.child.id());
    // One that nobody saw has been answered.
    wait::until_async("the replay to begin", async || {
        let threads = fs::read_dir(&threads).unwrap();
        let mut names = threads.map(|thread| fs::read(thread.unwrap().path().join("comm")));
        names.any(|name| name.is_ok_and(|name| name == b"upload\n"))
            || asking.try_read(&mut [0]).is_ok()
    })
    .await;

    kill_process(Pid::from_child(&server.child), Signal::TERM).unwrap();

    let status = wait::until_some("the end of the server", || server.child.try_wait().unwrap());
    assert!(status.success(), "{status}");
}
