//! The leases of what this server works on.
//!
//! See [`crate::store::Lease`]. A server renews all of its leases with one statement.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::MissedTickBehavior;

use super::clock::milliseconds;
use super::document::chance;
use super::queue::Shared;
use crate::store::{Holder, Time};

/// How long a fit stays with a holder that says nothing. A server that is killed keeps its fits for as long; one that cannot
/// write to the database for as long loses them. Kubernetes gives a node up after 40 s, and etcd's leases are of seconds.
pub(super) const LEASE: Duration = Duration::from_secs(30);

/// How often a holder says that it is there: two of them may be lost.
const RENEW: Duration = Duration::from_secs(10);

/// The name of this server: of the machine, the process, and chance, because a container's first process is always the first.
pub(super) fn name() -> Holder {
    let uname = rustix::system::uname();
    let machine = uname.nodename().to_string_lossy();
    let process = std::process::id();
    Holder::server(&format!("{machine} {process} {:08x}", chance() >> 32))
}

/// Until when what is taken or renewed now is held.
pub(super) fn until(now: Time) -> Time {
    Time(now.0.saturating_add(milliseconds(LEASE)))
}

/// Renews what this server works on, until it ends.
pub(super) async fn renew(shared: Arc<Shared>) {
    let mut beats = tokio::time::interval(RENEW);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = beats.tick() => {}
            () = shared.shutdown.cancelled() => return,
        }
        if !shared.works() {
            continue;
        }
        let lease = shared.lease(Time::from(Timestamp::now()));
        // The next beat tries again.
        if let Err(error) = shared.db.renew_all(lease).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "{error}");
        }
    }
}
