//! The table of fits, which is also the queue.

mod claim;
mod enqueue;
mod lease;
mod terms;

use crate::text::by_name;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::types::Json;
use utoipa::ToSchema;

use super::engine::query;
use super::text::named_in_text;
use super::{Db, JsonText, StoreError, Time};
pub use claim::{Claimed, ParallelSimulated};
pub use enqueue::{Enqueued, NewFit, Reuse};
pub use lease::{Attempt, Lease, LeaseOwner, LeasedFit, UnfinishedFit};
pub(super) use terms::PATIENCE_MS;
pub use terms::{FitTerms, IdempotencyKey, IdempotentMatch};

/// The lane of all simulated devices. Each GPU is a lane of its own, in which one fit runs at a time.
pub const SIMULATED_LANE: &str = "simulated";

batchfit_step::listed! {
    /// Where a fit stands.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum FitState {
        /// Waiting for its turn.
        Queued = "queued",
        /// Being computed.
        Running = "running",
        /// Answered: there is a `result`.
        Done = "done",
        /// Could not be answered: there is an `error`.
        Failed = "failed",
        /// It was asked to stop.
        Cancelled = "cancelled",
    }
}

named_in_text!(FitState);

impl FitState {
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

impl Db {
    /// The whole fit.
    pub async fn fit(&self, id: &str) -> Result<Option<Fit>, StoreError> {
        query!("read a fit": fetch_optional Fit, self.pool.on(),
            "SELECT id, state, text AS request,
                      result, error,
                      created_at, started_at,
                      finished_at
                 FROM fit JOIN request ON digest = request_digest WHERE id = $1", id)
    }

    /// The fit's answer, with its question.
    pub async fn fit_answer(&self, id: &str) -> Result<Option<FitAnswer>, StoreError> {
        query!("read an answer": fetch_optional FitAnswer, self.pool.on(),
            "SELECT state, model, text AS request,
                      result
                 FROM fit JOIN request ON digest = request_digest WHERE id = $1", id)
    }

    /// Where the fit stands, without reading the rest of it.
    pub async fn fit_state(&self, id: &str) -> Result<Option<FitState>, StoreError> {
        query!("read the state of a fit": fetch_optional scalar, self.pool.on(),
            "SELECT state FROM fit WHERE id = $1", id)
    }

    /// The newest fit that has answered the question of this fingerprint, by whatever document it was asked; of answers of agents, where
    /// those count, none of a revoked key.
    pub async fn finished_fit(
        &self,
        fingerprint: &str,
        by_agents_too: bool,
    ) -> Result<Option<String>, StoreError> {
        let question = question_of(fingerprint);
        let beyond = format!("{question}~");
        query!("look for an answer": fetch_optional scalar, self.pool.on(),
            "SELECT id FROM fit WHERE fingerprint >= $1 AND fingerprint < $2 AND state = 'done'
                AND (answered_by = '' OR $3 AND answered_by NOT IN (SELECT id FROM api_key WHERE revoked_at IS NOT NULL))
              ORDER BY id DESC LIMIT 1", question, beyond, by_agents_too)
    }

    /// Where the fit stands, and how often it was begun.
    pub async fn fit_attempts(&self, id: &str) -> Result<Option<(FitState, i64)>, StoreError> {
        query!("read the state of a fit": fetch_optional (FitState, i64), self.pool.on(),
            "SELECT state, attempts FROM fit WHERE id = $1", id)
    }

    /// Fits, newest first.
    pub async fn fits(&self, filter: &FitFilter) -> Result<Vec<FitSummary>, StoreError> {
        query!("list fits": fetch_all FitSummary, self.pool.on(),
            "SELECT id, state, model, device,
                      (SELECT micro_batch FROM recommendation WHERE fit_id = fit.id AND rank = 1) AS micro_batch,
                      created_at, started_at,
                      finished_at
                 FROM fit
                WHERE ($1 IS NULL OR state = $1) AND ($2 IS NULL OR id < $2)
                ORDER BY id DESC LIMIT $3", filter.state, filter.before, filter.limit)
    }
}

#[cfg(test)]
mod tests;
