//! Whether the database accepts writes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use crate::store::{Db, Fault, Time};

/// How long a finding holds: however often it is asked for, the disk has one write a second from it.
const FRESH: Duration = Duration::from_secs(1);

/// How long a health check waits. A write takes milliseconds; one that takes longer is as good as none to an
/// orchestrator that asks every few seconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why fits cannot be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReadyReason {
    /// The server is about to end.
    Ending,
    /// So many fits have ended and could not be stored yet.
    Unstored(u32),
    /// The database takes nothing.
    Database(Fault),
    /// It has not said anything for a while.
    Silent,
}

/// What was found, and when.
type Found = (Instant, Result<(), NotReadyReason>);

/// What was found last, and when.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    last: Arc<Mutex<Option<Found>>>,
}

impl Readiness {
    /// Writes a row with this moment, unless that was done a moment ago. One write is under way at a time: where the file is
    /// locked, each takes one of the few connections for seconds.
    pub(super) async fn check(
        &self,
        db: &Db,
        noted: Time,
        tasks: &TaskTracker,
    ) -> Result<(), NotReadyReason> {
        let Ok(mut last) = timeout(PATIENCE, Arc::clone(&self.last).lock_owned()).await else {
            return Err(NotReadyReason::Silent);
        };
        if let Some((when, found)) = *last
            && when.elapsed() < FRESH
        {
            return found;
        }
        let db = db.clone();
        let written = tasks.spawn(async move {
            let written = db.write_readiness(noted).await;
            if let Err(error) = &written {
                tracing::error!(
                    error = error as &dyn std::error::Error,
                    "not ready: {error}"
                );
            }
            let found = written.map_err(|error| NotReadyReason::Database(error.fault()));
            *last = Some((Instant::now(), found));
            found
        });
        match timeout(PATIENCE, written).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) | Err(_) => Err(NotReadyReason::Silent),
        }
    }
}
