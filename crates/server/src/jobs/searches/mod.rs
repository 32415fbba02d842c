//! Ask/tell searches: the client runs the batches.

pub(in crate::jobs) mod predicted;

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::clock::Clock;
use super::document::json;
use super::uploads::about;
use super::{EngineError, JobError, Jobs};
use crate::model::{Digest, RequestError, UploadKind};
use crate::store::{
    Db, Ids, JsonText, ObservationStatus, SearchAnswer, SearchBounds, SearchState, StoreError,
    StoredSearch, Time,
};
use batchfit_fit::search::ask_tell::{
    AskTell, Observation, Outcome, Prediction, Proposal, Recommended, SearchRequest,
};

const HOUR_MS: i64 = 60 * 60 * 1000;

/// How long a search without an answer is kept: one that is two weeks old without an observation since is abandoned.
const IDLE: Duration = Duration::from_hours(14 * 24);

/// What may be kept. A search takes a few dozen runs.
const BOUNDS: SearchBounds = SearchBounds {
    searches: 10_000,
    of_a_key: 1_000,
    observations: 500,
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
    /// The id of an earlier search whose answer this is: it was told the same recording of the same batch. Null otherwise.
    pub answered_by: Option<String>,
    /// What it is for.
    pub request: SearchRequest,
    /// What it was told, in order.
    pub observations: Vec<Observation>,
    /// When it was asked.
    pub created_at: Time,
    /// When something was last told.
    pub updated_at: Time,
}

/// What became of an observation.
#[derive(Debug, Clone, PartialEq)]
pub enum ObservationReply {
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
    /// The document of a search that was led here and now.
    pub fn led(
        conversation: &AskTell,
        said: Proposal,
        created_at: Time,
        updated_at: Time,
    ) -> SearchDocument {
        let id = Ids::default().next(created_at);
        // Without an answer it cannot go on.
        let state = match said.next_batch {
            None => SearchState::Done,
            Some(_) => SearchState::Cancelled,
        };
        SearchDocument::of(id, state, conversation, said, created_at, updated_at)
    }

    fn of(
        id: String,
        state: SearchState,
        conversation: &AskTell,
        said: Proposal,
        created_at: Time,
        updated_at: Time,
    ) -> SearchDocument {
        let is_active = state == SearchState::Active;
        SearchDocument {
            id,
            state,
            next_batch: said.next_batch.filter(|_| is_active),
            recommendation: (!is_active).then_some(said.recommendation),
            answered_by: None,
            request: conversation.terms().clone(),
            observations: conversation.observations().to_vec(),
            created_at,
            updated_at,
        }
    }
}

/// Stores a search that was led outside the service.
pub async fn record_search(db: &Db, document: &SearchDocument) -> Result<(), JobError> {
    let terms = terms(&document.request);
    let idle = Clock::since(db.last_noted().await?).older_than(IDLE, db.now());
    db.add_search(
        &document.id,
        (&terms, ""),
        BOUNDS,
        idle,
        document.created_at,
    )
    .await?;
    for observation in &document.observations {
        db.add_observation(&document.id, observation, BOUNDS, document.updated_at)
            .await?;
    }
    note(db, document).await
}

/// Notes where a search stands, and its answer where it has one.
async fn note(db: &Db, document: &SearchDocument) -> Result<(), JobError> {
    let found = document.recommendation.as_ref();
    let found = found.filter(|_| document.state == SearchState::Done);
    let answer = found.map(|found| SearchAnswer {
        recommendation: JsonText::from(json(found).to_string().as_str()),
        answered_by: document.answered_by.clone(),
    });
    let told = document.observations.len();
    db.note_search(&document.id, document.state, answer.as_ref(), told)
        .await?;
    Ok(())
}

impl Jobs {
    /// Begins a search, under an API key; empty where none is needed.
    pub async fn create_search(
        &self,
        request: SearchRequest,
        owner: &str,
    ) -> Result<SearchDocument, JobError> {
        let now = self.shared.db.now();
        let id = self.shared.ids.next(now);
        let stored = terms(&request);
        let db = &self.shared.db;
        let idle = self.shared.clock.older_than(IDLE, now);
        let new = (&stored, owner);
        if !db.add_search(&id, new, BOUNDS, idle, now).await? {
            let most = if owner.is_empty() {
                BOUNDS.searches
            } else {
                BOUNDS.of_a_key
            };
            return Err(JobError::TooManySearches(most));
        }
        let stored = StoredSearch {
            id,
            state: SearchState::Active,
            terms: stored,
            owner: owner.to_owned(),
            created_at: now,
            updated_at: now,
            observations: Vec::new(),
            answer: None,
        };
        let begun = self
            .on_thread("search", move |_| document(stored, None))
            .await?;
        Ok(begun?)
    }

