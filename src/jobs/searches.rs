//! Searches whose batches somebody else runs.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::document::{chance, json};
use super::{EngineError, JobError, Jobs};
use crate::model::{Digest, Invalid, UploadKind};
use crate::search::conversation::{Conversation, Observation, Predicted, Recommended, Said, Terms};
use crate::store::{
    Db, Ids, JsonText, Noted, SearchBounds, SearchState, StoreError, StoredSearch, Time,
};

const HOUR_MS: i64 = 60 * 60 * 1000;

/// What may be kept. A search takes a few dozen runs; one of two weeks ago without a word since is nobody's any more.
const BOUNDS: SearchBounds = SearchBounds {
    searches: 10_000,
    observations: 500,
    idle_ms: 14 * 24 * HOUR_MS,
    contested_ms: HOUR_MS,
};

/// A search: the body of `GET /v1/searches/{id}` and the output of `search --json`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct SearchDocument {
    /// Its name; `/v1/searches/{id}` leads back to it.
    #[schema(example = "1mk3v7q0h5c2d8xw")]
    pub id: String,
    /// Where it stands.
    pub state: SearchState,
    /// The batch to run next; null when there is an answer, or the search was cancelled.
    #[schema(minimum = 1)]
    pub next_batch: Option<u64>,
    /// The answer, when it is done; what is known so far, when it was cancelled.
    pub recommendation: Option<Recommended>,
    /// What it is for.
    pub request: Terms,
    /// What it was told, in order.
    pub observations: Vec<Observation>,
    /// When it was asked.
    pub created_at: Time,
    /// When something was last told.
    pub updated_at: Time,
}

/// What became of an observation.
#[derive(Debug, Clone, PartialEq)]
pub enum Telling {
    /// It is kept.
    New(Box<SearchDocument>),
    /// The same one was told before.
    Again(Box<SearchDocument>),
    /// The search has as many as it may, so many.
    Full(u32),
    /// The search was cancelled.
    Cancelled,
    /// There is no such search.
    Unknown,
}

/// What came of the wish to cancel a search.
#[derive(Debug, Clone, PartialEq)]
pub enum SearchCancellation {
    /// It is cancelled, now or since earlier.
    Cancelled(Box<SearchDocument>),
    /// It was done before.
    TooLate,
    /// There is no such search.
    Unknown,
}

impl SearchDocument {
    /// The document of a search that was led here and now; `random` goes into its id.
    pub fn led(
        conversation: &Conversation,
        said: Said,
        created_at: Time,
        updated_at: Time,
        random: u64,
    ) -> SearchDocument {
        let id = Ids::default().next(created_at, random);
        // Without an answer nobody goes on with it.
        let state = match said.next_batch {
            None => SearchState::Done,
            Some(_) => SearchState::Cancelled,
        };
        SearchDocument::of(id, state, conversation, said, created_at, updated_at)
    }

    fn of(
        id: String,
        state: SearchState,
        conversation: &Conversation,
        said: Said,
        created_at: Time,
        updated_at: Time,
    ) -> SearchDocument {
        let is_active = state == SearchState::Active;
        SearchDocument {
            id,
            state,
            next_batch: said.next_batch.filter(|_| is_active),
            recommendation: (!is_active).then_some(said.recommendation),
            request: conversation.terms().clone(),
            observations: conversation.told().to_vec(),
            created_at,
            updated_at,
        }
    }
}

/// Stores a search that was led outside the service.
pub async fn record_search(db: &Db, document: &SearchDocument) -> Result<(), JobError> {
    let terms = terms(&document.request);
    db.add_search(&document.id, &terms, BOUNDS, document.created_at)
        .await?;
    for observation in &document.observations {
        db.add_observation(&document.id, observation, BOUNDS, document.updated_at)
            .await?;
    }
    let told = document.observations.len();
    db.note_search(&document.id, document.state, told).await?;
    Ok(())
}

impl Jobs {
    /// Begins a search.
    pub async fn create_search(&self, request: Terms) -> Result<SearchDocument, JobError> {
        let now = Time::from(Timestamp::now());
        let id = self.shared.ids.next(now, chance());
        let stored = terms(&request);
        let db = &self.shared.db;
        if !db.add_search(&id, &stored, BOUNDS, now).await? {
            let most = BOUNDS.searches;
            return Err(JobError::TooManySearches { most });
        }
        let stored = StoredSearch {
            id,
            state: SearchState::Active,
            terms: stored,
            created_at: now,
            updated_at: now,
            observations: Vec::new(),
        };
        let begun = self
            .on_thread("search", move |_| document(stored, None))
            .await?;
        Ok(begun?)
    }

