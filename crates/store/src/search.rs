//! The tables of searches that are told from outside, and of what they were told.

use crate::text::by_name;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::engine::query;
use super::text::named_in_text;
use super::{Db, JsonText, StoreError, Time, integer, upload};
use crate::model::Digest;
use batchfit_fit::search::ask_tell::{Observation, Outcome};

batchfit_step::listed! {
    /// Where a search stands.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum SearchState {
        /// There is a batch to try next.
        Active = "active",
        /// There is an answer.
        Done = "done",
        /// It was asked to stop.
        Cancelled = "cancelled",
    }
}

named_in_text!(SearchState);

/// A search, with what it was told.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSearch {
    /// Its name.
    pub id: String,
    /// Where it stood when it was last looked at.
    pub state: SearchState,
    /// What it is for, as JSON.
    pub terms: JsonText,
    /// The API key under which it was begun; empty where none is needed.
    pub owner: String,
    /// When it was asked.
    pub created_at: Time,
    /// When something was last told.
    pub updated_at: Time,
    /// What it was told, in order.
    pub observations: Vec<Observation>,
    /// Its answer, where it is done and was told nothing since.
    pub answer: Option<SearchAnswer>,
}

/// The answer to a search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchAnswer {
    /// What to train with, as JSON.
    pub recommendation: JsonText,
    /// The earlier search whose answer it is.
    pub answered_by: Option<String>,
}

/// A search that found an answer by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct AnsweredSearch {
    /// Its name.
    pub id: String,
    /// What it was for, as JSON.
    pub terms: JsonText,
    /// What to train with, as JSON.
    pub recommendation: JsonText,
    /// When it was last told something.
    pub updated_at: Time,
}

by_name!(AnsweredSearch: id, terms, recommendation, updated_at);

/// How many searches are kept, and how long those without new observations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchBounds {
    /// Searches in all.
    pub searches: u32,
    /// Searches under one key that have no answer.
    pub of_a_key: u32,
    /// Observations of each.
    pub observations: u32,
    /// How long one without an answer may be idle where there are too many, in milliseconds.
    pub contested_ms: i64,
}

/// What became of an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObservationStatus {
    /// It is kept.
    New,
    /// The same one was told before.
    Again,
    /// The search has as many as it may.
    Full,
    /// The search was cancelled.
    Cancelled,
    /// There is no such search.
    Unknown,
}

/// A row of searches.
struct SearchRow {
    id: String,
    state: SearchState,
    terms: JsonText,
    owner: String,
    created_at: Time,
    updated_at: Time,
    recommendation: Option<JsonText>,
    answered_by: Option<String>,
    answered_after: Option<i64>,
}

by_name!(SearchRow: id, state, terms, owner, created_at, updated_at, recommendation, answered_by, answered_after);

