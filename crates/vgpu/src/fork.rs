//! Forks of this process.
//!
//! Another thread may hold a lock at that moment, and nothing in the fork would ever give it back. So a fork talks over a connection of its own
//! ([`crate::channel`]), and does without a device that its parent used: as under CUDA, each call of the runtime is an error there.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::libc;

static IS_FORK: AtomicBool = AtomicBool::new(false);
static IS_USED: AtomicBool = AtomicBool::new(false);
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Makes sure that forks of this process will know what they are.
pub fn watch() {
    static ONCE: Once = Once::new();
    // SAFETY: a function that may run in a fork: it only sets flags.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_fork));
    });
}

unsafe extern "C" fn in_fork() {
    IS_FORK.store(true, Ordering::Relaxed);
    IS_LOST.fetch_or(IS_USED.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// A device is used from now on.
pub fn use_device() {
    watch();
    IS_USED.store(true, Ordering::Relaxed);
}

/// Whether this process is a fork of one that was watched.
pub fn is_fork() -> bool {
    IS_FORK.load(Ordering::Relaxed)
}

/// Whether it is a fork of one that used a device.
pub fn is_device_lost() -> bool {
    IS_LOST.load(Ordering::Relaxed)
}
