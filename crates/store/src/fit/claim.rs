//! The queue's side of the table: fits are handed out, and finished, failed, cancelled or put back.

use serde_json::Value;

use super::terms::PATIENCE_MS;
use super::{Attempt, Lease, LeaseOwner, NewFit, UnfinishedFit};
use crate::engine::query;
use crate::request::{keep_request, request_digest};
use crate::text::by_name;
use crate::{Db, JsonText, StoreError, StoredRecommendation, Time};

/// What a worker needs to begin.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    /// The fit.
    pub id: String,
    /// What is asked, and by which document.
    pub fingerprint: String,
    /// What it must not run beside.
    pub lane: String,
    /// Which attempt this is. An attempt that was overtaken can no longer finish the fit.
    pub attempts: i64,
    /// For whom it was claimed.
    pub holder: LeaseOwner,
    /// Whether to run it in a process of its own: it, or one that ran beside it, ended a server.
    pub apart: bool,
    /// For how many seconds it may be worked on, as it was when it was claimed: by an agent, without what earlier attempts took.
    pub timeout_seconds: Option<i64>,
    /// The request document.
    pub request: JsonText,
    /// What outcomes had taught about the headroom of its answer, as JSON.
    pub taught: JsonText,
    /// The model itself: the beginning of a digest.
    pub model_digest: String,
    /// How many fits of its key, this one included, wait or run; 0 where there is no key.
    pub of_key: i64,
    /// Whether no other fit of its key runs.
    pub is_alone: bool,
}

by_name!(Claimed: id, fingerprint, lane, attempts, holder, apart, timeout_seconds, request, taught, model_digest, of_key, is_alone);

impl Claimed {
    /// The attempt that began with this.
    pub fn attempt(&self) -> Attempt<'_> {
        Attempt {
            id: &self.id,
            number: self.attempts,
            holder: &self.holder,
        }
    }
}

/// How many fits on simulated devices one holder may run at a time.
#[derive(Debug, Clone, Copy)]
pub struct ParallelSimulated(pub i64);

impl Db {
    /// Hands out the oldest fit whose lane is free where the holder works, or nothing: those first for whose answer a client
    /// waits, and those that have waited for a minute in any case. Keys take turns: the next fit of one comes after those of
    /// others that have fewer before it, running ones included, and of those that have as many, after who was served longer ago; what agents
    /// are to do counts for nothing here. A key that runs nothing has twice as many places on simulated devices, and those of a key that runs several do not count as taken.
    ///
    /// One statement, so two workers can never claim the same row.
    pub async fn claim(
        &self,
        parallel: ParallelSimulated,
        lease: Lease<'_>,
        now: Time,
    ) -> Result<Option<Claimed>, StoreError> {
        self.claim_for(parallel, lease, None, now).await
    }

    /// The same for a holder who takes fits of these lanes alone: with a comma before and behind each.
    pub async fn claim_for(
        &self,
        parallel: ParallelSimulated,
        lease: Lease<'_>,
        lanes: Option<&str>,
        now: Time,
    ) -> Result<Option<Claimed>, StoreError> {
        query!("claim a fit": fetch_optional Claimed, self.pool.writing(),
            "UPDATE fit SET state = 'running', started_at = $1, attempts = attempts + 1, holder = $4, lease_until = $5
                WHERE id = (SELECT waiting.id FROM fit AS waiting
                              JOIN (SELECT id, CASE owner WHEN '' THEN 0 ELSE row_number() OVER
                                           (PARTITION BY owner ORDER BY CASE WHEN priority = 'batch' AND created_at BETWEEN $1 - $3 AND $1 THEN 1 ELSE 0 END, id)
                                           + (SELECT count(*) FROM fit_here AS other WHERE other.state = 'running' AND other.owner = asked.owner) END AS turn,
                                           CASE owner WHEN '' THEN 0 ELSE (SELECT coalesce(max(other.started_at), 0) FROM fit AS other WHERE other.owner = asked.owner) END AS served
                                      FROM fit AS asked WHERE state = 'queued' AND lane NOT LIKE 'agent %') AS turns ON turns.id = waiting.id
                             WHERE waiting.state = 'queued'
                               AND (SELECT count(*) FROM fit AS busy
                                     WHERE busy.state = 'running' AND busy.lane = waiting.lane AND busy.holder = $4
                                       AND (busy.lane <> 'simulated' OR busy.owner = ''
                                            OR EXISTS (SELECT 1 FROM fit_here AS own WHERE own.state = 'running' AND own.owner = waiting.owner)
                                            OR NOT EXISTS (SELECT 1 FROM fit AS twin WHERE twin.state = 'running' AND twin.lane = busy.lane
                                                              AND twin.owner = busy.owner AND twin.id <> busy.id)))
                                   < CASE waiting.lane WHEN 'simulated' THEN $2 ELSE 1 END
                                     * CASE WHEN waiting.lane <> 'simulated' OR waiting.owner = ''
                                              OR EXISTS (SELECT 1 FROM fit_here AS own WHERE own.state = 'running' AND own.owner = waiting.owner) THEN 1 ELSE 2 END
                               AND ($6 IS NULL OR waiting.device LIKE 'sim:%' OR $6 LIKE '%,' || waiting.lane || ',%')
                             ORDER BY turns.turn, turns.served, waiting.priority = 'batch' AND waiting.created_at BETWEEN $1 - $3 AND $1, waiting.id LIMIT 1 /* LOCKED */)
                  AND state = 'queued'
               RETURNING id, fingerprint, lane, attempts, holder, apart, timeout_seconds, taught, model_digest,
                  (SELECT count(*) FROM fit_here AS other WHERE other.owner = fit.owner AND other.owner <> '' AND other.state IN ('queued', 'running')) AS of_key,
                  NOT EXISTS (SELECT 1 FROM fit_here AS other WHERE other.owner = fit.owner AND other.owner <> '' AND other.state = 'running' AND other.id <> fit.id) AS is_alone,
                  (SELECT text FROM request WHERE digest = request_digest) AS request",
            now, parallel.0, PATIENCE_MS, lease.holder, lease.until, lanes)
    }