impl Db {
    /// Stores a new search. False when there are as many as may be, of which none can go, or as many of its owner.
    ///
    /// Those without an answer go that have been idle since before `idle`. When there are too many, first those that have
    /// ended go, and then those without observations for a while.
    pub async fn add_search(
        &self,
        id: &str,
        (terms, owner): (&JsonText, &str),
        bounds: SearchBounds,
        idle: Time,
        now: Time,
    ) -> Result<bool, StoreError> {
        // Alone: two that begin at once make room for one each.
        let mut transaction = self.pool.begin_alone("begin to store a search").await?;
        query!("drop idle searches": execute, transaction.on(),
            "DELETE FROM search WHERE state <> 'done' AND updated_at < $1", idle)?;
        let most = i64::from(bounds.searches);
        let of_a_key = i64::from(bounds.of_a_key);
        let contested = now.0.saturating_sub(bounds.contested_ms);
        query!("drop the oldest searches": execute, transaction.on(),
            "DELETE FROM search
              WHERE id IN (SELECT id FROM search WHERE state <> 'active' OR updated_at < $2
                            ORDER BY state = 'active', count(*) OVER (PARTITION BY owner) DESC, updated_at
                            LIMIT (SELECT CASE WHEN count(*) + 1 > $1 THEN count(*) + 1 - $1 ELSE 0 END FROM search))",
            most, contested)?;
        query!("drop what no search refers to": execute, transaction.on(),
            "DELETE FROM upload_reference
              WHERE what = 'search' AND NOT EXISTS (SELECT 1 FROM search WHERE search.id = upload_reference.id)")?;
        let added = query!("store a search": execute, transaction.on(),
            "INSERT INTO search (id, state, terms, created_at, updated_at, owner)
             SELECT $1, 'active', $2, $3, $3, $5 WHERE (SELECT count(*) FROM search) < $4
                AND ($5 = '' OR (SELECT count(*) FROM search WHERE owner = $5 AND state = 'active') < $6)",
            id, terms, now, most, owner, of_a_key)?;
        transaction.commit("commit a search").await?;
        Ok(added == 1)
    }

    /// Keeps an observation, once, however many tell it at the same time.
    pub async fn add_observation(
        &self,
        id: &str,
        observation: &Observation,
        bounds: SearchBounds,
        now: Time,
    ) -> Result<ObservationStatus, StoreError> {
        let batch = integer("batch", observation.batch)?;
        let outcome = observation.outcome.name();
        let bytes = observation.peak_reserved_bytes;
        let bytes = bytes
            .map(|bytes| integer("peak_reserved_bytes", bytes))
            .transpose()?;
        let recorded = &observation.recorded;
        let most = i64::from(bounds.observations);
        // Two that are told at once have numbers of their own.
        let mut transaction = self
            .pool
            .begin_alone("begin to keep an observation")
            .await?;
        let added = query!("keep an observation": execute, transaction.on(),
            "INSERT INTO observation (search_id, number, batch, outcome, peak_reserved_bytes, recorded, created_at)
             SELECT id, (SELECT coalesce(max(number), 0) + 1 FROM observation WHERE search_id = $1), $2, $3, $4, $5, $6
               FROM search
              WHERE id = $1 AND state <> 'cancelled'
                AND (SELECT count(*) FROM observation WHERE search_id = $1) < $7
             ON CONFLICT DO NOTHING", id, batch, outcome, bytes, recorded, now, most)?;
        if added == 1 {
            query!("note that a search was told something": execute, transaction.on(),
                "UPDATE search SET updated_at = $2 WHERE id = $1", id, now)?;
            transaction.commit("commit an observation").await?;
            return Ok(ObservationStatus::New);
        }
        // There may be no other connection.
        drop(transaction);
        let state = query!("read the state of a search": fetch_optional scalar, self.pool.on(),
                "SELECT state FROM search WHERE id = $1", id)?;
        match state {
            None => return Ok(ObservationStatus::Unknown),
            Some(SearchState::Cancelled) => return Ok(ObservationStatus::Cancelled),
            Some(SearchState::Active | SearchState::Done) => {}
        }
        let same: Option<i64> = query!("find the same observation": fetch_optional scalar, self.pool.on(),
            "SELECT number FROM observation
              WHERE search_id = $1 AND batch = $2 AND outcome = $3
                AND coalesce(peak_reserved_bytes, 0) = coalesce($4, 0) AND coalesce(recorded, '') = coalesce($5, '')",
            id, batch, outcome, bytes, recorded)?;
        Ok(if same.is_some() {
            ObservationStatus::Again
        } else {
            ObservationStatus::Full
        })
    }

    /// Notes that a search needs a recording, before it is told of it. False when there is none.
    pub async fn refer_search(&self, id: &str, recorded: &Digest) -> Result<bool, StoreError> {
        let mut transaction = self
            .pool
            .begin_alone("begin to refer to a recording")
            .await?;
        let referred = upload::refer(&mut transaction, recorded, "search", id).await?;
        transaction.commit("commit what a search refers to").await?;
        Ok(referred)
    }

    /// The whole search.
    pub async fn search(&self, id: &str) -> Result<Option<StoredSearch>, StoreError> {
        let search = query!("read a search": fetch_optional SearchRow, self.pool.on(),
                "SELECT id, state, terms, owner, created_at,
                      updated_at, recommendation, answered_by,
                      answered_after
                 FROM search WHERE id = $1", id)?;
        let Some(search) = search else {
            return Ok(None);
        };
        let rows = query!("read what a search was told": fetch_all _, self.pool.on(),
            "SELECT batch, outcome, peak_reserved_bytes, recorded FROM observation WHERE search_id = $1 ORDER BY number", id)?;
        Ok(Some(StoredSearch {
            id: search.id,
            state: search.state,
            terms: search.terms,
            owner: search.owner,
            created_at: search.created_at,
            updated_at: search.updated_at,
            answer: search
                .recommendation
                .filter(|_| search.answered_after == i64::try_from(rows.len()).ok())
                .map(|recommendation| SearchAnswer {
                    recommendation,
                    answered_by: search.answered_by,
                }),
            observations: rows.into_iter().map(observation).collect(),
        }))
    }

    /// Searches of this owner that found an answer by themselves and were told this recording of this batch, the latest first.
    pub async fn answered_searches(
        &self,
        (batch, recorded): (u64, &str),
        owner: &str,
    ) -> Result<Vec<AnsweredSearch>, StoreError> {
        let batch = integer("batch", batch)?;
        query!("look for an answer that is there": fetch_all AnsweredSearch, self.pool.on(),
            "SELECT search.id, terms, recommendation,
                      updated_at
                 FROM observation JOIN search ON search.id = observation.search_id
                WHERE observation.recorded = $1 AND observation.batch = $2
                  AND search.owner = $3 AND search.state = 'done' AND recommendation IS NOT NULL AND answered_by IS NULL
                ORDER BY updated_at DESC, search.id DESC LIMIT 64", recorded, batch, owner)
    }

    /// Notes where a search stands after so many observations, and its answer where it has one, unless it was told more
    /// meanwhile or cancelled.
    pub async fn note_search(
        &self,
        id: &str,
        state: SearchState,
        answer: Option<&SearchAnswer>,
        observations: usize,
    ) -> Result<(), StoreError> {
        let told = i64::try_from(observations).unwrap_or(i64::MAX);
        let recommendation = answer.map(|answer| &answer.recommendation);
        let answered_by = answer.and_then(|answer| answer.answered_by.as_ref());
        let answered_after = answer.map(|_| told);
        query!("note where a search stands": execute, self.pool.writing(),
            "UPDATE search SET state = $2, recommendation = $4, answered_by = $5, answered_after = $6
              WHERE id = $1 AND state <> 'cancelled'
                AND (SELECT count(*) FROM observation WHERE search_id = $1) = $3",
            id, state, told, recommendation, answered_by, answered_after).map(|_| ())
    }

    /// Ends a search that has no answer yet. False when there is none, or none such.
    pub async fn cancel_search(&self, id: &str, now: Time) -> Result<bool, StoreError> {
        query!("cancel a search": execute, self.pool.writing(),
            "UPDATE search SET state = 'cancelled', updated_at = $2 WHERE id = $1 AND state = 'active'", id, now).map(|done| done == 1)
    }
}

fn observation(
    (batch, outcome, peak, recorded): (i64, String, Option<i64>, Option<String>),
) -> Observation {
    Observation {
        batch: batch.unsigned_abs(),
        // The table takes no other name.
        outcome: Outcome::named(&outcome).unwrap_or(Outcome::Crashed),
        peak_reserved_bytes: peak.map(i64::unsigned_abs),
        recorded,
    }
}
