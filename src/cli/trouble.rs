//! What stands between a command and its answer.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::jobs::EngineError;
use crate::model::Invalid;

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// A file cannot be read.
    #[error("could not read {}: {source}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The request is wrong.
    #[error("{0}")]
    Invalid(Invalid),
    /// There is no answer to the request.
    #[error("{0}")]
    Engine(EngineError),
    /// Whoever read stdout has stopped reading: not an error.
    #[error("nobody reads the answer")]
    ReaderGone,
    /// Anything that is neither the user's fault nor a device's.
    #[error("{0:#}")]
    Broken(anyhow::Error),
}

impl Trouble {
    /// The trouble of a failed write to stdout.
    pub(super) fn writing(error: io::Error) -> Trouble {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Trouble::ReaderGone,
            _ => Trouble::Broken(anyhow::Error::new(error).context("could not write the answer")),
        }
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        match self {
            Trouble::Unreadable { .. }
            | Trouble::Invalid(_)
            | Trouble::Engine(EngineError::Invalid(_)) => ExitCode::from(2),
            Trouble::Engine(
                EngineError::DeviceUnavailable { .. } | EngineError::DeviceFailed { .. },
            ) => ExitCode::from(4),
            Trouble::ReaderGone => ExitCode::SUCCESS,
            Trouble::Engine(EngineError::Cancelled) | Trouble::Broken(_) => ExitCode::FAILURE,
        }
    }

    /// Writes the trouble to stderr: a problem document with `--json`, else a sentence.
    pub(super) fn tell(&self, _json: bool) {
        eprintln!("error: {self}");
    }
}
