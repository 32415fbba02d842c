//! The running service: a listener, the jobs behind it, and their end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::jobs::{Engine, JobError, Jobs, Limits};
use crate::store::Db;

/// How long connections may take to end. Together with the jobs' own patience, which runs beside it,
/// the service ends within a second.
const GRACE: Duration = Duration::from_millis(700);

/// Why the service ended before it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The jobs could not be started.
    #[error("could not take up stored fits")]
    Jobs {
        /// Why.
        #[from]
        source: JobError,
    },
    /// The listener failed.
    #[error("could not accept connections")]
    Accept {
        /// Why.
        source: io::Error,
    },
}

/// Serves until `shutdown` is cancelled, and then ends within a second: running fits go back to the
/// queue, and the next server on the same database takes them up.
pub async fn serve(
    listener: TcpListener,
    db: Db,
    engine: Arc<dyn Engine>,
    limits: Limits,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let jobs = Jobs::start(db.clone(), engine, limits, shutdown.clone()).await?;
    let serving = axum::serve(listener, super::router(jobs.clone()))
        .with_graceful_shutdown(shutdown.clone().cancelled_owned())
        .into_future();
    let patience_ends = async {
        shutdown.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    let served = tokio::select! {
        served = serving => served.map_err(|source| ServeError::Accept { source }),
        () = patience_ends => Ok(()),
    };
    // Also when the listener failed: nothing may be left running.
    shutdown.cancel();
    if tokio::time::timeout(GRACE, jobs.ended()).await.is_err() {
        tracing::warn!("some fits did not stop in time; the next server takes them up");
    }
    served
}
