//! Who looks on while a fit runs.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::worker::Caller;
use crate::{EngineError, Progress};

/// Tells progress, and notices when somebody asks to stop.
pub(in crate::fitting) struct Observer<'a> {
    progress: &'a dyn Fn(Progress),
    cancel: &'a Arc<AtomicBool>,
    probes: Cell<u32>,
    batch: Cell<u64>,
}

impl<'a> Observer<'a> {
    pub(in crate::fitting) fn new(
        progress: &'a dyn Fn(Progress),
        cancel: &'a Arc<AtomicBool>,
    ) -> Observer<'a> {
        Observer {
            progress,
            cancel,
            probes: Cell::new(0),
            batch: Cell::new(0),
        }
    }

    /// Announces a probe of `batch`, unless there is nobody left to answer.
    pub(in crate::fitting) fn before(&self, batch: u64, note: &str) -> Result<(), EngineError> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(EngineError::Cancelled);
        }
        self.batch.set(batch);
        self.tell(note);
        Ok(())
    }

    /// Tells what goes on.
    pub(in crate::fitting) fn tell(&self, note: &str) {
        (self.progress)(Progress {
            probes_done: self.probes.get(),
            batch: self.batch.get(),
            note: note.to_owned(),
        });
    }

    /// Becomes true when somebody asks to stop.
    pub(in crate::fitting) fn cancel(&self) -> &'a Arc<AtomicBool> {
        self.cancel
    }

    /// Counts a finished probe.
    pub(in crate::fitting) fn after(&self) {
        self.probes.set(self.probes.get() + 1);
    }

    /// Calls a worker on behalf of whoever looks on.
    pub(in crate::fitting) fn call<T>(&self, work: impl FnOnce(Caller<'_>) -> T) -> T {
        work(Caller {
            cancel: self.cancel,
            notice: &|note| self.tell(note),
        })
    }
}
