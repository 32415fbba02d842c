//! The table of fits, which is also the queue.

mod enqueue;
mod lease;
mod terms;

use crate::text::by_name;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::types::Json;
use utoipa::ToSchema;

use super::engine::{Connection, query};
use super::request::{keep_request, request_digest};
use super::text::named_in_text;
use super::{Db, JsonText, StoreError, StoredRecommendation, Time, with_context};
pub use enqueue::{Enqueued, NewFit, Reuse};
pub use lease::{Attempt, Lease, LeaseOwner, LeasedFit, UnfinishedFit};
pub(super) use terms::PATIENCE_MS;
pub use terms::{FitTerms, IdempotencyKey, IdempotentMatch};

/// The lane of all simulated devices. Each GPU is a lane of its own, in which one fit runs at a time.
pub const SIMULATED_LANE: &str = "simulated";

/// Where a fit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FitState {
    /// Waiting for its turn.
    Queued,
    /// Being computed.
    Running,
    /// Answered: there is a `result`.
    Done,
    /// Could not be answered: there is an `error`.
    Failed,
    /// Somebody asked to stop.
    Cancelled,
}

named_in_text!(FitState);

impl FitState {
    /// All of them, in the order of a fit's life.
    pub const ALL: [FitState; 5] = [
        FitState::Queued,
        FitState::Running,
        FitState::Done,
        FitState::Failed,
        FitState::Cancelled,
    ];

    /// Its name in documents and in the table.
    pub const fn name(self) -> &'static str {
        match self {
            FitState::Queued => "queued",
            FitState::Running => "running",
            FitState::Done => "done",
            FitState::Failed => "failed",
            FitState::Cancelled => "cancelled",
        }
    }

    /// Whether nothing will change any more.
    pub const fn is_final(self) -> bool {
        match self {
            FitState::Queued | FitState::Running => false,
            FitState::Done | FitState::Failed | FitState::Cancelled => true,
        }
    }
}

/// A whole row.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// Its name.
    pub id: String,
    /// Where it stands.
    pub state: FitState,
    /// The request document.
    pub request: JsonText,
    /// The answer, exactly when it is done.
    pub result: Option<Json<Value>>,
    /// Why there is none, exactly when it failed.
    pub error: Option<Json<Value>>,
    /// When it was asked.
    pub created_at: Time,
    /// When it was last begun.
    pub started_at: Option<Time>,
    /// When it ended.
    pub finished_at: Option<Time>,
}

by_name!(Fit: id, state, request, result, error, created_at, started_at, finished_at);

/// An answer, and what is said with it where it is written for other programs.
#[derive(Debug, Clone, PartialEq)]
pub struct FitAnswer {
    /// Where the fit stands.
    pub state: FitState,
    /// The model, as a person calls it.
    pub model: String,
    /// The request document.
    pub request: JsonText,
    /// The answer, exactly when it is done.
    pub result: Option<Json<Value>>,
}

by_name!(FitAnswer: state, model, request, result);

/// A row in a list: without what may be megabytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FitSummary {
    /// Its name; `/v1/fits/{id}` is the whole of it.
    pub id: String,
    /// Where it stands.
    pub state: FitState,
    /// The model, as a person calls it.
    pub model: String,
    /// As in the request.
    pub device: String,
    /// The recommended micro-batch, once it is done; 0 when nothing fits.
    pub micro_batch: Option<i64>,
    /// When it was asked.
    pub created_at: Time,
    /// When it was last begun.
    pub started_at: Option<Time>,
    /// When it ended.
    pub finished_at: Option<Time>,
}

by_name!(FitSummary: id, state, model, device, micro_batch, created_at, started_at, finished_at);

/// Which fits to list.
#[derive(Debug, Clone, Default)]
pub struct FitFilter {
    /// In this state alone.
    pub state: Option<FitState>,
    /// Older than this id.
    pub before: Option<String>,
    /// At most so many.
    pub limit: i64,
}

/// The part of a fingerprint that says what is asked: a digest in hexadecimal digits. What follows is the document that asks it.
pub fn question_of(fingerprint: &str) -> &str {
    fingerprint.split('-').next().unwrap_or(fingerprint)
}

/// Where a fit stands, and how often it was begun.
struct Stand {
    state: FitState,
    attempts: i64,
}

