//! Who looks on while a fit runs.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::jobs::{EngineError, Progress};

/// Tells progress, and notices when somebody asks to stop.
pub(super) struct Watch<'a> {
    progress: &'a dyn Fn(Progress),
    cancel: &'a AtomicBool,
    probes: Cell<u32>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(progress: &'a dyn Fn(Progress), cancel: &'a AtomicBool) -> Watch<'a> {
        Watch {
            progress,
            cancel,
            probes: Cell::new(0),
        }
    }

    /// Announces a probe of `batch`, unless there is nobody left to answer.
    pub(super) fn before(&self, batch: u64, note: &str) -> Result<(), EngineError> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(EngineError::Cancelled);
        }
        (self.progress)(Progress {
            probes_done: self.probes.get(),
            batch,
            note: note.to_owned(),
        });
        Ok(())
    }

    /// Counts a finished probe.
    pub(super) fn after(&self) {
        self.probes.set(self.probes.get() + 1);
    }
}