    /// Adds an observation to a search; where an owner is named, to one of that owner's.
    pub async fn tell_search(
        &self,
        id: &str,
        owner: Option<&str>,
        observation: &Observation,
    ) -> Result<ObservationReply, JobError> {
        let now = self.shared.db.now();
        let db = &self.shared.db;
        if self.own_search(id, owner).await?.is_none() {
            return Ok(ObservationReply::Unknown);
        }
        let observation = &self.with_recording(id, observation.clone()).await?;
        let mut prediction = None;
        if let (Some(_), Some(stored)) = (&observation.recorded, db.search(id).await?) {
            let terms = stored_terms(&stored)?;
            let earlier = self.earlier(&stored, &terms, observation).await?;
            if let Some(earlier) = earlier {
                let kept = db.add_observation(id, observation, BOUNDS, now).await?;
                let answer = Some(&earlier);
                db.note_search(id, SearchState::Done, answer, 1).await?;
                return self.observation_reply(id, kept, None).await;
            }
            // A recording of another program is refused, before it is kept.
            let mut told = stored.observations;
            if !told.contains(observation) {
                told.push(observation.clone());
            }
            let predicted = self.prediction(&terms, &told, &stored.owner).await?;
            prediction = Some((predicted, told));
        }
        let kept = db.add_observation(id, observation, BOUNDS, now).await?;
        self.observation_reply(id, kept, prediction).await
    }

    /// What became of an observation; what is foreseen is so after these observations.
    async fn observation_reply(
        &self,
        id: &str,
        kept: ObservationStatus,
        prediction: Option<(Option<Prediction>, Vec<Observation>)>,
    ) -> Result<ObservationReply, JobError> {
        let is_new = match kept {
            ObservationStatus::New => true,
            ObservationStatus::Again => false,
            ObservationStatus::Full => return Ok(ObservationReply::Full(BOUNDS.observations)),
            ObservationStatus::Cancelled => return Ok(ObservationReply::Cancelled),
            ObservationStatus::Unknown => return Ok(ObservationReply::Unknown),
        };
        Ok(
            match self
                .search_as_predicted(id, prediction)
                .await?
                .map(Box::new)
            {
                None => ObservationReply::Unknown,
                Some(search) if is_new => ObservationReply::New(search),
                Some(search) => ObservationReply::Again(search),
            },
        )
    }

    /// The answer of an earlier search that was told the same recording of the same batch, where that is the first one that
    /// this search is told.
    async fn earlier(
        &self,
        search: &StoredSearch,
        terms: &SearchRequest,
        observation: &Observation,
    ) -> Result<Option<SearchAnswer>, JobError> {
        let Some(recorded) = &observation.recorded else {
            return Ok(None);
        };
        let is_first = search.state == SearchState::Active && search.observations.is_empty();
        if terms.fresh || !is_first || observation.outcome != Outcome::Fits {
            return Ok(None);
        }
        let told = (observation.batch, recorded.as_str());
        for earlier in self
            .shared
            .db
            .answered_searches(told, &search.owner)
            .await?
        {
            let Ok(asked) = read_terms(&earlier.terms) else {
                continue;
            };
            let found = serde_json::from_str::<Recommended>(earlier.recommendation.as_str());
            let Ok(mut found) = found else {
                continue;
            };
            if found.micro_batch > 0 && terms.is_answered_by(&asked) {
                let day = Timestamp::from_millisecond(earlier.updated_at.0).unwrap_or_default();
                found.notes.push(format!(
                    "answered by search {} of {}, which was told the same recording; `fresh` asks for the work all the same",
                    earlier.id,
                    day.strftime("%Y-%m-%d")
                ));
                return Ok(Some(SearchAnswer {
                    recommendation: JsonText::from(json(&found).to_string().as_str()),
                    answered_by: Some(earlier.id),
                }));
            }
        }
        Ok(None)
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
            let invalid = RequestError::at("/recorded", problem).with_value(&given);
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
        let batch = about(&upload).batch;
        if let Some(batch) = batch.filter(|batch| *batch != observation.batch) {
            let told = observation.batch;
            return Err(wrong(format!(
                "the recording is of batch {batch}, not {told}"
            )));
        }
        if !db.refer_search(id, &upload.digest).await? {
            return Err(missing());
        }
        Ok(Observation {
            recorded: Some(upload.digest.to_string()),
            ..observation
        })
    }

