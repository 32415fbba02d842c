//! How a fit is asked for, beside what: who is served first, for how long it may be worked on, and under which name the
//! client asked.

use crate::engine::{Transaction, query};
use crate::model::Priority;
use crate::text::by_name;
use crate::{Db, StoreError, Time};

/// For how long a fit waits behind those of clients who wait, in milliseconds.
pub(crate) const PATIENCE_MS: i64 = 60_000;

/// Who is served first, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FitTerms {
    /// Who is served first.
    pub priority: Priority,
    /// For how many seconds it may be worked on.
    pub timeout_seconds: Option<u32>,
}

impl Default for FitTerms {
    /// No client waits, and it takes as long as it takes.
    fn default() -> FitTerms {
        FitTerms {
            priority: Priority::Batch,
            timeout_seconds: None,
        }
    }
}

/// A name that a client gave to its request, so that it may send it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The API key under which it was sent; empty where none is needed. Clients do not meet each other's names.
    pub owner: String,
    /// The name.
    pub key: String,
    /// SHA-256 of the body.
    pub body: String,
}

/// What was asked under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotentMatch {
    /// SHA-256 of the body.
    pub body: String,
    /// The fit that it got.
    pub fit_id: String,
}

by_name!(IdempotentMatch: body, fit_id);

impl Db {
    /// A fit that waits or runs is asked for again by its key under other terms: it gets the better of both.
    pub(super) async fn ask_again(
        &self,
        id: &str,
        owner: &str,
        terms: FitTerms,
    ) -> Result<(), StoreError> {
        let priority = terms.priority.name();
        let timeout_seconds = terms.timeout_seconds.map(i64::from);
        query!("change the terms of a fit": execute, self.pool.writing(),
            "UPDATE fit SET priority = CASE WHEN $2 = 'interactive' THEN $2 ELSE priority END,
                            timeout_seconds = CASE WHEN $3 > timeout_seconds THEN $3 WHEN $3 IS NULL THEN NULL ELSE timeout_seconds END
              WHERE id = $1 AND state IN ('queued', 'running') AND owner = $4
                AND (priority <> $2 AND $2 = 'interactive'
                     OR timeout_seconds IS NOT NULL AND ($3 IS NULL OR $3 > timeout_seconds))",
            id, priority, timeout_seconds, owner).map(|_| ())
    }

    /// For how many seconds a fit may be worked on.
    pub async fn fit_timeout(&self, id: &str) -> Result<Option<i64>, StoreError> {
        query!("read for how long a fit may run": fetch_optional scalar, self.pool.on(),
            "SELECT timeout_seconds FROM fit WHERE id = $1", id)
        .map(Option::flatten)
    }

    /// What was asked under this name.
    pub async fn asked_before(
        &self,
        key: &IdempotencyKey,
    ) -> Result<Option<IdempotentMatch>, StoreError> {
        query!("read an idempotency key": fetch_optional IdempotentMatch, self.pool.on(),
            "SELECT body, fit_id FROM idempotency_key WHERE owner = $1 AND key = $2", key.owner, key.key)
    }

    /// Remembers that a fit which was there already was asked for under this name. False when the name is taken, or the fit
    /// is gone.
    pub async fn remember_key(
        &self,
        key: &IdempotencyKey,
        fit_id: &str,
        now: Time,
    ) -> Result<bool, StoreError> {
        let keep = "keep an idempotency key";
        let mut transaction = self.pool.begin_alone(keep).await?;
        let is_kept = keep_key(&mut transaction, key, fit_id, now).await?;
        transaction.commit(keep).await?;
        Ok(is_kept)
    }

    /// Forgets names that are older, and the oldest of an owner who has more than `most`. Says how many.
    pub async fn sweep_keys(&self, oldest: Time, most: i64) -> Result<u64, StoreError> {
        query!("forget idempotency keys": execute, self.pool.writing(),
            "DELETE FROM idempotency_key
              WHERE created_at < $1
                 OR (owner, key) IN (
                    SELECT owner, key FROM (
                        SELECT owner, key, row_number() OVER (PARTITION BY owner ORDER BY created_at DESC) AS place FROM idempotency_key
                    ) AS ordered WHERE place > $2)", oldest, most)
    }
}

/// Keeps a name, unless it is taken or there is no such fit; says whether.
pub(super) async fn keep_key(
    transaction: &mut Transaction,
    key: &IdempotencyKey,
    fit_id: &str,
    now: Time,
) -> Result<bool, StoreError> {
    query!("keep an idempotency key": execute, transaction.on(),
        "INSERT INTO idempotency_key (owner, key, body, fit_id, created_at)
         SELECT $1, $2, $3, fit.id, $5 FROM fit WHERE fit.id = $4
             ON CONFLICT DO NOTHING", key.owner, key.key, key.body, fit_id, now)
    .map(|kept| kept == 1)
}
