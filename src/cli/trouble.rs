//! What stands between a command and its answer.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::alloc::SettingsError;
use crate::http::{Code, Problem};
use crate::jobs::{EngineError, JobError};
use crate::model::Invalid;
use crate::replay::{FractionOfUnknown, RecordingError};

/// 128 and SIGPIPE.
const READER_GONE: u8 = 141;

/// Why a command has no answer.
#[derive(Debug)]
pub(super) enum Trouble {
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
    Invalid(Invalid),
    /// A flag or a file is wrong, which the person who gave it knows by its name.
    Named {
        /// The flag, or the file.
        name: String,
        /// Where in the file, as a JSON pointer.
        at: String,
        /// What is wrong.
        invalid: Invalid,
    },
    /// A recording is damaged, or contradicts itself.
    Recording {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: RecordingError,
    },
    /// The allocator settings of a replay are wrong.
    Allocator(SettingsError),
    /// A limit is a fraction of what nobody knows.
    Fraction(FractionOfUnknown),
    /// There is no answer to the request.
    Engine(EngineError),
    /// An agent has no card to offer.
    NoCard {
        /// What is missing.
        missing: String,
    },
    /// The answer cannot be written to stdout: a full disk, perhaps.
    Unwritten(io::Error),
    /// Whoever read stdout has stopped reading: nothing is said, and the exit code is that of programs that SIGPIPE ends.
    ReaderGone,
    /// Anything that is neither the user's fault nor a device's.
    Broken(anyhow::Error),
}

impl Trouble {
    /// What is wrong with a flag or a file, as a whole.
    pub(super) fn named(name: &dyn ToString, invalid: Invalid) -> Trouble {
        Trouble::Named {
            name: name.to_string(),
            at: String::new(),
            invalid,
        }
    }

    /// What is wrong with a flag.
    pub(super) fn flag(flag: &str, problem: impl Into<String>) -> Trouble {
        Trouble::named(&flag, Invalid::at("", problem))
    }

    /// The trouble of a failed write to stdout.
    pub(super) fn writing(error: io::Error) -> Trouble {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Trouble::ReaderGone,
            _ => Trouble::Unwritten(error),
        }
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        match self {
            Trouble::Unreadable { .. }
            | Trouble::Unwritable { .. }
            | Trouble::Invalid(_)
            | Trouble::Named { .. }
            | Trouble::Recording { .. }
            | Trouble::Allocator(_)
            | Trouble::Fraction(_)
            | Trouble::Engine(EngineError::Invalid(_)) => ExitCode::from(2),
            Trouble::NoCard { .. }
            | Trouble::Engine(
                EngineError::DeviceUnavailable { .. }
                | EngineError::DeviceBusy { .. }
                | EngineError::DeviceFailed { .. },
            ) => ExitCode::from(4),
            Trouble::ReaderGone => ExitCode::from(READER_GONE),
            Trouble::Engine(
                EngineError::Cancelled | EngineError::Died { .. } | EngineError::TimedOut { .. },
            )
            | Trouble::Unwritten(_)
            | Trouble::Broken(_) => ExitCode::FAILURE,
        }
    }

    /// The same problem that the service would answer with.
    pub(super) fn into_problem(self) -> Problem {
        match self {
            Trouble::Unreadable { path, source } => Problem::new(
                Code::RequestInvalid,
                format!("could not read {}: {source}", path.display()),
            ),
            Trouble::Unwritable { path, source } => Problem::new(
                Code::RequestInvalid,
                format!("could not write {}: {source}", path.display()),
            ),
            Trouble::Invalid(invalid) => Problem::from(invalid),
            Trouble::Named { name, at, invalid } => {
                let pointer = invalid.pointer.clone();
                let clause = Invalid {
                    pointer: at,
                    ..invalid.clone()
                };
                Problem {
                    detail: format!("{name}: {clause}"),
                    pointer: Some(pointer),
                    ..Problem::from(invalid)
                }
            }
            Trouble::Recording { path, source } => Problem::new(
                Code::RecordingInvalid,
                format!("{}: {source}", path.display()),
            ),
            Trouble::Allocator(error) => {
                Problem::new(Code::RequestInvalid, format!("--allocator: {error}"))
            }
            Trouble::Fraction(error) => {
                Problem::new(Code::RequestInvalid, format!("--memory-limit: {error}"))
            }
            Trouble::Engine(error) => Problem::from(JobError::Engine(error)),
            Trouble::NoCard { missing } => Problem::new(
                Code::DeviceUnavailable,
                format!(
                    "no GPU can be offered: {missing}; `--simulate h100` offers a simulated card, to try agents without a GPU"
                ),
            ),
            Trouble::Unwritten(error) => Problem::new(
                Code::Internal,
                format!("the answer could not be written to stdout: {error}"),
            ),
            Trouble::ReaderGone => Problem::new(Code::Internal, "nobody reads the answer"),
            // Who runs the command reads the log of the service: stderr.
            Trouble::Broken(error) => Problem::new(Code::Internal, format!("{error:#}")),
        }
    }
}
