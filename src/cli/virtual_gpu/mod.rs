//! `batchfit run --on CARD -- CMD`: a user's own script on a GPU that is not there.

mod carried;
mod environment;
mod python;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Outcome;
use super::arguments::{DatabaseFlags, Run};
use super::error::CliError;
use super::interrupts;
use super::question::files::read_bytes;
use super::question::size;
use super::search;
use super::search::verdict::Rules;
use super::storage::with_database;
use crate::alloc::MemoryLimit;
use crate::cli::terminal::output;
use crate::jobs::record_run;
use crate::model::nicknames as cards;
use crate::probe::Verdict;
use crate::replay::{Bounds, ReplayOptions, ReplayReport, read, replay};
use crate::report;
use crate::units::Bytes;
use crate::virtual_gpu::{Answer, Ending, HISTORY, Listener, Oracle, SESSION, SOCKET, Session};
use carried::{NOT_CARRIED, is_carried, unpack};

/// Longest path of a socket: its address has room for 108 bytes, the last of which is zero.
const LONGEST_SOCKET: usize = 107;

/// What a script may take where this machine does not say what it has free.
const HOST_MEMORY: Bytes = Bytes::gib(16);

pub(super) fn run(arguments: &Run) -> Result<Outcome, CliError> {
    if !is_carried() {
        return Err(CliError::flag("run", NOT_CARRIED));
    }
    let session = session(arguments)?;
    let mut command = search::run::command(&arguments.command)?;
    let scratch = arguments.scratch.clone();
    let scratch = scratch.unwrap_or_else(std::env::temp_dir);
    let folder = unpack(arguments.scratch.as_deref()).map_err(CliError::unwritable(&scratch))?;
    let socket = folder.path().join(SOCKET);
    if socket.as_os_str().len() > LONGEST_SOCKET {
        let problem = format!(
            "{} is too long a path for a socket; a shorter one is needed",
            socket.display()
        );
        return Err(CliError::flag("--scratch", problem));
    }
    let broken = |error: std::io::Error| CliError::Broken(error.into());
    let listener = Listener::start(&socket, Oracle::of(session.card)).map_err(broken)?;
    fs::write(folder.path().join(SESSION), session.text(folder.path())).map_err(broken)?;
    let starts_ranks = environment::starts_ranks(&arguments.command);
    environment::set(&mut command, folder.path(), session.gpus, starts_ranks).map_err(broken)?;
    let rules = Rules::frameworks(arguments.timeout, session.host_memory)?;
    let interrupted = interrupts::watch().map_err(broken)?;
    let ran = search::run::run(command, &rules, arguments.quiet, &interrupted)?;
    let output = listener.finish();
    let ending = ran.ending;
    let words = arguments
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned());
    let answer = Answer::of(
        words.collect(),
        &session,
        &output,
        ending,
        ran.output.out_of_memory,
    );
    let Some(mut answer) = answer else {
        return Ok(without_gpu(arguments, &session, ending));
    };
    let step = look_back(&mut answer, arguments, folder.path())?;
    if let (Some(path), Some(error)) = (&arguments.launches, output.unwritten) {
        let error = std::io::Error::from_raw_os_error(error);
        return Err(CliError::unwritable(path)(error));
    }
    store(&arguments.kept, &answer, step.as_ref());
    output::answer(arguments.json, &answer, || {
        report::virtual_gpu(&answer, &output::style(arguments.verbose))
    })?;
    Ok(outcome(&answer, ending))
}

fn outcome(answer: &Answer, ending: Ending) -> Outcome {
    match answer.verdict {
        Verdict::Fits | Verdict::FitsWithRetries => Outcome::Answered,
        Verdict::OutOfMemory => Outcome::NothingFits,
        Verdict::Failed => of_command(ending),
    }
}

/// What the command itself told the shell.
fn of_command(ending: Ending) -> Outcome {
    match ending {
        Ending::Interrupted => Outcome::Interrupted,
        // As `timeout` of coreutils has it.
        Ending::TookTooLong => Outcome::Command(124),
        // As where the system ends it for that.
        Ending::TookTooMuch => Outcome::Command(137),
        Ending::Exit(code) => Outcome::Command(u8::try_from(code).unwrap_or(1)),
        Ending::Signal(signal) => Outcome::Command(u8::try_from(128 + signal).unwrap_or(1)),
    }
}

/// There is no answer where nothing asked for a GPU.
fn without_gpu(arguments: &Run, session: &Session, ending: Ending) -> Outcome {
    match ending {
        Ending::TookTooMuch => {
            output::error(&session.too_much_host_memory());
            of_command(ending)
        }
        Ending::Exit(0) => {
            let program = arguments
                .command
                .first()
                .map(|it| it.to_string_lossy())
                .unwrap_or_default();
            let why = python::why_not(&arguments.command);
            output::error(&format!("`{program}` ended without using the GPU{why}"));
            Outcome::DeviceTrouble
        }
        Ending::Interrupted | Ending::TookTooLong | Ending::Exit(_) | Ending::Signal(_) => {
            let how = match ending {
                Ending::Signal(signal) => format!("was ended by signal {signal}"),
                Ending::TookTooLong => "took too long".to_owned(),
                Ending::Interrupted => "was interrupted".to_owned(),
                _ => "failed".to_owned(),
            };
            output::error(&format!("the command {how} before it used the GPU"));
            of_command(ending)
        }
    }
}

