//! What stands between a command and its answer.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use crate::http::{Code, Problem};
use crate::jobs::{EngineError, JobError};
use crate::model::RequestError;
use crate::replay::RecordingError;

/// 128 and SIGPIPE.
const READER_GONE: u8 = 141;

/// Why a command has no answer.
#[derive(Debug)]
pub(super) enum CliError {
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
    /// What the service would say is wrong, in a sentence.
    Said(Code, String),
    /// There is no answer to the request.
    Engine(EngineError),
    /// Stdout was closed: nothing is said, and the exit code is that of programs that SIGPIPE ends.
    ReaderGone,
    /// Anything that is neither the user's fault nor a device's.
    Broken(anyhow::Error),
}

impl From<anyhow::Error> for CliError {
    fn from(error: anyhow::Error) -> CliError {
        CliError::Broken(error)
    }
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

    /// What is wrong with a flag or a file, in a sentence.
    pub(super) fn flag(name: &(impl ToString + ?Sized), problem: impl Into<String>) -> CliError {
        CliError::named(&name.to_string(), RequestError::at("", problem))
    }

    /// All that is wrong, of which there is something.
    pub(super) fn all(mut all: Vec<CliError>) -> CliError {
        match all.len() {
            1 => all.swap_remove(0),
            _ => CliError::Several(all),
        }
    }

    /// A file, or a value of a flag, that cannot be used.
    pub(super) fn refused(problem: String) -> CliError {
        CliError::Said(Code::RequestInvalid, problem)
    }

    /// What went wrong with reading this file.
    pub(super) fn unreadable(path: &Path) -> impl Fn(io::Error) -> CliError + Copy {
        move |error| CliError::refused(format!("could not read {}: {error}", path.display()))
    }

    /// What went wrong with writing this file.
    pub(super) fn unwritable(path: &Path) -> impl Fn(io::Error) -> CliError + Copy {
        move |error| CliError::refused(format!("could not write {}: {error}", path.display()))
    }

    /// What is wrong with the recording in this file: it is damaged, or contradicts itself.
    pub(super) fn recording(path: &Path) -> impl Fn(RecordingError) -> CliError {
        move |error| {
            CliError::Said(
                Code::RecordingInvalid,
                format!("{}: {error}", path.display()),
            )
        }
    }

    /// The trouble of a failed write to stdout: a full disk, perhaps.
    pub(super) fn writing(error: io::Error) -> CliError {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CliError::ReaderGone,
            _ => CliError::Broken(
                anyhow::Error::new(error).context("the answer could not be written to stdout"),
            ),
        }
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        match self {
            CliError::Invalid(_)
            | CliError::Named { .. }
            | CliError::Several(_)
            | CliError::Said(Code::RequestInvalid | Code::RecordingInvalid, _)
            | CliError::Engine(EngineError::Invalid(_)) => ExitCode::from(2),
            CliError::Said(Code::DeviceUnavailable, _)
            | CliError::Engine(
                EngineError::DeviceUnavailable { .. }
                | EngineError::DeviceBusy { .. }
                | EngineError::DeviceFailed { .. },
            ) => ExitCode::from(4),
            CliError::ReaderGone => ExitCode::from(READER_GONE),
            CliError::Engine(
                EngineError::Cancelled | EngineError::Died { .. } | EngineError::TimedOut { .. },
            )
            | CliError::Said(..)
            | CliError::Broken(_) => ExitCode::FAILURE,
        }
    }

    /// The same problem that the service would answer with.
    pub(super) fn into_problem(self) -> Problem {
        match self {
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
            CliError::Said(code, detail) => Problem::new(code, detail),
            CliError::Engine(error) => Problem::from(JobError::Engine(error)),
            CliError::ReaderGone => Problem::new(
                Code::Internal,
                "the output was closed before the answer was written",
            ),
            // Who runs the command reads the log of the service: stderr.
            CliError::Broken(error) => Problem::new(Code::Internal, format!("{error:#}")),
        }
    }
}
