//! What stands between a command and its answer.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::alloc::SettingsError;
use crate::http::{Code, Problem};
use crate::jobs::{EngineError, JobError};
use crate::model::RequestError;
use crate::replay::{FractionOfUnknown, RecordingError};

/// 128 and SIGPIPE.
const READER_GONE: u8 = 141;

/// Why a command has no answer.
#[derive(Debug)]
pub(super) enum CliError {
    /// A file cannot be read.
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file cannot be written.
    Unwritable {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The request is wrong.
    Invalid(RequestError),
    /// A flag or a file is wrong, which the person who gave it knows by its name.
    Named {
        /// The flag, or the file.
        name: String,
        /// Where in the file, as a JSON pointer.
        at: String,
        /// What is wrong.
        invalid: RequestError,
    },
    /// Several flags or files are wrong.
    Several(Vec<CliError>),
    /// A recording is damaged, or contradicts itself.
    Recording {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: RecordingError,
    },
    /// The allocator settings of a replay are wrong.
    Allocator(SettingsError),
    /// A limit is a fraction of an unknown total.
    Fraction(FractionOfUnknown),
    /// There is no answer to the request.
    Engine(EngineError),
    /// An agent has no card to offer: says what is missing.
    NoCard(String),
    /// The answer cannot be written to stdout: a full disk, perhaps.
    Unwritten(io::Error),
    /// Stdout was closed: nothing is said, and the exit code is that of programs that SIGPIPE ends.
    ReaderGone,
    /// Anything that is neither the user's fault nor a device's.
    Broken(anyhow::Error),
}

impl CliError {
    /// What is wrong with a flag or a file, as a whole.
    pub(super) fn named(name: &dyn ToString, invalid: RequestError) -> CliError {
        CliError::Named {
            name: name.to_string(),
            at: String::new(),
            invalid,
        }
    }

    /// What is wrong with a flag.
    pub(super) fn flag(flag: &str, problem: impl Into<String>) -> CliError {
        CliError::named(&flag, RequestError::at("", problem))
    }

    /// All that is wrong, of which there is something.
    pub(super) fn all(mut all: Vec<CliError>) -> CliError {
        match all.len() {
            1 => all.swap_remove(0),
            _ => CliError::Several(all),
        }
    }

    /// What went wrong with reading this file.
    pub(super) fn unreadable(path: &Path) -> impl Fn(io::Error) -> CliError + Copy {
        move |source| CliError::Unreadable {
            path: path.to_owned(),
            source,
        }
    }

    /// What went wrong with writing this file.
    pub(super) fn unwritable(path: &Path) -> impl Fn(io::Error) -> CliError + Copy {
        move |source| CliError::Unwritable {
            path: path.to_owned(),
            source,
        }
    }

    /// The trouble of a failed write to stdout.
    pub(super) fn writing(error: io::Error) -> CliError {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CliError::ReaderGone,
            _ => CliError::Unwritten(error),
        }
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        match self {
            CliError::Unreadable { .. }
            | CliError::Unwritable { .. }
            | CliError::Invalid(_)
            | CliError::Named { .. }
            | CliError::Several(_)
            | CliError::Recording { .. }
            | CliError::Allocator(_)
            | CliError::Fraction(_)
            | CliError::Engine(EngineError::Invalid(_)) => ExitCode::from(2),
            CliError::NoCard(_)
            | CliError::Engine(
                EngineError::DeviceUnavailable { .. }
                | EngineError::DeviceBusy { .. }
                | EngineError::DeviceFailed { .. },
            ) => ExitCode::from(4),
            CliError::ReaderGone => ExitCode::from(READER_GONE),
            CliError::Engine(
                EngineError::Cancelled | EngineError::Died { .. } | EngineError::TimedOut { .. },
            )
            | CliError::Unwritten(_)
            | CliError::Broken(_) => ExitCode::FAILURE,
        }
    }

    /// The same problem that the service would answer with.
    pub(super) fn into_problem(self) -> Problem {
        match self {
            CliError::Unreadable { path, source } => Problem::new(
                Code::RequestInvalid,
                format!("could not read {}: {source}", path.display()),
            ),
            CliError::Unwritable { path, source } => Problem::new(
                Code::RequestInvalid,
                format!("could not write {}: {source}", path.display()),
            ),
            CliError::Invalid(invalid) => Problem::from(invalid),
            CliError::Named { name, at, invalid } => {
                let pointer = invalid.pointer.clone();
                let clause = RequestError {
                    pointer: at,
                    ..invalid.clone()
                };
                Problem {
                    detail: format!("{name}: {clause}"),
                    pointer: Some(pointer),
                    ..Problem::from(invalid)
                }
            }
            CliError::Several(all) => {
                let all = all.into_iter().map(CliError::into_problem);
                let together = |first: Problem, next: Problem| Problem {
                    detail: format!("{}\n{}", first.detail, next.detail),
                    ..first
                };
                all.reduce(together).expect("there are several")
            }
            CliError::Recording { path, source } => Problem::new(
                Code::RecordingInvalid,
                format!("{}: {source}", path.display()),
            ),
            CliError::Allocator(error) => {
                Problem::new(Code::RequestInvalid, format!("--allocator: {error}"))
            }
            CliError::Fraction(error) => {
                Problem::new(Code::RequestInvalid, format!("--memory-limit: {error}"))
            }
            CliError::Engine(error) => Problem::from(JobError::Engine(error)),
            CliError::NoCard(missing) => Problem::new(
                Code::DeviceUnavailable,
                format!(
                    "no GPU can be offered: {missing}; `--simulate h100` offers a simulated card, to try agents without a GPU"
                ),
            ),
            CliError::Unwritten(error) => Problem::new(
                Code::Internal,
                format!("the answer could not be written to stdout: {error}"),
            ),
            CliError::ReaderGone => Problem::new(
                Code::Internal,
                "the output was closed before the answer was written",
            ),
            // Who runs the command reads the log of the service: stderr.
            CliError::Broken(error) => Problem::new(Code::Internal, format!("{error:#}")),
        }
    }
}