fn session(arguments: &Run) -> Result<Session, CliError> {
    let on = cards::parse(&arguments.on).map_err(|invalid| CliError::named(&"--on", invalid))?;
    if let Some(note) = &on.note {
        output::note(note);
    }
    let limit = arguments
        .memory_limit
        .as_deref()
        .map(|text| memory_limit(text, on.card.total_memory));
    let started = environment::ranks(&arguments.command);
    let asked = arguments.gpus.or(on.count);
    let gpus = asked.or(started).unwrap_or(1);
    if asked.is_none() && gpus > 1 {
        let name = on.card.name;
        output::note(&format!(
            "the command starts {gpus} processes, so this is {gpus}x{name}; `--on 1x{name}` has one card for all"
        ));
    }
    if gpus > crate::virtual_gpu::MOST_GPUS {
        let problem = format!(
            "a machine of at most {} GPUs can be had, and {gpus} are asked for",
            crate::virtual_gpu::MOST_GPUS
        );
        return Err(CliError::flag("--gpus", problem));
    }
    Ok(Session {
        card: on.card,
        gpus,
        limit: limit.transpose()?,
        cuda: python::cuda_of(&arguments.command),
        steps: arguments.steps,
        host_memory: arguments.host_memory.map_or_else(available, Bytes),
        // Of a run to its end it would be the last part alone, and each allocation would take longer.
        keeps_history: arguments.steps > 0 || arguments.report.is_some() || arguments.svg.is_some(),
        launches: arguments.launches.as_deref().map(absolute).transpose()?,
    })
}

fn memory_limit(text: &str, total: Bytes) -> Result<MemoryLimit, CliError> {
    let limit = Value::String(size("--memory-limit", text));
    let limit = crate::model::parse_memory_limit(&limit, "");
    let limit = limit.map_err(|invalid| CliError::named(&"--memory-limit", invalid))?;
    match limit {
        MemoryLimit::Bytes(bytes) if bytes > total => {
            let problem = format!("{bytes} are more than the {total} that the card has");
            Err(CliError::flag("--memory-limit", problem))
        }
        limit => Ok(limit),
    }
}

/// The command may run elsewhere; files that it writes are meant from here.
fn absolute(path: &Path) -> Result<PathBuf, CliError> {
    let unwritable = CliError::unwritable(path);
    // So that a folder that does not exist is said before the run.
    fs::File::create(path).map_err(unwritable)?;
    std::path::absolute(path).map_err(unwritable)
}

/// Nine tenths of what this machine has free: a script that takes all of it would be ended by the system, without a word.
fn available() -> Bytes {
    let said = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map_or(HOST_MEMORY, |kib| Bytes((kib << 10) / 10 * 9))
}

/// Reads what the allocator's history says into the answer, and writes the files that were asked for.
fn look_back(
    answer: &mut Answer,
    arguments: &Run,
    folder: &Path,
) -> Result<Option<ReplayReport>, CliError> {
    let process = answer.main().map_or(0, |main| main.process);
    let history = folder.join(HISTORY);
    let snapshot = history.join(format!("snapshot-{process}.pickle"));
    let step = match replayed(&snapshot) {
        Ok(document) => {
            if let Some(path) = &arguments.svg {
                write(path, report::replay_svg(&document).as_bytes())?;
            }
            answer.findings = Some(document.findings.clone());
            Some(document)
        }
        Err(why) => {
            if arguments.report.is_some() || arguments.svg.is_some() {
                let said = format!("the memory snapshot of the run cannot be read: {why}");
                output::warning(&said);
            }
            None
        }
    };
    let Some(folder) = &arguments.report else {
        return Ok(step);
    };
    fs::create_dir_all(folder).map_err(CliError::unwritable(folder))?;
    for (from, to) in [
        (snapshot, "snapshot.pickle"),
        (
            history.join(format!("memory-summary-{process}.txt")),
            "memory-summary.txt",
        ),
    ] {
        // Missing where the process was ended, or memory did not run out.
        if is_file(&from) {
            let _ = fs::copy(from, folder.join(to));
        }
    }
    output::json_file(&folder.join("answer.json"), answer)?;
    write(
        &folder.join("answer.md"),
        report::virtual_gpu_markdown(answer).as_bytes(),
    )?;
    Ok(step)
}

/// Stores the answer. It is printed even where that cannot be done.
fn store(kept: &DatabaseFlags, answer: &Answer, step: Option<&ReplayReport>) {
    let stored = with_database(kept, async |db| record_run(db, answer, step).await);
    match stored.and_then(|stored| Ok(stored?)) {
        Ok(true) => {}
        Ok(false) => output::warning("the answer is not stored: it is too long"),
        Err(error) => output::warning(&format!("the answer is not stored: {error:#}")),
    }
}

fn replayed(snapshot: &Path) -> Result<ReplayReport, String> {
    if !is_file(snapshot) {
        return Err("the process that used most was ended before it could write one".to_owned());
    }
    let file = read_bytes(snapshot).map_err(|trouble| trouble.into_problem().detail)?;
    let recording = read(&file, Bounds::default()).map_err(|error| error.to_string())?;
    let asked = ReplayOptions {
        events: true,
        ..ReplayOptions::default()
    };
    let replay = replay(&recording, &asked).map_err(|error| error.to_string())?;
    Ok(replay.report)
}

/// Whether a file is there that can be read without waiting: a script may have put a pipe in its place, or a link to one.
fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}

fn write(path: &Path, contents: &[u8]) -> Result<(), CliError> {
    fs::write(path, contents).map_err(CliError::unwritable(path))
}

/// The file name of a command's program.
fn program_name(command: &[OsString]) -> String {
    let program = command.first().map(Path::new).and_then(Path::file_name);
    program.unwrap_or_default().to_string_lossy().into_owned()
}
