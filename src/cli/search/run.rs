//! One run of the command: its output, its time, its end, and the end of all that it started.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use batchfit_platform::{has_ended, own_group, signal};
use regex_lite::Regex;

use super::run_output::{Lines, RunOutput};
use super::verdict::Rules;
use super::wrong;
use crate::cli::error::CliError;
use crate::cli::terminal::output;
use crate::limits::Cancel;
use crate::units::Bytes;
use crate::virtual_gpu::Ending;
use crate::worker::{SuspendAwareDeadline, reap, supervised};

/// How often a wait looks whether the run is over or was asked to stop.
const POLL: Duration = Duration::from_millis(10);

/// In every so many looks also what it takes of the host's memory, which takes longer to see.
const MEMORY_POLLS: u64 = 20;

/// How long a run that was killed may take to end, and its output to arrive: a driver may hold it for a while.
const ENDING: Duration = Duration::from_secs(10);

/// How long the last output may take to arrive when the run has ended by itself. A process that left its group may
/// hold the pipes open for ever.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How much is read at a time.
const CHUNK: usize = 64 << 10;

/// How a run ended, in words.
pub(super) fn told(ending: Ending) -> String {
    match ending {
        Ending::Exit(code) => format!("exit code {code}"),
        Ending::Signal(signal) => format!("signal {signal}"),
        Ending::TookTooLong => "it took too long and was ended".to_owned(),
        Ending::TookTooMuch => "it took too much host memory and was ended".to_owned(),
        Ending::Interrupted => "interrupted".to_owned(),
    }
}

/// What came of a run.
#[derive(Debug)]
pub(in crate::cli) struct FinishedRun {
    pub(in crate::cli) ending: Ending,
    pub(in crate::cli) output: RunOutput,
}

/// A command by its words, supervised.
pub(in crate::cli) fn command(words: &[OsString]) -> Result<Command, CliError> {
    let (program, arguments) = words.split_first().ok_or_else(|| wrong("it is empty"))?;
    supervised::command(program, arguments).map_err(|error| cannot_start(program, &error))
}

fn cannot_start(program: &OsStr, error: &io::Error) -> CliError {
    let script = program.display();
    let text = program.to_string_lossy();
    let instead = if Path::new(program).extension().is_some_and(|it| it == "py") {
        Some(format!("; write `python {script}`"))
    } else if text.contains('=') {
        Some(format!(
            "; write `env {script}` before a program for it to have this variable"
        ))
    } else {
        None
    };
    wrong(format!(
        "could not start `{script}`: {error}{}",
        instead.unwrap_or_default()
    ))
}

/// Runs a command to its end. What it says goes to stderr, unless it shall be quiet.
///
/// Nothing that it started is left when this returns: it would hold the device's memory.
pub(in crate::cli) fn run(
    mut command: Command,
    rules: &Rules,
    quiet: bool,
    interrupted: &Cancel,
) -> Result<FinishedRun, CliError> {
    let mut child = own_group(&mut command)
        // A process group in the background may not read from a terminal.
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| cannot_start(command.get_program(), &error))?;
    let output = Arc::new(Mutex::new(RunOutput::default()));
    let stdout = child.stdout.take().expect("stdout is piped");
    let stderr = child.stderr.take().expect("stderr is piped");
    let pumps = [
        pump(stdout, &rules.pattern, quiet, &output),
        pump(stderr, &rules.pattern, quiet, &output),
    ];
    let pid = child.id();
    let stopped = wait(&mut child, rules, interrupted);
    supervised::end(&mut child);
    let mut ending = SuspendAwareDeadline::of(ENDING);
    let status = reap(&mut child, &mut ending, POLL).with_context(|| {
        format!("process {pid} was killed and does not end; a driver may hold it")
    })?;
    let mut patience = SuspendAwareDeadline::of(if stopped.is_some() {
        ENDING
    } else {
        LAST_WORDS
    });
    while pumps.iter().any(|pump| !pump.is_finished()) && !patience.is_over() {
        patience.look(POLL, thread::sleep);
    }
    if pumps.iter().any(|pump| !pump.is_finished()) {
        output::warning(
            "a process that the command started holds its output open and may hold memory of the device",
        );
    }
    let output = output.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(FinishedRun {
        ending: stopped.unwrap_or_else(|| ended(status)),
        output: output.clone(),
    })
}

/// Waits until the run ends by itself, or says why it shall.
fn wait(child: &mut Child, rules: &Rules, interrupted: &Cancel) -> Option<Ending> {
    let began = Instant::now();
    for look in 0_u64.. {
        if has_ended(child) {
            return None;
        }
        if interrupted.is_cancelled() {
            return Some(Ending::Interrupted);
        }
        let holds_more = |most: Bytes| supervised::holds_more(child, most.0);
        if look.is_multiple_of(MEMORY_POLLS) && rules.host_memory.is_some_and(holds_more) {
            return Some(Ending::TookTooMuch);
        }
        if rules
            .patience
            .is_some_and(|patience| began.elapsed() >= patience)
        {
            return Some(Ending::TookTooLong);
        }
        thread::sleep(POLL);
    }
    None
}

fn ended(status: ExitStatus) -> Ending {
    match (status.code(), signal(status)) {
        (Some(code), _) => Ending::Exit(code),
        (None, Some(signal)) => Ending::Signal(signal),
        (None, None) => Ending::Exit(1),
    }
}

/// Reads a stream to its end: passes it on, and listens.
fn pump(
    mut stream: impl Read + Send + 'static,
    pattern: &Regex,
    quiet: bool,
    output: &Arc<Mutex<RunOutput>>,
) -> JoinHandle<()> {
    let pattern = pattern.clone();
    let output = Arc::clone(output);
    thread::spawn(move || {
        let mut lines = Lines::new(&pattern);
        let mut chunk = vec![0; CHUNK];
        let output = || output.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(length) => {
                    let bytes = &chunk[..length];
                    if !quiet {
                        // There is no stream left to report on when stderr is gone.
                        let _ = io::stderr().write_all(bytes);
                    }
                    lines.take(bytes, &mut output());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        lines.end(&mut output());
    })
}
