//! The running service: a listener, the jobs behind it, and their end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::access::AccessPolicy;
use super::connections::{self, ConnectionLimits};
use super::hosts::Hosts;
use super::keys::{KeyLimits, Keys};
use crate::http::gated;
use crate::jobs::{Engine, JobError, Jobs, Limits};
use crate::store::Db;

/// How long connections and jobs may take to end after the last words, side by side. The service ends within a second; the rest of
/// it is for the database and the process.
const GRACE: Duration = Duration::from_millis(400);

/// Where requests come in, and from whom.
#[derive(Debug)]
pub struct ListenConfig {
    /// The socket.
    pub listener: TcpListener,
    /// The names under which the service answers, beside the address of the listener.
    pub hosts: Hosts,
    /// What keys may ask, where they are needed; without, any client may ask.
    pub keys: Option<KeyLimits>,
    /// How many connections there may be, and how patient the service is with each.
    pub limits: ConnectionLimits,
}

impl From<TcpListener> for ListenConfig {
    fn from(listener: TcpListener) -> ListenConfig {
        ListenConfig {
            listener,
            hosts: Hosts::default(),
            keys: None,
            limits: ConnectionLimits::default(),
        }
    }
}

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
    entrance: impl Into<ListenConfig>,
    db: Db,
    engine: Arc<dyn Engine>,
    limits: Limits,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let entrance = entrance.into();
    let address = entrance.listener.local_addr();
    let address = address.map_err(|source| ServeError::Accept { source })?;
    crate::http::openapi::prepare();
    crate::http::docs::prepare();
    crate::http::page::prepare();
    // Or the first to ask for a list would wait for it.
    if let Err(error) = db.read_recommendations().await {
        tracing::error!(error = &error as &dyn std::error::Error, "{error}");
    }
    let lanes = limits.simulated_in_parallel;
    let keys = entrance.keys;
    let keys = keys.map(|limits| Keys::new(db.clone(), limits, lanes));
    let jobs = Jobs::start(db, engine, limits, shutdown.clone()).await?;
    let hosts = entrance.hosts.listening_on(address.ip());
    let gate = AccessPolicy::new(hosts, keys, shutdown.clone(), entrance.limits);
    let router = gated(jobs.clone(), gate, entrance.limits.waiters());
    let ended = CancellationToken::new();
    // Connections that are left when this returns are closed.
    let _close = ended.clone().drop_guard();
    let answering = connections::answer(
        entrance.listener,
        router,
        entrance.limits,
        shutdown.clone(),
        ended.clone(),
    );
    let all_ended = async {
        answering.await;
        jobs.ended().await;
    };
    let last_words = entrance.limits.last_words;
    let patience_ends = async {
        shutdown.cancelled().await;
        tokio::time::sleep(last_words).await;
        // From when they were said, however late that was.
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        () = all_ended => {}
        () = patience_ends => {
            tracing::warn!("some work did not stop in time; the next server takes it up");
        }
    }
    Ok(())
}
