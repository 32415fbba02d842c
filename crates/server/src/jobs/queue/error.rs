//! Why a job was not done.

use std::time::Duration;

use crate::jobs::EngineError;
use crate::model::{Digest, RequestError};
use crate::store::StoreError;

/// Why a job was not done.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// So many fits are waiting, which is too many.
    #[error("{0} fits are waiting already")]
    QueueFull(i64),
    /// Too many fits of one key are waiting.
    #[error(
        "{waiting} fits of this key are waiting already: one key may fill a quarter of the queue, which holds {most}"
    )]
    ShareFull {
        /// How many.
        waiting: i64,
        /// How many of all keys may wait.
        most: u32,
    },
    /// Something else was asked under the same idempotency key.
    #[error(
        "something else was asked under the Idempotency-Key {key:?}, which got fit {fit}; send what was sent then, or a new \
         key"
    )]
    KeyReused {
        /// The key.
        key: String,
        /// What was asked first.
        fit: String,
    },
    /// As many searches are under way as may be: so many.
    #[error("{0} searches are under way already; cancel those that are not needed")]
    TooManySearches(u32),
    /// The device, named as in the request, has been busy for longer than a caller should wait.
    #[error("{0} is busy with another request")]
    DeviceBusy(String),
    /// The request names an upload that is not there.
    #[error(
        "there is no upload {digest}, or it has expired; send the file with PUT /v1/graphs/{digest}, or POST \
         /v1/graphs, and ask again"
    )]
    UploadUnknown {
        /// Where in the request, as a JSON pointer.
        pointer: String,
        /// What is named there.
        digest: Digest,
    },
    /// All uploads together take what they may, or those of a key.
    #[error(
        "this upload takes {} MiB compressed, and others take {} of the {} MiB that they may together (those of one key a quarter of all \
         room); GET /v1/graphs lists them, DELETE drops one, and those that nothing refers to expire", needed.div_ceil(1 << 20), taken.div_ceil(1 << 20), limit >> 20
    )]
    UploadsFull {
        /// What this one takes, in bytes.
        needed: usize,
        /// What the others do.
        taken: u64,
        /// What all of them may, or those of its key.
        limit: u64,
    },
    /// The engine has no answer.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine panicked, and said this.
    #[error("the engine panicked: {0}")]
    EnginePanicked(String),
    /// The system starts no thread for the work.
    #[error(
        "the system starts no more threads for this service, or has no memory for them; ask again later"
    )]
    NoThread,
    /// Other large requests are being read.
    #[error("other large requests are being read; ask again, or for less at a time")]
    TooLarge,
    /// The work was not done in so much time, and was stopped.
    #[error("the probe took longer than {} s and was stopped; ask for less at a time", .0.as_secs())]
    TookTooLong(Duration),
    /// Others changed what was just looked at.
    #[error("others changed the fit meanwhile; ask again")]
    Busy,
    /// An agent has another version: says which one is needed.
    #[error("{0}")]
    AgentVersion(String),
    /// Another agent has this name.
    #[error(
        "another agent called {name} is registered and was heard of {silent} s ago; give this one another name (`--name`), or wait \
         until that one is lost; of a lost one of another key, until an administrator forgets it"
    )]
    AgentNameTaken {
        /// The name.
        name: String,
        /// How long nothing was heard of the other, in seconds.
        silent: u64,
    },
    /// There are as many agents as may be.
    #[error(
        "there are as many agents as may be; forget those that are lost with DELETE /v1/agents/{{id}}"
    )]
    TooManyAgents,
    /// What an agent says is of an attempt that is not its own any more.
    #[error(
        "attempt {0} is not under way any more: its time limit or its lease has passed, or it was cancelled; what is said \
         of it is not stored"
    )]
    LeaseLost(String),
    /// There is nothing more to be said of an attempt.
    #[error("attempt {0} has ended, and its answer is stored")]
    JobEnded(String),
    /// The server is about to end.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The database has no answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<RequestError> for JobError {
    fn from(invalid: RequestError) -> JobError {
        JobError::Engine(invalid.into())
    }
}
