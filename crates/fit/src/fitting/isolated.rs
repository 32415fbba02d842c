//! A fit in a process of its own, so that what it does to its process it does to itself.
//!
//! The child is this very binary, called `batchfit answer`. It reads what is known of its headroom and one request, a line of
//! JSON each, and writes one
//! message a line: its rules, its progress, the outcome. Its stdin stays open for as long as the parent lives.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel,
};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::device::sim;
use crate::limits::Cancel;
use crate::model::{ENGINE_DIGEST, HeadroomCalibration, Request, RequestDocument};
use crate::worker::{Deadlines, SuspendAwareDeadline, reap};
use crate::{Engine, EngineError, FitResult, Isolation, Progress, Work};

/// How many processes a fit may take with it: what kills two will kill a third.
const PROCESSES: u32 = 2;
/// How often a wait looks whether it was cancelled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a process that closed its stdout may take to end.
const ENDING: Duration = Duration::from_secs(1);
/// How long a process may say nothing beside waiting for a GPU. A GPU is opened within two minutes, a probe there takes three by
/// default, and the simulation of the largest graph some seconds.
const SILENCE: Duration = Duration::from_mins(15);
/// The longest line that it may write. An answer with a timeline for each variant has some hundred KiB.
const LONGEST: u64 = 64 << 20;
/// Messages that may wait to be read.
const WAITING: usize = 16;

/// What the child says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    /// The first line.
    Hello {
        /// [`ENGINE_DIGEST`] of the child: the binary may have been replaced meanwhile.
        rules: String,
    },
    /// How far it is.
    Progress { progress: Progress },
    /// The answer: the last line.
    Answered { result: Box<FitResult> },
    /// Why there is none: the last line.
    Failed { error: EngineError },
}

/// Why no process could be started, which is nothing that the fit did.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotStarted {
    #[error("could not start a process for a fit: {0}")]
    Spawn(#[from] io::Error),
    #[error("a process for a fit did not begin to work")]
    Mute,
    #[error("the file of this program was replaced by another version")]
    OtherRules,
}

/// How a process ended that had no answer.
struct Died(String);

/// What the child reads: what was learnt, and the request, a line each.
fn question(request: &Request) -> io::Result<Vec<u8>> {
    let mut lines = serde_json::to_vec(request.calibration())?;
    lines.push(b'\n');
    serde_json::to_writer(&mut lines, &request.self_contained())?;
    lines.push(b'\n');
    Ok(lines)
}

/// Finds the largest batch, as [`Engine::fit`] does, in a process of this program.
pub(super) fn fit_isolated(
    (program, deadlines): (&Path, Deadlines),
    request: &Request,
    work: &Work<'_>,
) -> Result<Result<FitResult, EngineError>, NotStarted> {
    let question = question(request)?;
    let silence = SILENCE + deadlines.turn + 2 * deadlines.probe;
    let mut last = String::new();
    for _ in 0..PROCESSES {
        let process = Process::start((program, deadlines), &question, work.cancel)?;
        match process.outcome(silence, work) {
            Ok(outcome) => return Ok(outcome),
            Err(Died(cause)) => {
                warn!("a process that worked on one fit alone {cause}");
                last = cause;
            }
        }
    }
    Ok(Err(EngineError::Died { cause: last }))
}

/// A child at work; killed when it is dropped.
struct Process {
    child: Child,
    /// Takes the question to the child's stdin, which is open for as long as this is here.
    orders: Sender<Vec<u8>>,
    messages: Receiver<Message>,
}

/// The flag by which a child asks cuDNN as this process does.
fn ask_cudnn() -> Option<OsString> {
    let mut flag = OsString::from("--ask-cudnn=");
    flag.push(sim::installed_heuristics()?.folder());
    Some(flag)
}

