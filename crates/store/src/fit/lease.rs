//! Who works on a fit, and until when it is theirs.
//!
//! A fit that runs has a holder and a lease, which the holder renews while it works. A server that finds a lease that has passed puts
//! the fit back into the queue, so that a holder that died or cannot be reached loses it, and only that one. Its next attempt has
//! another number, and what the lost holder says of the earlier one is not stored.

use super::FitState;
use crate::engine::query;
use crate::text::{as_inner, by_name};
use crate::{Db, StoreError, Time};

/// How the names of servers begin. Others who hold fits are called otherwise, and outlive a server.
const SERVER: &str = "server ";

/// Who works on fits: a server, or an agent that took a fit from one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseOwner(String);

as_inner!(LeaseOwner(String));

impl LeaseOwner {
    /// A server, by a name that no other has: not the next one on the same machine either.
    pub fn server(name: &str) -> LeaseOwner {
        LeaseOwner(format!("{SERVER}{name}"))
    }

    /// An agent, by its own name. It must not begin as the names of servers do.
    pub fn other(name: String) -> LeaseOwner {
        LeaseOwner(name)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// For whom a fit is claimed, and until when.
#[derive(Debug, Clone, Copy)]
pub struct Lease<'a> {
    /// Who works on it.
    pub holder: &'a LeaseOwner,
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
    pub holder: &'a LeaseOwner,
}

/// A fit that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedFit {
    /// The fit.
    pub id: String,
    /// Which attempt is under way.
    pub attempts: i64,
    /// Who makes it; `None` for one that an earlier version began.
    pub holder: Option<LeaseOwner>,
    /// Until when it is theirs.
    pub lease_until: Option<Time>,
    /// What it must not run beside.
    pub lane: String,
    /// When its time limit has passed, which counts what attempts took that agents gave back or lost; `None` where it has none.
    pub time_limit: Option<Time>,
}

by_name!(LeasedFit: id, attempts, holder, lease_until, lane, time_limit);

impl LeasedFit {
    /// Whether its holder, who may say nothing for so many milliseconds, went on beyond the time limit and [`Db::renew`] gave it no more:
    /// one that fell silent before that is lost instead.
    pub fn is_overdue(&self, silence: i64, now: Time) -> bool {
        let last = self.time_limit.map(|limit| limit.0.saturating_add(silence));
        let until = self.lease_until.map(|until| until.0);
        last.is_some_and(|last| until.is_some_and(|until| last <= until && until < now.0))
    }
}

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
    pub holder: Option<LeaseOwner>,
}

by_name!(UnfinishedFit: id, state, attempts, holder);

impl Db {
    /// Renews the lease of one attempt: until then, and for no longer than `silence` milliseconds beyond the time limit of the fit, unless
    /// [`Db::spare_agents`] gave it more. Says until when it is; `None` when the attempt is not under way any more: its holder may stop.
    pub async fn renew(
        &self,
        attempt: Attempt<'_>,
        until: Time,
        silence: i64,
    ) -> Result<Option<Time>, StoreError> {
        query!("renew the lease of a fit": fetch_optional scalar, self.pool.writing(),
            "UPDATE fit SET lease_until = CASE
                    WHEN timeout_seconds IS NULL OR $4 <= started_at - worked_ms + timeout_seconds * 1000 + $5 THEN $4
                    WHEN lease_until > started_at - worked_ms + timeout_seconds * 1000 + $5 THEN lease_until
                    ELSE started_at - worked_ms + timeout_seconds * 1000 + $5 END
              WHERE id = $1 AND state = 'running' AND attempts = $2 AND holder = $3
              RETURNING lease_until", attempt.id, attempt.number, attempt.holder, until, silence)
    }

    /// Renews the leases of all that one holder works on. Says how many.
    pub async fn renew_all(&self, lease: Lease<'_>) -> Result<u64, StoreError> {
        query!("renew leases": execute, self.pool.writing(),
            "UPDATE fit SET lease_until = $2 WHERE state = 'running' AND holder = $1", lease.holder, lease.until)
    }

    /// Puts fits back into the queue whose lease has passed, to be run apart; not those of `mine`, who is alive to ask. Says how many. They
    /// were worked on to the end of their lease. Of the first attempt its last `silence` milliseconds count as no work: most that are lost
    /// have ended. Of later ones they do, so that nobody holds a fit for ever by saying nothing.
    pub async fn expired(
        &self,
        now: Time,
        mine: &LeaseOwner,
        silence: i64,
    ) -> Result<u64, StoreError> {
        query!("queue fits again whose lease has passed": execute, self.pool.writing(),
            "UPDATE fit SET state = 'queued', started_at = NULL, apart = TRUE,
                    worked_ms = worked_ms - started_at + CASE WHEN attempts > 1 AND lease_until > started_at THEN lease_until
                                                              WHEN lease_until - $3 > started_at THEN lease_until - $3 ELSE started_at END
              WHERE state = 'running' AND coalesce(lease_until, 0) < $1 AND coalesce(holder, '') <> $2", now, mine, silence)
    }

    /// Queues the fits that were running when the last server ended without a word, to be run apart: those of servers, of which
    /// there is none. Others who hold fits are given time to renew them, because they could not without a server. Call it once, before the first claim, and not beside another server
    /// on the same database, whose fits it would take.
    ///
    /// Says how many were queued again. None where several servers share the queue, who watch each other.
    pub async fn recover(&self) -> Result<u64, StoreError> {
        if self.is_shared() {
            return Ok(0);
        }
        query!("queue interrupted fits": execute, self.pool.writing(),
            "UPDATE fit SET state = 'queued', started_at = NULL, apart = TRUE
              WHERE state = 'running'
                AND (holder IS NULL OR substr(holder, 1, length($1)) = $1)", SERVER)
    }

    /// The clock that leases are counted by was set by so many milliseconds: what runs, and who is there, moves with it.
    pub async fn clock_was_set(&self, by: i64) -> Result<(), StoreError> {
        let moving = "move leases with the clock";
        query!(moving: execute, self.pool.writing(),
            "UPDATE fit SET started_at = started_at + $1, lease_until = lease_until + $1 WHERE state = 'running'", by)?;
        query!(moving: execute, self.pool.writing(), "UPDATE agent SET seen_at = seen_at + $1", by)
            .map(|_| ())
    }

    /// The fits that wait or run.
    pub async fn unfinished_fits(&self) -> Result<Vec<UnfinishedFit>, StoreError> {
        query!("list the fits that wait or run": fetch_all UnfinishedFit, self.pool.on(),
            "SELECT id, state, attempts, holder
                 FROM fit WHERE state IN ('queued', 'running')")
    }

    /// The fits that the table holds for running: of this holder, where one is named.
    pub async fn running_fits(
        &self,
        of: Option<&LeaseOwner>,
    ) -> Result<Vec<LeasedFit>, StoreError> {
        query!("list running fits": fetch_all LeasedFit, self.pool.on(),
            "SELECT id, attempts, holder, lease_until, lane,
                      started_at - worked_ms + timeout_seconds * 1000 AS time_limit
                 FROM fit WHERE state = 'running' AND ($1 IS NULL OR holder = $1)", of)
    }

    /// Where the fit stands as far as one attempt is concerned: `None` where that was overtaken by another, or there is none.
    pub async fn attempt_state(
        &self,
        attempt: Attempt<'_>,
    ) -> Result<Option<FitState>, StoreError> {
        query!("read the state of an attempt": fetch_optional scalar, self.pool.on(),
            "SELECT state FROM fit WHERE id = $1 AND attempts = $2 AND holder = $3", attempt.id, attempt.number, attempt.holder)
    }
}
