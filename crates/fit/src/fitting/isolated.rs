//! A fit in a process of its own, so that what it does to its process it does to itself.
//!
//! The child is this very binary, called `batchfit answer`. It reads what is known of its headroom and one request, a line of
//! JSON each, and writes one
//! message a line: its rules, its progress, the outcome. Its stdin stays open for as long as the parent lives.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::device::sim;
use crate::fitting::Result;
use crate::limits::Cancel;
use crate::model::{ENGINE_DIGEST, HeadroomCalibration, Request, RequestDocument};
use crate::worker::process::{Launch, Running};
use crate::worker::{Activity, Deadlines, Loss, WorkerError};
use crate::{Engine, EngineError, FitResult, Isolation, Progress, Work};

/// How many processes a fit may take with it: what kills two will kill a third.
const PROCESSES: u32 = 2;
/// How long a process may say nothing beside waiting for a GPU. A GPU is opened within two minutes, a probe there takes three by
/// default, and the simulation of the largest graph some seconds.
const SILENCE: Duration = Duration::from_mins(15);
/// The longest line that it may write. An answer with a timeline for each variant has some hundred KiB.
const LONGEST: usize = 64 << 20;

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

/// Finds the largest batch, as [`Engine::fit`] does, in a process of this program.
pub(super) fn fit_isolated(
    (program, deadlines): (&Path, Deadlines),
    request: &Request,
    work: &Work<'_>,
) -> Result<Result<FitResult>, NotStarted> {
    let silence = SILENCE + deadlines.turn + 2 * deadlines.probe;
    let mut last = String::new();
    for _ in 0..PROCESSES {
        let running = start((program, deadlines), request, work.cancel)?;
        match outcome(running, silence, work) {
            Ok(outcome) => return Ok(outcome),
            Err(Died(cause)) => {
                warn!("a process that worked on one fit alone {cause}");
                last = cause;
            }
        }
    }
    Ok(Err(EngineError::Died { cause: last }))
}

/// The flag by which a child asks cuDNN as this process does.
fn ask_cudnn() -> Option<OsString> {
    let mut flag = OsString::from("--ask-cudnn=");
    flag.push(sim::installed_heuristics()?.folder());
    Some(flag)
}

/// Starts a child that follows our rules, and asks it.
fn start(
    (program, deadlines): (&Path, Deadlines),
    request: &Request,
    cancel: &Cancel,
) -> Result<Running, NotStarted> {
    let mut arguments: Vec<OsString> = vec!["answer".into()];
    arguments.extend(ask_cudnn());
    for (flag, seconds) in [
        ("--probe-deadline", deadlines.probe.as_secs().max(1)),
        ("--open-deadline", deadlines.open.as_secs().max(1)),
        ("--gpu-wait", deadlines.turn.as_secs()),
    ] {
        arguments.extend([flag.into(), seconds.to_string().into()]);
    }
    let started = Running::start(&Launch {
        who: "process of a fit".into(),
        program,
        arguments: &arguments,
        environment: &[],
        starts_others: false,
        shares_stderr: true,
        longest_answer: LONGEST,
        ending: deadlines.end,
    });
    let mut running = started.map_err(|error| match error {
        WorkerError::Spawn { source, .. } => NotStarted::Spawn(source),
        _ => NotStarted::Mute,
    })?;
    match running.wait(Activity::Starting, deadlines.start, cancel) {
        Ok(Message::Hello { rules }) if rules == ENGINE_DIGEST => {}
        Ok(Message::Hello { .. }) => return Err(NotStarted::OtherRules),
        // The wait for the outcome says so.
        Err(WorkerError::Cancelled) => return Ok(running),
        Ok(_) | Err(_) => return Err(NotStarted::Mute),
    }
    // What it reads: what was learnt, and the request, a line each.
    running.tell(&request.calibration());
    running.tell(&request.self_contained());
    Ok(running)
}

/// Passes progress on until the child has ended, or has said nothing for so long.
fn outcome(
    mut running: Running,
    silence: Duration,
    work: &Work<'_>,
) -> Result<Result<FitResult>, Died> {
    loop {
        match running.wait(Activity::Opening, silence, work.cancel) {
            Ok(Message::Progress { progress }) => (work.progress)(progress),
            Ok(Message::Answered { result }) => return Ok(Ok(*result)),
            Ok(Message::Failed { error }) => return Ok(Err(error)),
            Err(WorkerError::Cancelled) => return Ok(Err(EngineError::Cancelled)),
            Err(WorkerError::Lost {
                loss: Loss::Exited(status) | Loss::HalfLine(status),
                ..
            }) => return Err(Died(format!("ended ({status})"))),
            Ok(Message::Hello { .. }) | Err(_) => {
                return Err(Died("stopped to answer".to_owned()));
            }
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
    use std::process::Command;

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
        fn fit(&self) -> Result<Result<FitResult>, NotStarted> {
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
            ..Deadlines::USUAL
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
        let running = start(with, &request(), &Cancel::NEVER).unwrap();

        let outcome = outcome(running, Duration::from_millis(60), &Work::UNWATCHED);

        assert!(matches!(outcome, Err(Died(cause)) if cause == "stopped to answer"));
    }

    #[test]
    fn parent_and_child_understand_each_other() {
        use crate::FitEngine;

        let engine = FitEngine::new(PathBuf::from("/nowhere/batchfit"));
        let document = serde_json::to_string(&request().self_contained()).unwrap();
        let mut said = Vec::new();
        run_isolated(
            &engine,
            &mut format!("[]\n{document}\n").as_bytes(),
            &mut said,
        )
        .unwrap();

        let lines = said.split_inclusive(|byte| *byte == b'\n');
        let messages: Vec<Message> = lines
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
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
