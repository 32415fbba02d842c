//! `batchfit serve`.

use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::Outcome;
use super::arguments::Serve;
use super::devices::engine;
use super::trouble::Trouble;
use crate::http;
use crate::jobs::{FitEngine, Limits};
use crate::store::Db;

pub(super) fn run(arguments: &Serve) -> Result<Outcome, Trouble> {
    let engine = engine(arguments.patience.deadlines())?;
    let served = tokio::runtime::Runtime::new()
        .context("could not start the runtime")
        .and_then(|runtime| runtime.block_on(serve(arguments, engine)));
    served.map(|()| Outcome::Answered).map_err(Trouble::Broken)
}

async fn serve(arguments: &Serve, engine: FitEngine) -> anyhow::Result<()> {
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
    db.close().await;
    Ok(served?)
}
