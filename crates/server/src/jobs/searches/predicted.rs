//! What a search's recordings predict.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::sync::OnceCell;

use crate::device::sim::CARDS;
use crate::jobs::document::LARGE_LANE;
use crate::jobs::shares::{niceness, yielding};
use crate::jobs::uploads::Found;
use crate::jobs::{Engine, EngineError, JobError, Jobs};
use crate::limits::CancelOnDrop;
use crate::lock;
use crate::model::{Digest, Packed, Request, RequestDocument, RequestError, Uploads};
use crate::store::SIMULATED_LANE;
use batchfit_fit::Runs;
use batchfit_fit::search::ask_tell::{Observation, Outcome, Prediction, SearchRequest};

/// Most bytes of all recordings of a search together, decompressed; and from where on it waits for its turn among large
/// models.
const MOST_BYTES: u64 = 64 << 20;
const LARGE_BYTES: u64 = 8 << 20;

/// How many predictions are kept at most.
const MOST_KNOWN: usize = 64;

/// The recordings of a search: of each batch the latest.
type Recorded = BTreeMap<u64, String>;

/// What was predicted, by what it was predicted from: a search is read more often than it is told something.
#[derive(Debug, Default)]
pub(in crate::jobs) struct Predictions(Mutex<HashMap<Digest, Arc<OnceCell<Prediction>>>>);

impl Predictions {
    /// Where the prediction from this is kept.
    fn of(&self, source: &str) -> Arc<OnceCell<Prediction>> {
        let mut known = lock(&self.0);
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        Arc::clone(known.entry(Digest::of(source.as_bytes())).or_default())
    }
}

impl Jobs {
    /// What the recordings of these runs of a search of this key say; nothing while there are none.
    pub(in crate::jobs) async fn prediction(
        &self,
        terms: &SearchRequest,
        told: &[Observation],
        owner: &str,
    ) -> Result<Option<Prediction>, JobError> {
        let recorded = told
            .iter()
            .filter_map(|run| Some((run.batch, run.recorded.clone()?)));
        let recorded: Recorded = recorded.collect();
        if recorded.is_empty() {
            return Ok(None);
        }
        let found = self.find_recordings(terms, &recorded, owner).await?;
        let recorded = alike(recorded, &found);
        let found = self.find_recordings(terms, &recorded, owner).await?;
        if found.bytes() > MOST_BYTES {
            let problem = format!(
                "the recordings of this search are {} MiB together, and at most {} MiB are read; record fewer steps",
                found.bytes() >> 20,
                MOST_BYTES >> 20
            );
            return Err(EngineError::Invalid(RequestError::at("/recorded", problem)).into());
        }
        let runs = Runs {
            ceiling: terms.ceiling(),
            largest: largest(told, &recorded),
        };
        let source = format!(
            "{} {runs:?} {}",
            request_text(terms, &recorded),
            self.turns()
        );
        let known = self.shared.predictions.of(&source);
        let predicted = known.get_or_try_init(|| self.predict(terms, recorded, runs, found));
        predicted.await.cloned().map(Some)
    }

    /// The same where it was not predicted before.
    async fn predict(
        &self,
        terms: &SearchRequest,
        recorded: Recorded,
        runs: Runs,
        found: Found,
    ) -> Result<Prediction, JobError> {
        let is_large = found.bytes() > LARGE_BYTES;
        let lane = if is_large { LARGE_LANE } else { SIMULATED_LANE };
        let _place = self.shared.enter_with_permit(lane).await;
        let packed = self.load_uploads(found).await?;
        let terms = terms.clone();
        // Dropped with this future, as when the client goes away.
        let abandoned = CancelOnDrop::default();
        let cancel = abandoned.0.clone();
        let niceness = niceness();
        let work = move |_: &dyn Engine| {
            yielding(niceness, || {
                let request = read(&terms, &recorded, packed)?;
                batchfit_fit::predict(&request, &runs, &cancel).map_err(told_of)
            })
        };
        Ok(self.on_thread("predict", work).await??)
    }

    async fn find_recordings(
        &self,
        terms: &SearchRequest,
        recorded: &Recorded,
        owner: &str,
    ) -> Result<Found, JobError> {
        let question = question(terms, recorded)?;
        let references = question.references()?;
        let now = self.shared.db.now();
        self.find_uploads(references, owner, now).await
    }
}

/// Those recordings whose steps have as many micro-steps as most: others are of other programs, such as the one step of
/// a whole target.
fn alike(recorded: Recorded, found: &Found) -> Recorded {
    let micro_steps = found.about().map(|about| about.accumulation.unwrap_or(1));
    let micro_steps: Vec<u32> = micro_steps.collect();
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for steps in &micro_steps {
        *counts.entry(*steps).or_default() += 1;
    }
    // Of as many, those that keep gradients: they need more.
    let most = counts
        .into_iter()
        .max_by_key(|(steps, count)| (*count, *steps));
    let most = most.map_or(1, |(steps, _)| steps);
    let kept = recorded.into_iter().zip(micro_steps);
    kept.filter(|(_, steps)| *steps == most)
        .map(|(recorded, _)| recorded)
        .collect()
}

/// The largest recorded batch that fits, with the most bytes that it was told to reserve.
fn largest(told: &[Observation], recorded: &Recorded) -> Option<(u64, u64)> {
    let fits = told
        .iter()
        .filter(|run| run.outcome == Outcome::Fits && recorded.contains_key(&run.batch));
    fits.filter_map(|run| Some((run.batch, run.peak_reserved_bytes?)))
        .max()
}

/// The request that a search comes to, as text.
fn request_text(terms: &SearchRequest, recorded: &Recorded) -> String {
    let batches: Vec<u64> = recorded.keys().copied().collect();
    let digests: Vec<&String> = recorded.values().collect();
    let mut question = json!({
        "model": { "recorded": digests, "batches": batches },
        "device": format!("sim:{}", CARDS[0].name),
        "allocator": terms.allocator,
        "world_size": terms.world_size,
    });
    if let Some(limit) = terms.memory_limit {
        question["memory_limit"] = json!(limit);
    }
    if let Some(target) = terms.target_batch {
        question["target_batch"] = json!(target);
    }
    question.to_string()
}

fn question(terms: &SearchRequest, recorded: &Recorded) -> Result<RequestDocument, EngineError> {
    let text = request_text(terms, recorded);
    RequestDocument::from_json(text.as_bytes()).map_err(EngineError::Invalid)
}

fn read(
    terms: &SearchRequest,
    recorded: &Recorded,
    packed: Vec<Packed>,
) -> Result<Request, EngineError> {
    let invalid = |invalid: RequestError| told_of(EngineError::Invalid(invalid));
    let uploads = Uploads::unpack(packed).map_err(invalid)?;
    Request::parse_with_uploads(question(terms, recorded)?, &uploads).map_err(invalid)
}

/// The search names the recordings of single runs, not a list.
fn told_of(error: EngineError) -> EngineError {
    match error {
        EngineError::Invalid(invalid) => {
            EngineError::Invalid(RequestError::at("/recorded", invalid.problem))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_recordings_are_read_once() {
        let predictions = Predictions::default();
        let of_one = predictions.of("one");

        assert!(Arc::ptr_eq(&of_one, &predictions.of("one")));
        assert!(!Arc::ptr_eq(&of_one, &predictions.of("another")));
    }
}
