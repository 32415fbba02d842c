//! `batchfit serve`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::cli::arguments::Serve;
use crate::cli::error::CliError;
use crate::cli::interrupts::Signals;
use crate::cli::{Outcome, engine, recorder_of_graphs, storage};
use crate::http::{self, ConnectionLimits, HostName, Hosts, ListenConfig};
use crate::jobs::{FitEngine, Limits};
use crate::store::{Db, Ownership};

/// How long an orderly end may take, whatever the database or a thread is waiting for.
const LONGEST_END: Duration = Duration::from_millis(850);

/// How long the database may take to close. Nothing is lost when it does not: what was stored is on disk.
const CLOSING: Duration = Duration::from_millis(100);

pub(in crate::cli) fn run(arguments: &Serve) -> Result<Outcome, CliError> {
    arguments.keys.check()?;
    use_small_pages();
    let engine = engine(arguments.patience.deadlines())?
        .with_recorder(recorder_of_graphs(&arguments.recorder));
    let served = tokio::runtime::Runtime::new()
        .context("could not start the runtime")
        .and_then(|runtime| {
            let served = runtime.block_on(serve(arguments, engine));
            // Threads that read a large body or replay a long recording go with the process: their clients have an
            // answer, and nothing of theirs is stored. Dropping the runtime would wait for them.
            runtime.shutdown_background();
            served
        });
    served.map(|()| Outcome::Answered).map_err(CliError::Broken)
}

/// Has the system back memory by pages of 4 KiB. A service holds little and for long, here and there: of pages of 2 MiB, half
/// its memory would be the unused rest.
fn use_small_pages() {
    if let Err(error) = batchfit_platform::use_small_pages() {
        tracing::debug!("huge pages stay as the system has them: {error}");
    }
}

async fn serve(arguments: &Serve, engine: FitEngine) -> anyhow::Result<()> {
    let database = storage::database(&arguments.kept)?;
    // Before the tables are touched: they are another server's, perhaps. Held until this function ends.
    let owned = Ownership::take(&database)?;
    let db = Db::open(&database).await?;
    let listener = http::listen(&arguments.listen)
        .await
        .with_context(|| format!("could not listen on {}", arguments.listen))?;
    let address = listener
        .local_addr()
        .context("could not read the address")?;
    info!("listening on http://{address}");
    let keys = arguments.keys.limits(address.ip().is_loopback());
    match &keys {
        Some(_) => say_who_may_ask(&db).await,
        None if !address.ip().is_loopback() => {
            warn!(
                "all clients that reach {address} are answered without a key (--allow-anonymous)"
            );
        }
        None => {}
    }
    let entrance = ListenConfig {
        listener,
        keys,
        hosts: hosts(arguments),
        limits: connection_limits(),
    };
    let shutdown = CancellationToken::new();
    let mut signals = Signals::listen(false).context("could not wait for SIGTERM")?;
    let asked_to_end = async {
        signals.next().await;
        shutdown.cancel();
        tokio::time::sleep(LONGEST_END).await;
    };
    let serving = http::serve(
        entrance,
        db.clone(),
        Arc::new(engine),
        Limits {
            uploads: arguments.uploads.limits(),
            retention: arguments.retention.retention(),
            ..arguments.work.limits()
        },
        shutdown.clone(),
    );
    let served = tokio::select! {
        served = serving => served,
        () = asked_to_end => Ok(()),
    };
    if tokio::time::timeout(CLOSING, db.close()).await.is_err() {
        warn!("the database is busy and was not closed");
    }
    drop(owned);
    Ok(served?)
}

/// At the first start there is no key yet.
async fn say_who_may_ask(db: &Db) {
    let keys = db.keys().await.unwrap_or_default();
    let valid = keys.iter().filter(|key| key.revoked_at.is_none()).count();
    if valid == 0 {
        warn!(
            "requests need a key, and there is none: `batchfit keys create --name NAME --scope fit` makes one, with the same \
             --database; --allow-anonymous answers clients without one"
        );
    } else {
        info!(keys = valid, "requests need one of {valid} keys");
    }
}

/// The names in `--allowed-host`, and the one in `--listen` where that is a name.
fn hosts(arguments: &Serve) -> Hosts {
    let listen = arguments.listen.rsplit_once(':').map(|(host, _)| host);
    let named = listen
        .filter(|host| host.parse::<IpAddr>().is_err())
        .and_then(|host| host.parse::<HostName>().ok());
    let allowed = arguments.allowed_hosts.iter().cloned();
    Hosts::default().known_as(allowed.chain(named))
}

/// The usual limits, with at least half of the files that this process may open left for everything else.
fn connection_limits() -> ConnectionLimits {
    let usual = ConnectionLimits::default();
    let files = batchfit_platform::most_open_files();
    let half = files.map_or(usual.open, |files| {
        usize::try_from(files / 2).unwrap_or(usize::MAX)
    });
    ConnectionLimits {
        open: usual.open.min(half.max(1)),
        ..usual
    }
}
