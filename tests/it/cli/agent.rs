//! Agents as processes: a server and what works for it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use super::Sandbox;
use crate::wait::{self, HANG};

/// A lease that no agent loses, however slow it is.
const LEASE: u32 = 3600;

/// As long as the service lets anybody wait.
const LONGEST_WAIT: &str = "prefer: wait=600\r\n";

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
        wait::until_some("a process to end", || self.0.try_wait().unwrap()).code()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, signal).unwrap();
    }
}

/// A command on a machine without a GPU, whatever machine this is: a card of its own would answer in the place of an agent's.
pub(super) fn command(place: &Sandbox) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_batchfit"));
    command
        .env("CUDA_VISIBLE_DEVICES", "")
        .current_dir(place.directory.path())
        .env("HOME", place.directory.path())
        .env_remove("BATCHFIT_DATABASE")
        .env_remove("BATCHFIT_LOG")
        .env_remove("http_proxy");
    command
}

/// An agent of the server at `address`.
fn agent(address: &str, place: &Sandbox, name: &str, arguments: &[&str]) -> Running {
    let agent = command(place)
        .args(["agent", "--server", &format!("http://{address}")])
        .args(["--name", name, "--simulate", "h100-80g"])
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Running(agent)
}

/// A server.
struct Server {
    _process: Running,
    address: String,
}

impl Server {
    fn start(place: &Sandbox, lease: u32) -> Server {
        let mut child = command(place)
            .args(["serve", "--listen", "127.0.0.1:0", "--log", "info"])
            .args(["--database", "batchfit.db", "--agent-lease"])
            .arg(lease.to_string())
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
        stream.set_read_timeout(Some(HANG)).unwrap();
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
        wait::until(what, || holds(&self.agents()));
    }

    fn agent(&self, place: &Sandbox, name: &str, arguments: &[&str]) -> Running {
        agent(&self.address, place, name, arguments)
    }
}

#[test]
fn an_agent_that_is_asked_to_end_brings_its_answer_once_and_takes_leave() {
    let place = Sandbox::new();
    let server = Server::start(&place, LEASE);
    let agent = server.agent(&place, "node1", &[]);
    server.until("it registers", |agents| agents.len() == 1);
    let question = json!({"model": {"preset": "resnet18"}, "device": "h100-80g"}).to_string();
    let (status, fit) = server.ask("POST /v1/fits", "", &question);
    assert_eq!(status, 202, "{fit}");

    let look = format!("GET /v1/fits/{}", fit["id"].as_str().unwrap());
    wait::until("the fit to be taken", || {
        server.ask(&look, "", "").1["state"] != "queued"
    });
    agent.signal(Signal::TERM);
    assert_eq!(agent.code(), Some(0));
    server.until("it takes leave", <[Value]>::is_empty);

    let (_, done) = server.ask(&look, "", "");
    assert_eq!(done["state"], "done", "{done}");
    let recommendation = &done["result"]["recommendation"];
    assert_eq!(recommendation["evidence"], "simulated");
    let notes = recommendation["notes"].to_string();
    assert!(notes.contains("simulated by the agent node1"), "{notes}");
    let (_, stored) = server.ask("GET /v1/recommendations?limit=500", "", "");
    let of_fit = stored["items"].as_array().unwrap().iter();
    let ranks = of_fit.filter(|one| one["fit_id"] == fit["id"] && one["rank"] == 1);
    assert_eq!(ranks.count(), 1);
}

#[test]
fn an_agent_ends_while_nobody_answers_it() {
    let place = Sandbox::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let agent = agent(&address, &place, "node1", &[]);
    let (mut connection, _) = wait::until_some("its question", || silent.accept().ok());
    connection.read_exact(&mut [0]).unwrap();

    agent.signal(Signal::TERM);
    assert_eq!(agent.code(), Some(0));
}

#[test]
fn an_agent_for_one_job_says_whether_there_was_one() {
    let place = Sandbox::new();
    let server = Server::start(&place, LEASE);
    let nothing = server.agent(&place, "node1", &["--once", "--wait", "1"]);
    assert_eq!(nothing.code(), Some(5));
    server.until("it takes leave", <[Value]>::is_empty);

    let once = server.agent(&place, "node1", &["--once", "--wait", "600"]);
    server.until("it registers", |agents| agents.len() == 1);
    let request = json!({"model": {"preset": "resnet18"}, "device": "node1/cuda:0"});
    let (_, done) = server.ask("POST /v1/fits", LONGEST_WAIT, &request.to_string());

    assert_eq!(done["state"], "done", "{done}");
    assert_eq!(once.code(), Some(0));
    server.until("it takes leave", <[Value]>::is_empty);
    let nobody =
        json!({"model": {"preset": "resnet18"}, "device": "node1/cuda:0", "memory_limit": "2GiB"});
    assert_eq!(server.ask("POST /v1/fits", "", &nobody.to_string()).0, 422);
    // A kind of card that nobody has any more.
    let simulated =
        json!({"model": {"preset": "resnet18"}, "device": "h100-80g", "memory_limit": "3GiB"});
    let (_, done) = server.ask("POST /v1/fits", LONGEST_WAIT, &simulated.to_string());
    let notes = done["result"]["recommendation"]["notes"].to_string();
    assert!(notes.contains("nor any agent"), "{done}");
}

#[test]
fn agents_are_listed_and_drained_from_a_shell() {
    let place = Sandbox::new();
    // An agent that is cordoned asks once in a third of a lease what it is to do.
    let server = Server::start(&place, 2);
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
    server.until("it is cordoned", |agents| agents[0]["state"] == "cordoned");
    assert_eq!(agents(&["uncordon", "node1"]).0, Some(0));
    assert_eq!(agents(&["cordon", "node9"]).0, Some(2));
    assert_eq!(agents(&["drain", "node1"]).0, Some(0));

    assert_eq!(agent.code(), Some(0));
    server.until("it takes leave", <[Value]>::is_empty);
    let (_, none) = agents(&[]);
    assert!(none.contains("no agent is registered"), "{none}");
}

#[test]
fn flags_that_make_no_agent_are_refused() {
    let place = Sandbox::new();
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
        (
            ["--key-file", "/dev/zero", "--simulate", "l4"],
            "this file is longer",
        ),
    ] {
        let (code, text) = refused(&arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {text}");
        assert!(text.contains(said), "{arguments:?}: {text}");
        assert!(!text.contains("secret"), "{text}");
    }
    // A key that others can read is used, and its user told.
    let key = place.write("key", "batchfit_a_b");
    let modes = [0o644, 0o640].map(std::os::unix::fs::PermissionsExt::from_mode);
    let said = modes.map(|mode| {
        std::fs::set_permissions(&key, mode).unwrap();
        let (_, text) = refused(&["--key-file", "key", "--simulate", "l5"]);
        text.contains("all users of this machine can read")
    });
    assert_eq!(said, [true, false]);
    // Nobody there: an agent for one job does not wait for ever.
    let nobody = TcpSocket::new_v4().unwrap();
    nobody.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let server = format!("http://{}", nobody.local_addr().unwrap());
    let (code, text) = refused(&[
        "--server",
        &server,
        "--simulate",
        "l4",
        "--once",
        "--wait",
        "1",
    ]);
    assert_eq!(code, Some(5));
    assert!(text.contains("could not register in time"), "{text}");
}