impl Process {
    /// Starts a child that follows our rules.
    fn start(
        (program, deadlines): (&Path, Deadlines),
        question: &[u8],
        cancel: &Cancel,
    ) -> Result<Self, NotStarted> {
        let Deadlines {
            start,
            open,
            probe,
            turn,
            ..
        } = deadlines;
        let mut child = Command::new(program)
            .arg("answer")
            .args(ask_cudnn())
            .args(["--probe-deadline", &probe.as_secs().max(1).to_string()])
            .args(["--open-deadline", &open.as_secs().max(1).to_string()])
            .args(["--gpu-wait", &turn.as_secs().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (read, messages) = sync_channel(WAITING);
        let (orders, to_write) = channel();
        let stdout = child.stdout.take().expect("stdout is piped");
        let stdin = child.stdin.take().expect("stdin is piped");
        // Threads, because a child that does not read must not keep us from noticing that the work was cancelled
        // any more. They end with the child.
        thread::spawn(move || read_messages(BufReader::new(stdout), &read));
        thread::spawn(move || write_orders(stdin, &to_write));
        let mut process = Process {
            child,
            orders,
            messages,
        };
        match process.next(start, cancel) {
            Some(Message::Hello { rules }) if rules == ENGINE_DIGEST => {}
            Some(Message::Hello { .. }) => return Err(NotStarted::OtherRules),
            // Cancelled: the loop for the outcome says so.
            None if cancel.is_cancelled() => return Ok(process),
            Some(_) | None => return Err(NotStarted::Mute),
        }
        // Fails when the child is gone, which is noticed at its stdout.
        let _ = process.orders.send(question.to_vec());
        Ok(process)
    }

    /// Passes progress on until the child has ended, or has said nothing for so long.
    fn outcome(
        mut self,
        silence: Duration,
        work: &Work<'_>,
    ) -> Result<Result<FitResult, EngineError>, Died> {
        loop {
            match self.next(silence, work.cancel) {
                Some(Message::Progress { progress: step }) => (work.progress)(step),
                Some(Message::Answered { result }) => return Ok(Ok(*result)),
                Some(Message::Failed { error }) => return Ok(Err(error)),
                None if work.cancel.is_cancelled() => {
                    return Ok(Err(EngineError::Cancelled));
                }
                Some(Message::Hello { .. }) | None => return Err(Died(self.cause())),
            }
        }
    }

    /// What the child says next. `None` when it says no more, takes too long or is not wanted any more.
    fn next(&mut self, within: Duration, cancel: &Cancel) -> Option<Message> {
        let mut waited = Duration::ZERO;
        while waited < within && !cancel.is_cancelled() {
            match self.messages.recv_timeout(POLL_INTERVAL) {
                Ok(message) => return Some(message),
                Err(RecvTimeoutError::Timeout) => waited += POLL_INTERVAL,
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        None
    }

    /// How the child ended; ends it where it has only stopped to make sense.
    fn cause(&mut self) -> String {
        let patience = match self.messages.try_recv() {
            // What closes its stdout is about to end.
            Err(TryRecvError::Disconnected) => ENDING,
            Ok(_) | Err(TryRecvError::Empty) => Duration::ZERO,
        };
        match reap(
            &mut self.child,
            &mut SuspendAwareDeadline::of(patience),
            POLL_INTERVAL,
        ) {
            Some(status) => format!("ended ({status})"),
            None => "stopped to answer".to_owned(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error here means that it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write_orders(mut stdin: ChildStdin, orders: &Receiver<Vec<u8>>) {
    for order in orders {
        if stdin.write_all(&order).is_err() {
            return;
        }
    }
}

/// Hands over what the child says until it says something else, or nothing more.
fn read_messages(mut stdout: impl BufRead, messages: &SyncSender<Message>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = stdout.by_ref().take(LONGEST).read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) {
            return;
        }
        // From a text, as what a worker says: the reading of a report is compiled for each source.
        let message = str::from_utf8(&line).map(serde_json::from_str);
        let Ok(Ok(message)) = message else {
            return;
        };
        if messages.send(message).is_err() {
            return;
        }
    }
}

/// The child's side: answers the one request on `input`.
pub fn run_isolated(
    engine: &dyn Engine,
    input: &mut impl BufRead,
    output: impl Write,
) -> io::Result<()> {
    let output = RefCell::new(output);
    let say = |message: &Message| -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let mut output = output.borrow_mut();
        output.write_all(&line)?;
        output.flush()
    };
    say(&Message::Hello {
        rules: ENGINE_DIGEST.to_owned(),
    })?;
    let (mut calibration, mut question) = (Vec::new(), Vec::new());
    input.read_until(b'\n', &mut calibration)?;
    input.read_until(b'\n', &mut question)?;
    let calibration: Vec<HeadroomCalibration> = serde_json::from_slice(&calibration)?;
    let outcome = RequestDocument::from_json(&question)
        .and_then(Request::parse)
        .map_err(EngineError::Invalid)
        .and_then(|request| {
            let progress = |progress| {
                // The parent is gone when this fails, and this process soon is, too.
                let _ = say(&Message::Progress { progress });
            };
            let request = request.with_calibration(calibration);
            let work = Work {
                progress: &progress,
                ..Work::UNWATCHED
            };
            engine.fit(&request, Isolation::Shared, &work)
        });
    say(&match outcome {
        Ok(result) => Message::Answered {
            result: Box::new(result),
        },
        Err(error) => Message::Failed { error },
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// A program that counts its starts and then does `script`.
    struct Script {
        directory: tempfile::TempDir,
        program: PathBuf,
    }

    impl Script {
        fn new(script: &str) -> Script {
            let directory = tempfile::tempdir().unwrap();
            let program = directory.path().join("program");
            let starts = directory.path().join("starts");
            let text = format!("#!/bin/sh\necho start >> {}\n{script}\n", starts.display());
            // By another process: what this one writes, children of other tests may have open, and then it cannot be executed.
            let write = r#"printf %s "$1" > "$0" && chmod +x "$0""#;
            let mut writing = Command::new("sh");
            let written = writing.args(["-c", write]).arg(&program).arg(text).status();
            assert!(written.unwrap().success());
            Script { directory, program }
        }

        fn starts(&self) -> usize {
            let starts = fs::read_to_string(self.directory.path().join("starts"));
            starts.unwrap_or_default().lines().count()
        }

        /// Cancelled at the first step that it tells of.
        fn fit(&self) -> Result<Result<FitResult, EngineError>, NotStarted> {
            let cancel = Cancel::default();
            let work = Work {
                cancel: &cancel,
                progress: &|_| cancel.cancel(),
            };
            fit_isolated((&self.program, deadlines()), &request(), &work)
        }
    }

    /// With time to begin on the slowest machine.
    fn deadlines() -> Deadlines {
        Deadlines {
            start: Duration::from_mins(5),
            ..Deadlines::default()
        }
    }

    fn request() -> Request {
        let text = br#"{"model": {"preset": "resnet18"}, "device": "sim:h200"}"#;
        let document = RequestDocument::from_json(text).unwrap();
        Request::parse(document).unwrap()
    }

    fn handshake() -> String {
        say(&Message::Hello {
            rules: ENGINE_DIGEST.to_owned(),
        })
    }

    fn say(message: &Message) -> String {
        format!("echo '{}'", serde_json::to_string(message).unwrap())
    }

    #[test]
    fn a_fit_that_kills_two_processes_is_given_up() {
        let script = Script::new(&format!("{}\nread request\nkill -SEGV $$", handshake()));

        let outcome = script.fit().unwrap();

        assert_eq!(script.starts(), 2);
        let Err(EngineError::Died { cause }) = outcome else {
            panic!("{outcome:?}")
        };
        assert!(cause.contains("signal: 11"), "{cause}");
    }

    #[test]
    fn what_never_began_to_work_is_not_held_against_the_fit() {
        let no_such_command = Script::new("exit 2");
        let hello = say(&Message::Hello {
            rules: "others".to_owned(),
        });
        let other = Script::new(&format!("{hello}; read request"));
        let missing = Script {
            program: PathBuf::from("/nowhere/batchfit"),
            ..Script::new("")
        };

        assert!(matches!(no_such_command.fit(), Err(NotStarted::Mute)));
        assert!(matches!(other.fit(), Err(NotStarted::OtherRules)));
        assert!(matches!(missing.fit(), Err(NotStarted::Spawn(_))));
    }

    #[test]
    fn cancelling_ends_the_process() {
        let step = say(&Message::Progress {
            progress: Progress {
                probes_done: 1,
                batch: 8,
                note: String::new(),
            },
        });
        let script = Script::new(&format!("{}\n{step}\nexec sleep 1000", handshake()));

        let outcome = script.fit().unwrap();

        assert_eq!(outcome.unwrap_err(), EngineError::Cancelled);
    }

    #[test]
    fn a_process_that_says_nothing_is_given_up() {
        let script = Script::new(&format!("{}\nexec sleep 1000", handshake()));
        let with = (script.program.as_path(), deadlines());
        let process = Process::start(with, b"{}\n", &Cancel::NEVER).unwrap();

        let outcome = process.outcome(3 * POLL_INTERVAL, &Work::UNWATCHED);

        assert!(matches!(outcome, Err(Died(cause)) if cause == "stopped to answer"));
    }

    #[test]
    fn parent_and_child_understand_each_other() {
        use crate::FitEngine;

        let engine = FitEngine::new(PathBuf::from("/nowhere/batchfit"));
        let question = question(&request()).unwrap();
        let mut said = Vec::new();
        run_isolated(&engine, &mut question.as_slice(), &mut said).unwrap();

        let (sender, messages) = sync_channel(1 << 10);
        read_messages(said.as_slice(), &sender);
        drop(sender);
        let messages: Vec<Message> = messages.iter().collect();
        assert!(matches!(&messages[0], Message::Hello { rules } if rules == ENGINE_DIGEST));
        let Some(Message::Answered { result }) = messages.last() else {
            panic!("{:?}", messages.last())
        };
        let alone = engine.fit(&request(), Isolation::Shared, &Work::UNWATCHED);
        // All but the times that probes took.
        let alone = alone.unwrap();
        assert_eq!(result.variants, alone.variants);
        assert_eq!(result.environment, alone.environment);
    }
}