    /// Tells a search what somebody saw.
    pub async fn tell_search(
        &self,
        id: &str,
        observation: &Observation,
    ) -> Result<Telling, JobError> {
        let now = Time::from(Timestamp::now());
        let db = &self.shared.db;
        let observation = &self.with_recording(id, observation.clone()).await?;
        if let (Some(_), Some(stored)) = (&observation.recorded, db.search(id).await?) {
            // A recording of another program is refused, before it is kept.
            let mut told = stored.observations.clone();
            told.push(observation.clone());
            self.predicted(&stored_terms(&stored)?, &told).await?;
        }
        let kept = db.add_observation(id, observation, BOUNDS, now).await?;
        let is_new = match kept {
            Noted::New => true,
            Noted::Again => false,
            Noted::Full => return Ok(Telling::Full(BOUNDS.observations)),
            Noted::Cancelled => return Ok(Telling::Cancelled),
            Noted::Unknown => return Ok(Telling::Unknown),
        };
        Ok(match self.search(id).await?.map(Box::new) {
            None => Telling::Unknown,
            Some(search) if is_new => Telling::New(search),
            Some(search) => Telling::Again(search),
        })
    }

    /// The observation, whose recording is there and stays there as long as the search needs it. It is named by its
    /// contents from then on: the same file compressed otherwise is the same recording.
    async fn with_recording(
        &self,
        id: &str,
        observation: Observation,
    ) -> Result<Observation, JobError> {
        let Some(recorded) = observation.recorded.as_deref().and_then(Digest::parse) else {
            return Ok(observation);
        };
        let db = &self.shared.db;
        let wrong = |problem: String| {
            let given = Value::from(recorded.to_string());
            let invalid = Invalid::at("/recorded", problem).with_value(&given);
            JobError::Engine(EngineError::Invalid(invalid))
        };
        let missing = || {
            wrong(format!(
                "there is no upload {recorded}, or it has expired; send the file with PUT /v1/graphs/{recorded}, or POST \
                 /v1/graphs, and tell it again"
            ))
        };
        let upload = db.upload(&recorded).await?.ok_or_else(missing)?;
        if upload.kind != UploadKind::Recorded {
            return Err(wrong(format!("{recorded} is no recording")));
        }
        if !db.refer_search(id, &upload.digest).await? {
            return Err(missing());
        }
        Ok(Observation {
            recorded: Some(upload.digest.to_string()),
            ..observation
        })
    }

    /// The search, with what comes next.
    pub async fn search(&self, id: &str) -> Result<Option<SearchDocument>, JobError> {
        let Some(stored) = self.shared.db.search(id).await? else {
            return Ok(None);
        };
        let was = stored.state;
        let predicted = match stored.state {
            SearchState::Cancelled => None,
            SearchState::Active | SearchState::Done => {
                self.predicted(&stored_terms(&stored)?, &stored.observations)
                    .await?
            }
        };
        let document = self
            .on_thread("search", move |_| document(stored, predicted.as_ref()))
            .await??;
        if document.state != was {
            let told = document.observations.len();
            self.shared.db.note_search(id, document.state, told).await?;
        }
        Ok(Some(document))
    }

    /// Stops a search that has no answer yet.
    pub async fn cancel_search(&self, id: &str) -> Result<SearchCancellation, JobError> {
        let now = Time::from(Timestamp::now());
        self.shared.db.cancel_search(id, now).await?;
        Ok(match self.search(id).await? {
            None => SearchCancellation::Unknown,
            Some(search) if search.state == SearchState::Cancelled => {
                SearchCancellation::Cancelled(Box::new(search))
            }
            Some(_) => SearchCancellation::TooLate,
        })
    }
}

/// What a stored search comes to. Not on the threads that serve connections: the plans for a large target take
/// milliseconds.
fn document(
    stored: StoredSearch,
    predicted: Option<&Predicted>,
) -> Result<SearchDocument, StoreError> {
    let conversation = Conversation::of(stored_terms(&stored)?, stored.observations);
    let said = conversation.says(predicted);
    let state = match (stored.state, said.next_batch) {
        (SearchState::Cancelled, _) => SearchState::Cancelled,
        (SearchState::Active | SearchState::Done, Some(_)) => SearchState::Active,
        (SearchState::Active | SearchState::Done, None) => SearchState::Done,
    };
    Ok(SearchDocument::of(
        stored.id,
        state,
        &conversation,
        said,
        stored.created_at,
        stored.updated_at,
    ))
}

/// The terms of a stored search.
fn stored_terms(stored: &StoredSearch) -> Result<Terms, StoreError> {
    let unreadable = |problem: String| StoreError::Unreadable {
        what: "the terms of a search",
        problem,
    };
    let terms: Value = serde_json::from_str(stored.terms.as_str())
        .map_err(|error| unreadable(error.to_string()))?;
    Terms::parse(&terms).map_err(|invalid: Invalid| unreadable(invalid.to_string()))
}

/// The terms as they are stored.
fn terms(terms: &Terms) -> JsonText {
    JsonText::from(json(terms).to_string().as_str())
}
