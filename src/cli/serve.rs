//! `batchfit serve`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Outcome;
use super::arguments::Serve;
use super::devices::engine;
use super::trouble::Trouble;
use crate::http;
use crate::jobs::{FitEngine, Limits};
use crate::store::{Db, Ownership};

/// How long the database may take to end its statements.
const FAREWELL: Duration = Duration::from_millis(200);

pub(super) fn run(arguments: &Serve) -> Result<Outcome, Trouble> {
    let engine = engine(arguments.patience.deadlines())?;
    let served = tokio::runtime::Runtime::new()
        .context("could not start the runtime")
        .and_then(|runtime| runtime.block_on(serve(arguments, engine)));
    served.map(|()| Outcome::Answered).map_err(Trouble::Broken)
}

async fn serve(arguments: &Serve, engine: FitEngine) -> anyhow::Result<()> {
    // Before the tables are touched: they are another server's, perhaps. Held until this function ends.
    let owned = Ownership::take(&arguments.database)?;
    let db = Db::open(&arguments.database).await?;
    let listener = TcpListener::bind(&arguments.listen)
        .await
        .with_context(|| format!("could not listen on {}", arguments.listen))?;
    let address = listener
        .local_addr()
        .context("could not read the address")?;
    info!("listening on http://{address}");
    let shutdown = CancellationToken::new();
    let mut terminated = signal(SignalKind::terminate()).context("could not wait for SIGTERM")?;
    let asked_to_end = async {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        shutdown.cancel();
        std::future::pending::<()>().await;
    };
    let serving = http::serve(
        listener,
        db.clone(),
        Arc::new(engine),
        Limits::default(),
        shutdown.clone(),
    );
    let served = tokio::select! {
        served = serving => served,
        () = asked_to_end => Ok(()),
    };
    // A statement that waits for a locked file does so for seconds; SQLite is made to be cut off.
    if tokio::time::timeout(FAREWELL, db.close()).await.is_err() {
        warn!("the database did not close in time");
    }
    drop(owned);
    Ok(served?)
}