    /// The search, with what comes next; where an owner is named, one of theirs.
    pub async fn search(
        &self,
        id: &str,
        owner: Option<&str>,
    ) -> Result<Option<SearchDocument>, JobError> {
        match self.own_search(id, owner).await? {
            None => Ok(None),
            Some(_) => self.search_as_predicted(id, None).await,
        }
    }

    /// The search as it is stored. What others have is as if it were not there.
    async fn own_search(
        &self,
        id: &str,
        owner: Option<&str>,
    ) -> Result<Option<StoredSearch>, StoreError> {
        let stored = self.shared.db.search(id).await?;
        Ok(stored.filter(|search| owner.is_none_or(|owner| search.owner == owner)))
    }

    /// The same, where what is foreseen after these observations is known.
    async fn search_as_predicted(
        &self,
        id: &str,
        prediction: Option<(Option<Prediction>, Vec<Observation>)>,
    ) -> Result<Option<SearchDocument>, JobError> {
        let Some(stored) = self.shared.db.search(id).await? else {
            return Ok(None);
        };
        let (was, was_answered) = (stored.state, stored.answer.is_some());
        let prediction = match (stored.state, prediction) {
            _ if was_answered => None,
            (SearchState::Cancelled, _) => None,
            (_, Some((prediction, told))) if told == stored.observations => prediction,
            (SearchState::Active | SearchState::Done, _) => {
                self.prediction(&stored_terms(&stored)?, &stored.observations, &stored.owner)
                    .await?
            }
        };
        let document = self
            .on_thread("search", move |_| document(stored, prediction.as_ref()))
            .await??;
        let is_done = document.state == SearchState::Done;
        if document.state != was || is_done && !was_answered {
            note(&self.shared.db, &document).await?;
        }
        Ok(Some(document))
    }

    /// Stops a search that has no answer yet; where an owner is named, one of theirs.
    pub async fn cancel_search(
        &self,
        id: &str,
        owner: Option<&str>,
    ) -> Result<SearchCancellation, JobError> {
        let now = self.shared.db.now();
        if self.own_search(id, owner).await?.is_some() {
            self.shared.db.cancel_search(id, now).await?;
        }
        Ok(match self.search(id, owner).await? {
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
    prediction: Option<&Prediction>,
) -> Result<SearchDocument, StoreError> {
    let conversation = AskTell::of(stored_terms(&stored)?, stored.observations);
    let mut said = conversation.says(prediction);
    let mut answered_by = None;
    // What was found stays so, whatever became of its recordings.
    if let Some(answer) = stored.answer.filter(|_| stored.state == SearchState::Done) {
        let found = serde_json::from_str(answer.recommendation.as_str());
        said.recommendation =
            found.map_err(|error| unreadable("the answer of a search", &error))?;
        said.next_batch = None;
        answered_by = answer.answered_by;
    }
    let state = match (stored.state, said.next_batch) {
        (SearchState::Cancelled, _) => SearchState::Cancelled,
        (SearchState::Active | SearchState::Done, Some(_)) => SearchState::Active,
        (SearchState::Active | SearchState::Done, None) => SearchState::Done,
    };
    let document = SearchDocument::of(
        stored.id,
        state,
        &conversation,
        said,
        stored.created_at,
        stored.updated_at,
    );
    Ok(SearchDocument {
        answered_by,
        ..document
    })
}

/// The terms of a stored search.
fn stored_terms(stored: &StoredSearch) -> Result<SearchRequest, StoreError> {
    read_terms(&stored.terms)
}

fn read_terms(terms: &JsonText) -> Result<SearchRequest, StoreError> {
    const WHAT: &str = "the terms of a search";
    let terms: Value =
        serde_json::from_str(terms.as_str()).map_err(|error| unreadable(WHAT, &error))?;
    SearchRequest::parse(&terms).map_err(|invalid: RequestError| unreadable(WHAT, &invalid))
}

fn unreadable(what: &'static str, problem: &dyn ToString) -> StoreError {
    StoreError::Unreadable {
        what,
        problem: problem.to_string(),
    }
}

/// The terms as they are stored.
fn terms(terms: &SearchRequest) -> JsonText {
    JsonText::from(json(terms).to_string().as_str())
}
