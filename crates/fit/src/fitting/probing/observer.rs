//! Who looks on while a fit runs.

use std::cell::Cell;

use crate::limits::Cancel;
use crate::worker::Caller;
use crate::{EngineError, Progress, Work};

/// Reports progress, and notices when the work is cancelled.
pub(in crate::fitting) struct Observer<'a> {
    work: Work<'a>,
    probes: Cell<u32>,
    batch: Cell<u64>,
}

impl<'a> Observer<'a> {
    pub(in crate::fitting) fn new(work: &Work<'a>) -> Observer<'a> {
        Observer {
            work: *work,
            probes: Cell::new(0),
            batch: Cell::new(0),
        }
    }

    /// Announces a probe of `batch`, unless the work is cancelled.
    pub(in crate::fitting) fn before(&self, batch: u64, note: &str) -> Result<(), EngineError> {
        if self.work.cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        self.batch.set(batch);
        self.tell(note);
        Ok(())
    }

    /// Tells what goes on.
    pub(in crate::fitting) fn tell(&self, note: &str) {
        (self.work.progress)(Progress {
            probes_done: self.probes.get(),
            batch: self.batch.get(),
            note: note.to_owned(),
        });
    }

    /// Becomes true when the work is cancelled.
    pub(in crate::fitting) fn cancel(&self) -> &'a Cancel {
        self.work.cancel
    }

    /// Counts a finished probe.
    pub(in crate::fitting) fn after(&self) {
        self.probes.set(self.probes.get() + 1);
    }

    /// Calls a worker for the caller of this work.
    pub(in crate::fitting) fn call<T>(&self, work: impl FnOnce(Caller<'_>) -> T) -> T {
        work(Caller {
            cancel: self.work.cancel,
            notice: &|note| self.tell(note),
        })
    }
}
