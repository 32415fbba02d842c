//! Who works on a fit, and until when it is theirs.
//!
//! A fit that runs has a holder and a lease, which the holder renews while it works. Whoever finds a lease that has passed puts
//! the fit back into the queue, so that a holder that died or cannot be reached loses it and nobody else does. Its next attempt has
//! another number, and what the lost holder says of the earlier one is not stored.

use super::FitState;
use crate::engine::ask;
use crate::text::as_inner;
use crate::text::by_name;
use crate::{Db, StoreError, Time, asking};

/// How the names of servers begin. Others who hold fits are called otherwise, and outlive a server.
const SERVER: &str = "server ";

/// Who works on fits: a server, or somebody who took a fit from one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holder(String);

as_inner!(Holder(String));

impl Holder {
    /// A server, by a name that no other has: not the next one on the same machine either.
    pub fn server(name: &str) -> Holder {
        Holder(format!("{SERVER}{name}"))
    }

    /// Somebody else, by a name of their own. It must not begin as the names of servers do: see [`Holder::is_server`].
    pub fn other(name: String) -> Holder {
        Holder(name)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Whether it is a server.
    pub fn is_server(&self) -> bool {
        self.0.starts_with(SERVER)
    }
}

/// For whom a fit is claimed, and until when.
#[derive(Debug, Clone, Copy)]
pub struct Lease<'a> {
    /// Who works on it.
    pub holder: &'a Holder,
    /// Until when it is theirs.
    pub until: Time,
}

/// One attempt at a fit. What is said of it counts as long as it is under way, and from its holder alone.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// The fit.
    pub id: &'a str,
    /// Which attempt; the first is 1.
    pub number: i64,
    /// Who makes it.
    pub holder: &'a Holder,
}

/// A fit that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedFit {
    /// The fit.
    pub id: String,
    /// Which attempt is under way.
    pub attempts: i64,
    /// Who makes it; `None` for one that an earlier version began.
    pub holder: Option<Holder>,
    /// Until when it is theirs.
    pub lease_until: Option<Time>,
}

by_name!(LeasedFit: id, attempts, holder, lease_until);

/// A fit that waits or runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfinishedFit {
    /// The fit.
    pub id: String,
    /// Where it stands.
    pub state: FitState,
    /// How often it was begun.
    pub attempts: i64,
    /// Who works on it, or did last.
    pub holder: Option<Holder>,
}

by_name!(UnfinishedFit: id, state, attempts, holder);

impl Db {
    /// Renews the lease of one attempt. False when it is not under way any more: its holder may stop.
    pub async fn renew(&self, attempt: Attempt<'_>, until: Time) -> Result<bool, StoreError> {
        ask!(execute, self.pool.on(), "UPDATE fit SET lease_until = $4 WHERE id = $1 AND state = 'running' AND attempts = $2 AND holder = $3",
            attempt.id,
            attempt.number,
            attempt.holder,
            until,)
        .map(|renewed| renewed == 1)
        .map_err(asking("renew the lease of a fit"))
    }

    /// Renews the leases of all that one holder works on. Says how many.
    pub async fn renew_all(&self, lease: Lease<'_>) -> Result<u64, StoreError> {
        ask!(
            execute,
            self.pool.on(),
            "UPDATE fit SET lease_until = $2 WHERE state = 'running' AND holder = $1",
            lease.holder,
            lease.until,
        )
        .map_err(asking("renew leases"))
    }

    /// Puts fits back into the queue whose lease has passed, to be run apart; not those of `mine`, who is alive to ask. Says how
    /// many.
    pub async fn expired(&self, now: Time, mine: &Holder) -> Result<u64, StoreError> {
        ask!(execute, self.pool.on(), "UPDATE fit SET state = 'queued', started_at = NULL, apart = TRUE
              WHERE state = 'running' AND coalesce(lease_until, 0) < $1 AND coalesce(holder, '') <> $2",
            now,
            mine,)
        .map_err(asking("queue fits again whose lease has passed"))
    }

    /// Queues the fits that were running when the last server ended without a word, to be run apart: those of servers, of which
    /// there is none. Others who hold fits are given time to renew them, because nobody could without a server. Call it once, before the first claim, and not beside another server
    /// on the same database, whose fits it would take.
    ///
    /// Says how many were queued again. None where several servers share the queue, who watch each other.
    pub async fn recover(&self) -> Result<u64, StoreError> {
        if self.is_shared() {
            return Ok(0);
        }
        ask!(
            execute,
            self.pool.on(),
            "UPDATE fit SET state = 'queued', started_at = NULL, apart = TRUE
              WHERE state = 'running'
                AND (holder IS NULL OR substr(holder, 1, length($1)) = $1)",
            SERVER,
        )
        .map_err(asking("queue interrupted fits"))
    }

    /// The fits that wait or run.
    pub async fn unfinished_fits(&self) -> Result<Vec<UnfinishedFit>, StoreError> {
        ask!(
            fetch_all UnfinishedFit,
            self.pool.on(),
            "SELECT id, state, attempts, holder
                 FROM fit WHERE state IN ('queued', 'running')"
        )
        .map_err(asking("list the fits that wait or run"))
    }

    /// The fits that the table holds for running.
    pub async fn running_fits(&self) -> Result<Vec<LeasedFit>, StoreError> {
        ask!(fetch_all LeasedFit, self.pool.on(), "SELECT id, attempts, holder, lease_until
                 FROM fit WHERE state = 'running'")
        .map_err(asking("list running fits"))
    }

    /// Where the fit stands as far as one attempt is concerned: `None` where that was overtaken by another, or there is none.
    pub async fn attempt_state(
        &self,
        attempt: Attempt<'_>,
    ) -> Result<Option<FitState>, StoreError> {
        ask!(fetch_optional scalar, self.pool.on(), "SELECT state FROM fit WHERE id = $1 AND attempts = $2 AND holder = $3",
            attempt.id,
            attempt.number,
            attempt.holder,)
        .map_err(asking("read the state of an attempt"))
    }
}
