//! A user's own script on a GPU that is not there.
//!
//! The script runs on its own PyTorch, with one object loaded before everything else that stands for CUDA (`crates/vgpu`). This module is the
//! parent's side of it: [`Session`] says what card there is, [`Listener`] hears what happens and answers
//! what is asked, and [`Answer`] says what came of it. Who starts the script, and ends it, is `cli`; a service never does.

mod answer;
#[cfg_attr(not(unix), allow(dead_code, reason = "there is no listener"))]
mod events;
#[cfg(unix)]
mod listener;
#[cfg(not(unix))]
#[path = "no_listener.rs"]
mod listener;
mod oracle;
mod session;
mod summary;

pub use answer::{
    Answer, Assumption, AtPeak, Certainty, Convolutions, HostMemory, NamedCount, Peak, Phase,
    Shortage, UncomputedRead, Versions,
};
pub use events::{MOST_NAMES, RunEvents};
pub use listener::{LONGEST_LINE, Listener};
pub use oracle::Oracle;
pub use session::{HISTORY, MOST_GPUS, OBJECT, SESSION, SOCKET, Session};

/// How a script ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this code; after the steps that were asked for it is ended with 0.
    Exit(i32),
    /// By a signal.
    Signal(i32),
    /// It was ended, because it took too long.
    TookTooLong,
    /// It was ended, because it and all that it started took more of the host's memory than they might.
    TookTooMuch,
    /// It was ended on request.
    Interrupted,
}
