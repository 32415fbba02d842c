//! Why a file cannot be replayed.

use super::pickle::PickleError;
use crate::alloc::SettingsError;
use crate::limits::shorten_sentence;

/// Why a file cannot be replayed. Each says where, and what was expected there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordingError {
    /// It is neither of the two formats.
    #[error(
        "the file starts with {found}; expected a trace, which starts with `# {{`, or a memory snapshot, a pickle of protocol 2 to 5; either may be compressed with gzip"
    )]
    UnknownFormat {
        /// The first bytes.
        found: String,
    },
    /// It becomes too large when decompressed.
    #[error("the file is larger than {most_mib} MiB, decompressed")]
    TooLarge {
        /// What is read at most.
        most_mib: u64,
    },
    /// It has too many events.
    #[error("the recording has more than {most} events; expected at most that many")]
    TooLong {
        /// What is read at most.
        most: usize,
    },
    /// Its compression is damaged.
    #[error(
        "the gzip stream breaks after {read} decompressed bytes: {cause}; expected the whole file"
    )]
    Gzip {
        /// What could be read.
        read: usize,
        /// What is wrong.
        cause: String,
    },
    /// The pickle is damaged, or more than data.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// A line or a key holds something that cannot be.
    #[error("{place}: {problem}")]
    At {
        /// Which line or key.
        place: String,
        /// What is there, and what was expected.
        problem: String,
    },
    /// The state at the start of a late recording contradicts its events.
    #[error(
        "what was there before the recording started cannot be rebuilt from the final snapshot: {place}: {problem}"
    )]
    Rebuild {
        /// Which event.
        place: String,
        /// What contradicts it.
        problem: String,
    },
    /// The settings in force are not understood.
    #[error("{place}: {source}")]
    Settings {
        /// Which key.
        place: String,
        /// Why.
        source: SettingsError,
    },
}

impl RecordingError {
    pub(in crate::replay) fn at(
        place: impl Into<String>,
        problem: impl Into<String>,
    ) -> RecordingError {
        RecordingError::At {
            place: shorten_sentence(place),
            problem: shorten_sentence(problem),
        }
    }
}
