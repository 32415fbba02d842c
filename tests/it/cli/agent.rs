//! Agents as processes: a server and what works for it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::Place;

/// No test waits longer than this for anything.
const DEADLINE: Duration = Duration::from_mins(1);

/// A process that is killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// How it ends by itself.
    fn code(mut self) -> Option<i32> {
        let begun = Instant::now();
        while begun.elapsed() < DEADLINE {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("it does not end");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, signal).unwrap();
    }
}

fn command(place: &Place) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_batchfit"));
    command
        .current_dir(place.directory.path())
        .env("HOME", place.directory.path())
        .env_remove("BATCHFIT_DATABASE")
        .env_remove("BATCHFIT_LOG")
        .env_remove("http_proxy");
    command
}

/// A server.
struct Server {
    _process: Running,
    address: String,
}

impl Server {
    fn start(place: &Place, lease: u32) -> Server {
        let mut child = command(place)
            .args(["serve", "--listen", "127.0.0.1:0", "--log", "info"])
            .args([
                "--database",
                "batchfit.db",
                "--agent-lease",
                &lease.to_string(),
            ])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "the server ended");
            if let Some((_, address)) = line.split_once("listening on http://") {
                break address.trim().to_owned();
            }
        };
        // Or it would wait for somebody who reads.
        thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Server {
            _process: Running(child),
            address,
        }
    }

    fn ask(&self, request: &str, headers: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let length = body.len();
        write!(
            stream,
            "{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (
            head[9..12].parse().unwrap(),
            serde_json::from_str(body).unwrap_or(Value::Null),
        )
    }

    fn agents(&self) -> Vec<Value> {
        let (_, list) = self.ask("GET /v1/agents", "", "");
        list["items"].as_array().unwrap().clone()
    }

    fn until(&self, what: &str, holds: impl Fn(&[Value]) -> bool) {
        let begun = Instant::now();
        while !holds(&self.agents()) {
            assert!(
                begun.elapsed() < DEADLINE,
                "in vain: {what}: {:?}",
                self.agents()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn agent(&self, place: &Place, name: &str, arguments: &[&str]) -> Running {
        let agent = command(place)
            .args(["agent", "--server", &format!("http://{}", self.address)])
            .args(["--name", name, "--simulate", "h100-80g"])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Running(agent)
    }
}

/// A question that takes some seconds: many variants.
fn long_question() -> Value {
    json!({
        "model": {"preset": "resnet152"},
        "training": {"precision": ["fp32", "amp_fp16", "amp_bf16"], "optimizer": ["sgd", "adam", "adamw"], "checkpointing": ["none", "per_block"]},
        "device": "h100-80g", "target_batch": 4096
    })
}

#[test]
fn a_fit_whose_agent_is_killed_ends_once_with_one_answer() {
    let place = Place::new();
    let server = Server::start(&place, 2);
    let mut agents: Vec<(&str, Running)> = ["node1", "node2"]
        .map(|name| (name, server.agent(&place, name, &[])))
        .into();
    server.until("both register", |agents| agents.len() == 2);
    let (status, fit) = server.ask("POST /v1/fits", "", &long_question().to_string());
    assert_eq!(status, 202, "{fit}");
    let id = fit["id"].as_str().unwrap().to_owned();
    let works = |agents: &[Value]| -> Option<String> {
        let mut agents = agents.iter();
        let busy = agents.find(|agent| agent["works_on"] == json!([id]));
        busy.map(|agent| agent["name"].as_str().unwrap().to_owned())
    };
    server.until("one takes it", |agents| works(agents).is_some());

    let first = works(&server.agents()).unwrap();
    agents.retain(|(name, _)| *name != first);
    let other = agents[0].0;
    server.until("the other takes it", |agents| {
        works(agents).as_deref() == Some(other)
    });
    let (_, done) = server.ask(
        "POST /v1/fits",
        "prefer: wait=60\r\n",
        &long_question().to_string(),
    );

    assert_eq!((&done["id"], &done["state"]), (&json!(id), &json!("done")));
    let recommendation = &done["result"]["recommendation"];
    assert_eq!(recommendation["evidence"], "simulated");
    let notes = recommendation["notes"].to_string();
    assert!(
        notes.contains(&format!("simulated by the agent {other}")),
        "{notes}"
    );
    let (_, stored) = server.ask("GET /v1/recommendations?limit=500", "", "");
    let of_fit = stored["items"].as_array().unwrap().iter();
    let ranks = of_fit.filter(|one| one["fit_id"] == json!(id) && one["rank"] == 1);
    assert_eq!(ranks.count(), 1);
    agents[0].1.signal(Signal::TERM);
    let (_, agent) = agents.pop().unwrap();
    assert_eq!(agent.code(), Some(0));
    server.until("it took leave", |agents| {
        agents.iter().all(|agent| agent["state"] == "lost")
    });
}

#[test]
fn an_agent_for_one_job_says_whether_there_was_one() {
    let place = Place::new();
    let server = Server::start(&place, 30);
    let nothing = server.agent(&place, "node1", &["--once", "--wait", "1"]);
    assert_eq!(nothing.code(), Some(5));
    assert_eq!(server.agents().len(), 0);

    let once = server.agent(&place, "node1", &["--once", "--wait", "60"]);
    server.until("it registers", |agents| agents.len() == 1);
    let request = json!({"model": {"preset": "resnet18"}, "device": "node1/cuda:0"});
    let (_, done) = server.ask("POST /v1/fits", "prefer: wait=60\r\n", &request.to_string());

    assert_eq!(done["state"], "done", "{done}");
    assert_eq!(once.code(), Some(0));
    let nobody =
        json!({"model": {"preset": "resnet18"}, "device": "node1/cuda:0", "memory_limit": "2GiB"});
    assert_eq!(server.ask("POST /v1/fits", "", &nobody.to_string()).0, 422);
    // A kind of card that nobody has any more.
    let simulated =
        json!({"model": {"preset": "resnet18"}, "device": "h100-80g", "memory_limit": "3GiB"});
    let (_, done) = server.ask(
        "POST /v1/fits",
        "prefer: wait=60\r\n",
        &simulated.to_string(),
    );
    let notes = done["result"]["recommendation"]["notes"].to_string();
    assert!(notes.contains("nor any agent"), "{done}");
}

#[test]
fn agents_are_listed_and_drained_from_a_shell() {
    let place = Place::new();
    let server = Server::start(&place, 30);
    let agent = server.agent(&place, "node1", &[]);
    server.until("it registers", |agents| agents.len() == 1);
    let agents = |arguments: &[&str]| {
        let output = command(&place)
            .arg("agents")
            .args(arguments)
            .args(["--server", &format!("http://{}", server.address)])
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout) + &text(&output.stderr),
        )
    };

    let (code, listed) = agents(&[]);
    assert_eq!(code, Some(0), "{listed}");
    assert!(
        listed.contains("node1") && listed.contains("(simulated)"),
        "{listed}"
    );
    assert_eq!(agents(&["cordon", "node1"]).0, Some(0));
    assert_eq!(server.agents()[0]["state"], "cordoned");
    assert_eq!(agents(&["uncordon", "node1"]).0, Some(0));
    assert_eq!(agents(&["cordon", "node9"]).0, Some(2));
    assert_eq!(agents(&["drain", "node1"]).0, Some(0));

    assert_eq!(agent.code(), Some(0));
    assert_eq!(server.agents().len(), 0);
    let (_, none) = agents(&[]);
    assert!(none.contains("no agent is registered"), "{none}");
}

