//! What operating systems do differently. On Unix these are the system's calls, on Windows the nearest that the standard library has.
//!
//! Virtual GPUs and supervised processes need Linux, and are left out elsewhere where they are: `batchfit run` says so.

mod log;
pub use log::log_to_stderr;

#[cfg(unix)]
mod unix;
#[cfg(unix)]
pub use unix::*;

#[cfg(windows)]
mod windows;
#[cfg(windows)]
pub use windows::*;