by_name!(Stand: state, attempts);

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
    /// For how many seconds it may be worked on, as it was when it was claimed.
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
    /// The whole fit.
    pub async fn fit(&self, id: &str) -> Result<Option<Fit>, StoreError> {
        query!(fetch_optional Fit, self.pool.on(), "SELECT id, state, text AS request,
                      result, error,
                      created_at, started_at,
                      finished_at
                 FROM fit JOIN request ON digest = request_digest WHERE id = $1",
            id)
        .map_err(with_context("read a fit"))
    }

    /// The fit's answer, with its question.
    pub async fn fit_answer(&self, id: &str) -> Result<Option<FitAnswer>, StoreError> {
        query!(fetch_optional FitAnswer, self.pool.on(), "SELECT state, model, text AS request,
                      result
                 FROM fit JOIN request ON digest = request_digest WHERE id = $1",
            id)
        .map_err(with_context("read an answer"))
    }

    /// Where the fit stands, without reading the rest of it.
    pub async fn fit_state(&self, id: &str) -> Result<Option<FitState>, StoreError> {
        query!(fetch_optional scalar, self.pool.on(), "SELECT state FROM fit WHERE id = $1",
            id)
        .map_err(with_context("read the state of a fit"))
    }

    /// The newest fit that has answered the question of this fingerprint, by whatever document it was asked.
    pub async fn finished_fit(&self, fingerprint: &str) -> Result<Option<String>, StoreError> {
        let question = question_of(fingerprint);
        let beyond = format!("{question}~");
        query!(fetch_optional scalar, self.pool.on(), "SELECT id FROM fit WHERE fingerprint >= $1 AND fingerprint < $2 AND state = 'done'
              ORDER BY id DESC LIMIT 1",
            question,
            beyond)
        .map_err(with_context("look for an answer"))
    }

    /// Where the fit stands, and how often it was begun.
    pub async fn fit_attempts(&self, id: &str) -> Result<Option<(FitState, i64)>, StoreError> {
        query!(fetch_optional Stand, self.pool.on(), "SELECT state, attempts FROM fit WHERE id = $1", id)
        .map(|row| row.map(|row| (row.state, row.attempts)))
        .map_err(with_context("read the state of a fit"))
    }

    /// Fits, newest first.
    pub async fn fits(&self, filter: &FitFilter) -> Result<Vec<FitSummary>, StoreError> {
        query!(fetch_all FitSummary, self.pool.on(), ["SELECT id, state, model, device,
                      result ->> '$.recommendation.micro_batch' AS micro_batch,
                      created_at, started_at,
                      finished_at
                 FROM fit
                WHERE ($1 IS NULL OR state = $1) AND ($2 IS NULL OR id < $2)
                ORDER BY id DESC LIMIT $3", "SELECT id, state, model, device,
                      CAST(result #>> '{recommendation,micro_batch}' AS BIGINT) AS micro_batch,
                      created_at, started_at,
                      finished_at
                 FROM fit
                WHERE ($1 IS NULL OR state = $1) AND ($2 IS NULL OR id < $2)
                ORDER BY id DESC LIMIT $3"],
            filter.state,
            filter.before,
            filter.limit,)
        .map_err(with_context("list fits"))
    }

    /// Hands out the oldest fit whose lane is free where the holder works, or nothing: those first for whose answer somebody
    /// waits, and those that have waited for a minute whatever anybody does. Keys take turns: the next fit of one comes after those of
    /// others that have fewer before it, running ones included, and of those that have as many, after who was served longer ago.
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
        query!(fetch_optional Claimed, self.pool.on(), ["UPDATE fit SET state = 'running', started_at = $1, attempts = attempts + 1, holder = $4, lease_until = $5
                WHERE id = (SELECT waiting.id FROM fit AS waiting
                              JOIN (SELECT id, CASE owner WHEN '' THEN 0 ELSE row_number() OVER
                                           (PARTITION BY owner ORDER BY CASE WHEN priority = 'batch' AND created_at BETWEEN $1 - $3 AND $1 THEN 1 ELSE 0 END, id)
                                           + (SELECT count(*) FROM fit AS other WHERE other.state = 'running' AND other.owner = fit.owner) END AS turn,
                                           CASE owner WHEN '' THEN 0 ELSE (SELECT coalesce(max(other.started_at), 0) FROM fit AS other WHERE other.owner = fit.owner) END AS served
                                      FROM fit WHERE state = 'queued') AS turns ON turns.id = waiting.id
                             WHERE waiting.state = 'queued' AND waiting.lane NOT LIKE 'agent %'
                               AND (SELECT count(*) FROM fit AS busy
                                     WHERE busy.state = 'running' AND busy.lane = waiting.lane AND busy.holder = $4)
                                   < CASE waiting.lane WHEN 'simulated' THEN $2 ELSE 1 END
                                     * CASE WHEN waiting.lane <> 'simulated' OR waiting.owner = ''
                                              OR EXISTS (SELECT 1 FROM fit AS own WHERE own.state = 'running' AND own.owner = waiting.owner) THEN 1 ELSE 2 END
                               AND ($6 IS NULL OR waiting.device LIKE 'sim:%' OR $6 LIKE '%,' || waiting.lane || ',%')
                             ORDER BY turns.turn, turns.served, waiting.priority = 'batch' AND waiting.created_at BETWEEN $1 - $3 AND $1, waiting.id LIMIT 1)
                  AND state = 'queued'
               RETURNING id, fingerprint, lane, attempts, holder, apart, timeout_seconds, taught, model_digest,
                  (SELECT count(*) FROM fit AS other WHERE other.owner = fit.owner AND other.owner <> '' AND other.state IN ('queued', 'running')) AS of_key,
                  NOT EXISTS (SELECT 1 FROM fit AS other WHERE other.owner = fit.owner AND other.owner <> '' AND other.state = 'running' AND other.id <> fit.id) AS is_alone,
                  (SELECT text FROM request WHERE digest = request_digest) AS request", "UPDATE fit SET state = 'running', started_at = $1, attempts = attempts + 1, holder = $4, lease_until = $5
                WHERE id = (SELECT waiting.id FROM fit AS waiting
                              JOIN (SELECT id, CASE owner WHEN '' THEN 0 ELSE row_number() OVER
                                           (PARTITION BY owner ORDER BY CASE WHEN priority = 'batch' AND created_at BETWEEN $1 - $3 AND $1 THEN 1 ELSE 0 END, id)
                                           + (SELECT count(*) FROM fit AS other WHERE other.state = 'running' AND other.owner = fit.owner) END AS turn,
                                           CASE owner WHEN '' THEN 0 ELSE (SELECT coalesce(max(other.started_at), 0) FROM fit AS other WHERE other.owner = fit.owner) END AS served
                                      FROM fit WHERE state = 'queued') AS turns ON turns.id = waiting.id
                             WHERE waiting.state = 'queued'
                               AND (SELECT count(*) FROM fit AS busy
                                     WHERE busy.state = 'running' AND busy.lane = waiting.lane AND busy.holder = $4)
                                   < CASE waiting.lane WHEN 'simulated' THEN $2 ELSE 1 END
                                     * CASE WHEN waiting.lane <> 'simulated' OR waiting.owner = ''
                                              OR EXISTS (SELECT 1 FROM fit AS own WHERE own.state = 'running' AND own.owner = waiting.owner) THEN 1 ELSE 2 END
                               AND ($6 IS NULL OR waiting.device LIKE 'sim:%' OR $6 LIKE '%,' || waiting.lane || ',%')
                             ORDER BY turns.turn, turns.served, waiting.priority = 'batch' AND waiting.created_at BETWEEN $1 - $3 AND $1, waiting.id LIMIT 1
                               FOR UPDATE OF waiting SKIP LOCKED)
                  AND state = 'queued'
               RETURNING id, fingerprint, lane, attempts, holder, apart, timeout_seconds, taught, model_digest,
                  (SELECT count(*) FROM fit AS other WHERE other.owner = fit.owner AND other.owner <> '' AND other.state IN ('queued', 'running')) AS of_key,
                  NOT EXISTS (SELECT 1 FROM fit AS other WHERE other.owner = fit.owner AND other.owner <> '' AND other.state = 'running' AND other.id <> fit.id) AS is_alone,
                  (SELECT text FROM request WHERE digest = request_digest) AS request"],
            now,
            parallel.0,
            PATIENCE_MS,
            lease.holder,
            lease.until,
            lanes,)
        .map_err(with_context("claim a fit"))
    }

    /// Stores the answer of a running fit, its recommendations with it. False when the fit was cancelled
    /// or begun anew in the meantime: then nothing is stored.
    pub async fn finish(
        &self,
        attempt: Attempt<'_>,
        result: &Value,
        recommendations: &[StoredRecommendation],
        now: Time,
    ) -> Result<bool, StoreError> {
        self.in_place()?;
        let result = JsonText::of(result);
        let mut connection = self
            .pool
            .acquire()
            .await
            .map_err(with_context("begin to finish a fit"))?;
        let stored = finish_on(&mut connection, attempt, &result, recommendations, now).await;
        if stored.is_err() {
            // A transaction that a full disk interrupted may stay open, and the database locked with it.
            connection.close().await;
        }
        stored
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
        let begin = "begin to record a fit";
        let mut connection = self.pool.acquire().await.map_err(with_context(begin))?;
        let mut transaction = connection
            .begin_alone()
            .await
            .map_err(with_context(begin))?;
        query!(execute, transaction.on(), "INSERT INTO fit (id, fingerprint, batchfit_version, state, model, device, lane, attempts, request_digest, result,
                              created_at, started_at, finished_at, model_digest, taught)
             VALUES ($1, $2, $3, 'done', $4, $5, $6, 1, $7, $8, $9, $9, $10, $11, $12)",
            fit.id,
            fit.fingerprint,
            fit.batchfit_version,
            fit.model,
            fit.device,
            fit.lane,
            request,
            result,
            fit.created_at,
            finished_at,
            fit.model_digest,
            fit.taught,)
        .map_err(with_context("record a fit"))?;
        keep_request(&mut transaction.link(), &request, &fit.request).await?;
        for recommendation in recommendations {
            recommendation.insert(&mut transaction.link()).await?;
        }
        transaction
            .commit()
            .await
            .map_err(with_context("commit a recorded fit"))
    }

    /// Stores why a running fit has no answer. False when the fit was cancelled or begun anew in the meantime.
    pub async fn fail(
        &self,
        attempt: Attempt<'_>,
        error: &Value,
        now: Time,
    ) -> Result<bool, StoreError> {
        let error = JsonText::of(error);
        query!(
            execute,
            self.pool.on(),
            "UPDATE fit SET state = 'failed', error = $4, finished_at = $5
              WHERE id = $1 AND state = 'running' AND attempts = $2 AND holder = $3",
            attempt.id,
            attempt.number,
            attempt.holder,
            error,
            now,
        )
        .map(|failed| failed == 1)
        .map_err(with_context("fail a fit"))
    }

    /// Cancels a fit that has not ended, if it is of this owner where one is named. False when it is not, or there is none.
    pub async fn cancel(
        &self,
        id: &str,
        owner: Option<&str>,
        now: Time,
    ) -> Result<bool, StoreError> {
        query!(
            execute,
            self.pool.on(),
            "UPDATE fit SET state = 'cancelled', finished_at = $2
              WHERE id = $1 AND state IN ('queued', 'running') AND ($3 IS NULL OR owner = $3)",
            id,
            now,
            owner,
        )
        .map(|cancelled| cancelled == 1)
        .map_err(with_context("cancel a fit"))
    }

    /// Puts a running fit back into the queue, as if this attempt had not been.
    pub async fn put_back(&self, attempt: Attempt<'_>) -> Result<bool, StoreError> {
        query!(
            execute,
            self.pool.on(),
            "UPDATE fit SET state = 'queued', started_at = NULL
              WHERE id = $1 AND state = 'running' AND attempts = $2 AND holder = $3",
            attempt.id,
            attempt.number,
            attempt.holder,
        )
        .map(|put_back| put_back == 1)
        .map_err(with_context("put a fit back"))
    }
}

/// Stores the answer of a fit and its recommendations, all or nothing.
async fn finish_on(
    connection: &mut Connection,
    attempt: Attempt<'_>,
    result: &JsonText,
    recommendations: &[StoredRecommendation],
    now: Time,
) -> Result<bool, StoreError> {
    let mut transaction = connection
        .begin_alone()
        .await
        .map_err(with_context("begin to finish a fit"))?;
    let finished = query!(
        execute,
        transaction.on(),
        "UPDATE fit SET state = 'done', result = $4, finished_at = $5
          WHERE id = $1 AND state = 'running' AND attempts = $2 AND holder = $3",
        attempt.id,
        attempt.number,
        attempt.holder,
        result,
        now,
    )
    .map_err(with_context("finish a fit"))?;
    if finished == 0 {
        return Ok(false);
    }
    for recommendation in recommendations {
        recommendation.insert(&mut transaction.link()).await?;
    }
    transaction
        .commit()
        .await
        .map_err(with_context("commit the answer of a fit"))?;
    Ok(true)
}

#[cfg(test)]
mod tests;