#[test]
fn flags_that_make_no_agent_are_refused() {
    let place = Place::new();
    let refused = |arguments: &[&str]| {
        let output = command(&place)
            .arg("agent")
            .args(arguments)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    for (arguments, said) in [
        (["--server", "https://a", "--simulate", "l4"], "TLS"),
        (["--server", "nowhere", "--simulate", "l4"], "no address"),
        (["--server", "http://a:99999", "--simulate", "l4"], "99999"),
        (
            ["--server", "http://u:secret@a", "--simulate", "l4"],
            "--key-file",
        ),
        (["--name", "a b", "--simulate", "l4"], "--name"),
        (["--name", "a", "--simulate", "200xh100"], "at most 128"),
        (["--name", "a", "--simulate", "l5"], "l5"),
        (["--name", "a", "--wait", "1"], "--once"),
        (["--key-file", "nowhere", "--simulate", "l4"], "nowhere"),
    ] {
        let (code, text) = refused(&arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {text}");
        assert!(text.contains(said), "{arguments:?}: {text}");
        assert!(!text.contains("secret"), "{text}");
    }
    // Nobody there: an agent for one job does not wait for ever.
    let (code, text) = refused(&[
        "--server",
        "http://127.0.0.1:9",
        "--simulate",
        "l4",
        "--once",
        "--wait",
        "1",
    ]);
    assert_eq!(code, Some(5));
    assert!(text.contains("could not register in time"), "{text}");
}