    /// The fits that wait for the same agents and ask the same in the same words.
    pub async fn waiting_twins(&self, of: &Claimed) -> Result<Vec<UnfinishedFit>, StoreError> {
        query!("look who asks the same": fetch_all UnfinishedFit, self.pool.on(),
            "SELECT id, state, attempts, holder FROM fit WHERE fingerprint = $1 AND lane = $2 AND state = 'queued'",
            of.fingerprint, of.lane)
    }

    /// Stores the answer of a running fit, its recommendations with it; or of one that waits for its next attempt, which begins and ends with
    /// this. False when the fit was cancelled or begun again in the meantime: then nothing is stored.
    pub async fn finish(
        &self,
        attempt: Attempt<'_>,
        result: &Value,
        recommendations: &[StoredRecommendation],
        now: Time,
    ) -> Result<bool, StoreError> {
        self.in_place()?;
        let result = JsonText::of(result);
        let mut transaction = self.pool.begin_alone("begin to finish a fit").await?;
        let finished = query!("finish a fit": execute, transaction.on(),
            "UPDATE fit SET state = 'done', result = $4, finished_at = $5, attempts = $2, holder = $3, started_at = coalesce(started_at, $5),
                    answered_by = coalesce((SELECT owner FROM agent WHERE 'agent ' || agent.id = $3), '')
              WHERE id = $1 AND (state = 'running' AND attempts = $2 AND holder = $3 OR state = 'queued' AND attempts = $2 - 1)
                AND ($3 NOT LIKE 'agent %' OR EXISTS (SELECT 1 FROM agent WHERE 'agent ' || agent.id = $3))",
            attempt.id, attempt.number, attempt.holder, result, now)?;
        if finished == 0 {
            return Ok(false);
        }
        for recommendation in recommendations {
            recommendation.insert(&mut transaction).await?;
        }
        transaction.commit("commit the answer of a fit").await?;
        Ok(true)
    }

    /// Stores a fit that was computed elsewhere, with its answer.
    pub async fn record(
        &self,
        fit: &NewFit,
        result: &Value,
        recommendations: &[StoredRecommendation],
        finished_at: Time,
    ) -> Result<(), StoreError> {
        let request = request_digest(&fit.request);
        let result = JsonText::of(result);
        let mut transaction = self.pool.begin_alone("begin to record a fit").await?;
        query!("record a fit": execute, transaction.on(),
            "INSERT INTO fit (id, fingerprint, batchfit_version, state, model, device, lane, attempts, request_digest, result,
                              created_at, started_at, finished_at, model_digest, taught)
             VALUES ($1, $2, $3, 'done', $4, $5, $6, 1, $7, $8, $9, $9, $10, $11, $12)",
            fit.id, fit.fingerprint, fit.batchfit_version, fit.model, fit.device, fit.lane, request, result,
            fit.created_at, finished_at, fit.model_digest, fit.taught)?;
        keep_request(&mut transaction, &request, &fit.request).await?;
        for recommendation in recommendations {
            recommendation.insert(&mut transaction).await?;
        }
        transaction.commit("commit a recorded fit").await
    }

    /// Stores why a running fit has no answer. False when the fit was cancelled or begun again in the meantime.
    pub async fn fail(
        &self,
        attempt: Attempt<'_>,
        error: &Value,
        now: Time,
    ) -> Result<bool, StoreError> {
        let error = JsonText::of(error);
        query!("fail a fit": execute, self.pool.writing(),
            "UPDATE fit SET state = 'failed', error = $4, finished_at = $5
              WHERE id = $1 AND state = 'running' AND attempts = $2 AND holder = $3",
            attempt.id, attempt.number, attempt.holder, error, now)
        .map(|failed| failed == 1)
    }

    /// Cancels a fit that has not ended, where it is this owner's if one is named. False when it is not, or there is no such fit.
    pub async fn cancel(
        &self,
        id: &str,
        owner: Option<&str>,
        now: Time,
    ) -> Result<bool, StoreError> {
        query!("cancel a fit": execute, self.pool.writing(),
            "UPDATE fit SET state = 'cancelled', finished_at = $2
              WHERE id = $1 AND state IN ('queued', 'running') AND ($3 IS NULL OR owner = $3)", id, now, owner).map(|cancelled| cancelled == 1)
    }

    /// Cancels waiting fits of keys that were revoked. Gives their ids.
    pub async fn cancel_of_revoked_keys(&self, now: Time) -> Result<Vec<String>, StoreError> {
        query!("cancel the fits of a key": fetch_all scalar, self.pool.writing(),
            "UPDATE fit SET state = 'cancelled', finished_at = $1
              WHERE state = 'queued' AND owner IN (SELECT id FROM api_key WHERE revoked_at IS NOT NULL)
             RETURNING id", now)
    }

    /// Puts a running fit back into the queue, as if this attempt had not been.
    pub async fn put_back(&self, attempt: Attempt<'_>) -> Result<bool, StoreError> {
        query!("put a fit back": execute, self.pool.writing(),
            "UPDATE fit SET state = 'queued', started_at = NULL
              WHERE id = $1 AND state = 'running' AND attempts = $2 AND holder = $3", attempt.id, attempt.number, attempt.holder).map(|put_back| put_back == 1)
    }
}
