//! The tables of outcomes, what trainings that followed a recommendation came to, and of what was learnt from them.

mod learning;
mod learnt;
#[cfg(test)]
mod tests;

use crate::text::by_name;
use serde_json::Value;
use sqlx::types::Json;

use super::engine::{Transaction, query};
use super::{Db, JsonText, StoreError, Time, integer};
use crate::units::Share;
use batchfit_fit::search::headroom::{Doubts, RejectReason, Sample, TrainingRun};
pub(crate) use learning::share;
use learning::{DroppedRow, learn};
pub use learnt::LearntOn;
pub(crate) use learnt::Lessons;

/// Most outcomes that are kept of a recommendation; the oldest make room.
const MOST_OF_ONE: i64 = 1000;

/// Most outcomes that are kept in all.
const MOST: i64 = 100_000;

/// They are counted once for so many new ones.
const COUNTED_EACH: i64 = 256;

/// An outcome to be kept.
#[derive(Debug, Clone)]
pub struct NewOutcome {
    /// The recommendation that was followed.
    pub recommendation_id: String,
    /// What was seen.
    pub seen: TrainingRun,
    /// Where it ran, as it was told.
    pub environment: JsonText,
    /// What is learnt of it, and about what, or why nothing is.
    pub learning: Result<Learning, RejectReason>,
    /// The API key under which it was told; empty where none is needed.
    pub owner: String,
    /// The name that the client gave it, and the SHA-256 of what was told.
    pub named: Option<(String, String)>,
    /// Now.
    pub created_at: Time,
}

/// What is learnt of an outcome.
#[derive(Debug, Clone)]
pub struct Learning {
    /// The lesson.
    pub lesson: Sample,
    /// What answers it is about.
    pub on: LearntOn,
    /// Of which model, trained how: [`way`](batchfit_fit::search::headroom::way), or the model's digest alone where an earlier version
    /// answered.
    pub way: String,
    /// What a person calls the model.
    pub model: String,
    /// What the answer leaves free by itself.
    pub doubts: Doubts,
    /// What it left free in all.
    pub headroom: Share,
    /// What it left free because of other models, where nothing was learnt before: where keys are needed that confirms nothing.
    pub of_others: Share,
    /// How far the peak was above the predicted one, in millionths of that, where that was compared.
    pub error: Option<i64>,
}

/// An outcome that is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredOutcome {
    /// Its place in the order in which outcomes were told.
    pub number: i64,
    /// Samples per micro-step on one GPU.
    pub batch: i64,
    /// How it ended.
    pub outcome: String,
    /// Most bytes reserved, where that was measured.
    pub peak_reserved_bytes: Option<i64>,
    /// How often the allocator asked again.
    pub retries: Option<i64>,
    /// Optimizer steps.
    pub steps: Option<i64>,
    /// Where it ran, as it was told.
    pub environment: Json<Value>,
    /// Why nothing was learnt of it.
    pub doubt: Option<String>,
    /// What was left free of answers like this before it, in millionths of the limit.
    pub headroom_before: Option<i64>,
    /// And after it.
    pub headroom_after: Option<i64>,
    /// When it was told.
    pub created_at: Time,
}

by_name!(StoredOutcome: number, batch, outcome, peak_reserved_bytes, retries, steps, environment, doubt, headroom_before, headroom_after, created_at);

/// What became of an outcome.
#[derive(Debug, Clone, PartialEq)]
pub enum OutcomeKept<T = StoredOutcome> {
    /// It is kept.
    New(T),
    /// It was told before, under the same name.
    Again(T),
    /// Another one was told under this name.
    NameTaken,
    /// There is no such recommendation.
    Unknown,
}

/// What was learnt about one model on one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLearnt {
    /// Its place in the list.
    pub id: i64,
    /// The model, as a person calls it.
    pub model: String,
    /// The answers that it is about.
    pub on: LearntOn,
    /// What is left free, in millionths of the limit.
    pub share: i64,
    /// Whether it has sunk.
    pub has_sunk: bool,
    /// Outcomes in a row that agree.
    pub agreed: i64,
    /// Outcomes that were learnt from.
    pub outcomes: i64,
    /// Those that needed more than was known.
    pub misses: i64,
    /// Those that ran out of memory or had to retry.
    pub refused: i64,
    /// Peaks that were compared.
    pub peaks: i64,
    /// The sum of how far they were above the prediction, in millionths of it.
    pub error_sum: i64,
    /// The largest of these.
    pub error_most: i64,
    /// When something was last told.
    pub updated_at: Time,
}

by_name!(StoredLearnt: id, model, share, has_sunk, agreed, outcomes, misses, refused, peaks, error_sum, error_most, updated_at and on);

