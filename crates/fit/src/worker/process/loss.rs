//! How a worker can be lost, in words.

use std::borrow::Cow;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;
use std::{fmt, io};

use crate::worker::protocol::Refusal;

/// Why the parent has no answer.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// There is no child at all.
    #[error("could not start the {who} {}", program.display())]
    Spawn {
        /// What the child is called.
        who: Cow<'static, str>,
        /// What was executed.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The child is gone, and so is the one that took its place.
    #[error("the {who} {loss} while {activity}{}", Stderr(stderr))]
    Lost {
        /// What the child is called.
        who: Cow<'static, str>,
        /// What it was asked to do.
        activity: Activity,
        /// What happened to it.
        loss: Loss,
        /// The last lines it wrote to its stderr.
        stderr: Vec<String>,
    },
    /// The child answered that it cannot.
    #[error("{detail}")]
    Refused {
        /// What kind of trouble.
        refusal: Refusal,
        /// What happened where.
        detail: String,
    },
    /// It was other processes' turn on the GPU all the time.
    #[error("{detail}, and did for {:.0} s", waited.as_secs_f64())]
    Busy {
        /// Whose.
        detail: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// It was asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// What a child was asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Say `hello`.
    Starting,
    /// List GPUs.
    Listing,
    /// Open the device and read the request.
    Opening,
    /// Find the other ranks.
    Joining,
    /// Run this batch.
    Probing(u64),
    /// Record this batch.
    Recording(u64),
    /// Say what cuDNN says of a card.
    AskingCudnn,
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Activity::Starting => f.write_str("starting"),
            Activity::Listing => f.write_str("listing GPUs"),
            Activity::Opening => f.write_str("opening the device"),
            Activity::Joining => f.write_str("finding the other ranks"),
            Activity::Probing(batch) => write!(f, "probing batch {batch}"),
            Activity::Recording(batch) => write!(f, "recording batch {batch}"),
            Activity::AskingCudnn => f.write_str("asking cuDNN"),
        }
    }
}

/// What happened to a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loss {
    /// It ended by itself, or something else ended it.
    Exited(ExitStatus),
    /// It closed its stdout and went on running, so it was killed.
    Mute,
    /// It ended in the middle of a line.
    HalfLine(ExitStatus),
    /// It took too long and was killed.
    TimedOut(Duration),
    /// It wrote something that is no answer, and was killed.
    Garbage(String),
    /// It wrote a line longer than this many bytes, and was killed.
    LineTooLong(usize),
    /// It answered that it cannot use its device any more.
    GaveUp(String),
    /// It answered another question, and was killed.
    OutOfTurn(String),
    /// It speaks the first version of the protocol instead of the second.
    Version(u32, u32),
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Exited(status) => write!(f, "ended ({status})"),
            Loss::Mute => f.write_str("closed its output"),
            Loss::HalfLine(status) => write!(f, "ended in the middle of a line ({status})"),
            Loss::TimedOut(after) => {
                write!(f, "did not answer within {:.1} s", after.as_secs_f64())
            }
            Loss::Garbage(line) => write!(f, "wrote `{line}`, which is no message,"),
            Loss::LineTooLong(longest) => {
                write!(f, "wrote a line of more than {} MiB", longest >> 20)
            }
            Loss::GaveUp(why) => write!(f, "gave up ({why})"),
            Loss::OutOfTurn(line) => write!(f, "answered `{line}` out of turn"),
            Loss::Version(theirs, ours) => write!(
                f,
                "speaks version {theirs} of the protocol instead of {ours}"
            ),
        }
    }
}

struct Stderr<'a>(&'a [String]);

impl fmt::Display for Stderr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, "; its last words: {}", self.0.join(" / "))
    }
}