/// What was learnt in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LearntCount {
    /// Models on cards of which something is known.
    pub models: i64,
    /// Outcomes that were learnt from.
    pub outcomes: i64,
    /// How many of them were misses.
    pub misses: i64,
    /// Outcomes of which nothing was learnt.
    pub doubted: i64,
}

by_name!(LearntCount: models, outcomes, misses, doubted);

impl Db {
    /// Keeps an outcome, and what is learnt of it, all or nothing.
    pub async fn add_outcome(&self, new: &NewOutcome) -> Result<OutcomeKept, StoreError> {
        self.in_place()?;
        let mut transaction = self.pool.begin_alone("begin to keep an outcome").await?;
        let Added { kept, dropped } = add_on(&mut transaction, new).await?;
        transaction.commit("commit an outcome").await?;
        for DroppedRow {
            on,
            model_digest: way,
        } in &dropped
        {
            self.lessons.forget(on, way);
        }
        // The next reader reads it where this cannot.
        let _ = self.read_learnt().await;
        Ok(kept)
    }

    /// Outcomes of a recommendation, newest first: at most `limit`, before the one of this number.
    pub async fn outcomes(
        &self,
        recommendation_id: &str,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<StoredOutcome>, StoreError> {
        query!("list outcomes": fetch_all StoredOutcome, self.pool.on(),
            "SELECT outcome.number, batch, outcome, peak_reserved_bytes, retries, steps,
                      environment, doubt, headroom_before, headroom_after,
                      outcome.created_at
                 FROM outcome
                WHERE recommendation = (SELECT number FROM recommendation WHERE id = $1)
                  AND ($2 IS NULL OR outcome.number < $2)
                ORDER BY outcome.number DESC LIMIT $3", recommendation_id, before, limit)
    }

    /// What was learnt, one model on one card after the other in the order in which they were first told of: at most `limit`, after
    /// the one of this id, on this card alone where one is named.
    pub async fn learnt_rows(
        &self,
        gpu: Option<&str>,
        after: Option<i64>,
        limit: i64,
    ) -> Result<Vec<StoredLearnt>, StoreError> {
        // A line for all ways to train a model.
        query!("list what was learnt": fetch_all StoredLearnt, self.pool.on(),
            "SELECT min(id) AS id, min(model) AS model, gpu, source, strategy, driver, pytorch, max(share) AS share,
                      max(CASE WHEN has_sunk THEN 1 ELSE 0 END) = 1 AS has_sunk, max(agreed) AS agreed,
                      CAST(sum(outcomes) AS BIGINT) AS outcomes, CAST(sum(misses) AS BIGINT) AS misses,
                      CAST(sum(refused) AS BIGINT) AS refused, CAST(sum(peaks) AS BIGINT) AS peaks,
                      CAST(sum(error_sum) AS BIGINT) AS error_sum, max(error_most) AS error_most, max(updated_at) AS updated_at
                 FROM learnt
                WHERE ($1 IS NULL OR gpu = $1)
                GROUP BY substr(model_digest, 1, 16), gpu, source, strategy, driver, pytorch
               HAVING ($2 IS NULL OR min(id) > $2)
                ORDER BY min(id) LIMIT $3", gpu, after, limit)
    }

    /// What was learnt in all.
    pub async fn learnt_count(&self) -> Result<LearntCount, StoreError> {
        query!("count what was learnt": fetch_one LearntCount, self.pool.on(),
            "SELECT count(*) AS models, CAST(coalesce(sum(outcomes), 0) AS BIGINT) AS outcomes,
                      CAST(coalesce(sum(misses), 0) AS BIGINT) AS misses,
                      (SELECT doubted FROM outcome_count) AS doubted
                 FROM learnt")
    }

    /// The recommendation of this id, or the first of the fit of this id.
    pub async fn recommendation_named(&self, id: &str) -> Result<Option<String>, StoreError> {
        query!("look for a recommendation": fetch_optional scalar, self.pool.on(),
            "SELECT id FROM recommendation WHERE id = $1 OR (fit_id = $1 AND rank = 1) LIMIT 1", id)
    }
}

/// What came of a transaction.
struct Added {
    kept: OutcomeKept,
    /// What had to make room: ways to train on a card.
    dropped: Vec<DroppedRow>,
}

impl From<OutcomeKept> for Added {
    fn from(kept: OutcomeKept) -> Added {
        Added {
            kept,
            dropped: Vec::new(),
        }
    }
}

async fn add_on(transaction: &mut Transaction, new: &NewOutcome) -> Result<Added, StoreError> {
    // What it is about, and the key of the agent that answered it, if one did.
    let followed = query!("look for the recommendation of an outcome": fetch_optional (i64, String), transaction.on(),
        "SELECT recommendation.number AS number, answered_by FROM recommendation JOIN fit ON fit.id = fit_id WHERE recommendation.id = $1",
        new.recommendation_id)?;
    let Some((recommendation, answered_by)) = followed else {
        return Ok(OutcomeKept::Unknown.into());
    };
    let (name, body) = match &new.named {
        Some((name, body)) => (Some(name), Some(body)),
        None => (None, None),
    };
    if let Some(name) = name {
        let before = query!("look for an outcome by its name": fetch_optional (i64, Option<String>, i64), transaction.on(),
            "SELECT number, body, recommendation FROM outcome WHERE owner = $1 AND key = $2", new.owner, name)?;
        if let Some((number, told, of)) = before {
            let is_same = told.as_ref() == body && of == recommendation;
            if !is_same {
                return Ok(OutcomeKept::NameTaken.into());
            }
            return Ok(OutcomeKept::Again(stored(transaction, number).await?).into());
        }
    }
    let (shares, dropped) = if let Ok(learning) = &new.learning {
        let owner = match new.owner.as_str() {
            "" => String::new(),
            owner if answered_by.is_empty() || answered_by == owner => owner.to_owned(),
            owner => format!("{owner}/{answered_by}"),
        };
        // Which doubts an agent has is its word.
        let mut doubts = learning.doubts.clone();
        if !answered_by.is_empty() {
            doubts = doubts.within(learning.headroom);
        }
        let learning = Learning {
            doubts,
            ..learning.clone()
        };
        let ([before, after], dropped) =
            learn(transaction, &learning, &owner, new.created_at).await?;
        (Some((before.0, after.0)), dropped)
    } else {
        query!("count an outcome": execute, transaction.on(), "UPDATE outcome_count SET doubted = doubted + 1")?;
        (None, Vec::new())
    };
    let (before, after) = shares
        .map(|(before, after)| (i64::from(before), i64::from(after)))
        .unzip();
    let seen = &new.seen;
    let batch = integer("batch", seen.batch)?;
    let outcome = seen.outcome.name();
    let whole = |column, number: Option<u64>| number.map(|it| integer(column, it)).transpose();
    let peak = whole(
        "peak_reserved_bytes",
        seen.peak_reserved.map(|bytes| bytes.0),
    )?;
    let retries = whole("retries", seen.retries)?;
    let steps = whole("steps", seen.steps)?;
    let doubt = new.learning.as_ref().err().map(|doubt| doubt.name());
    let number = query!("keep an outcome": fetch_one scalar, transaction.on(),
        "INSERT INTO outcome (recommendation, batch, outcome, peak_reserved_bytes, retries, steps, environment, doubt,
                              headroom_before, headroom_after, owner, key, body, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
         RETURNING number",
        recommendation, batch, outcome, peak, retries, steps, new.environment, doubt, before, after, new.owner, name,
        body, new.created_at)?;
    make_room(transaction, recommendation, number).await?;
    Ok(Added {
        kept: OutcomeKept::New(stored(transaction, number).await?),
        dropped,
    })
}

/// Drops outcomes where there are too many: the oldest of the key that told most, so that one key pushes out its own.
async fn make_room(
    transaction: &mut Transaction,
    recommendation: i64,
    number: i64,
) -> Result<(), StoreError> {
    query!("drop the oldest outcomes of a recommendation": execute, transaction.on(),
        "DELETE FROM outcome WHERE number IN
            (SELECT number FROM outcome
               JOIN (SELECT owner, count(*) AS many FROM outcome WHERE recommendation = $1 GROUP BY owner) AS room ON room.owner = outcome.owner
              WHERE recommendation = $1 ORDER BY many DESC, number
              LIMIT (SELECT CASE WHEN count(*) > $2 THEN count(*) - $2 ELSE 0 END FROM outcome WHERE recommendation = $1))",
        recommendation, MOST_OF_ONE)?;
    // All are counted now and then.
    if number % COUNTED_EACH != 0 {
        return Ok(());
    }
    query!("drop the oldest outcomes": execute, transaction.on(),
        "DELETE FROM outcome WHERE number IN
            (SELECT number FROM outcome
               JOIN (SELECT owner, count(*) AS many FROM outcome GROUP BY owner) AS room ON room.owner = outcome.owner
              ORDER BY many DESC, number
              LIMIT (SELECT CASE WHEN count(*) > $1 THEN count(*) - $1 ELSE 0 END FROM outcome))", MOST).map(|_| ())
}

async fn stored(transaction: &mut Transaction, number: i64) -> Result<StoredOutcome, StoreError> {
    query!("read an outcome": fetch_one StoredOutcome, transaction.on(),
        "SELECT number, batch, outcome, peak_reserved_bytes, retries, steps, environment, doubt,
                  headroom_before, headroom_after, created_at
             FROM outcome WHERE number = $1", number)
}
