//! What a search's recordings predict.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use jiff::Timestamp;
use serde_json::json;

use super::lanes::LARGE_LANE;
use super::{Engine, EngineError, JobError, Jobs};
use crate::device::sim::{CARDS, Card};
use crate::model::{Invalid, Packed, Request, RequestDocument, Uploads, Workload};
use crate::search::Prediction;
use crate::search::conversation::{Observation, Predicted, Terms};
use crate::store::{SIMULATED_LANE, Time};
use crate::units::Bytes;

/// Most bytes of all recordings of a search together, decompressed; and from where on it waits for its turn among large
/// models.
const MOST_BYTES: u64 = 64 << 20;
const LARGE_BYTES: u64 = 8 << 20;

impl Jobs {
    /// Both maxima and the batch to record next, as the recordings of these runs predict them; nothing while there are
    /// fewer than two batches.
    pub(super) async fn predicted(
        &self,
        terms: &Terms,
        told: &[Observation],
    ) -> Result<Option<Predicted>, JobError> {
        let recorded = told
            .iter()
            .filter_map(|run| Some((run.batch, run.recorded.clone()?)));
        let recorded: BTreeMap<u64, String> = recorded.collect();
        if recorded.len() < 2 {
            return Ok(None);
        }
        let question = question(terms, &recorded, CARDS[0].name)?;
        let references = question.references().map_err(EngineError::Invalid)?;
        let found = self
            .find_uploads(references, Time::from(Timestamp::now()))
            .await?;
        if found.bytes() > MOST_BYTES {
            let problem = format!(
                "the recordings of this search are {} MiB together, and at most {} MiB are read; record fewer steps",
                found.bytes() >> 20,
                MOST_BYTES >> 20
            );
            return Err(EngineError::Invalid(Invalid::at("/recorded", problem)).into());
        }
        let is_large = found.bytes() > LARGE_BYTES;
        let lane = if is_large { LARGE_LANE } else { SIMULATED_LANE };
        let _place = self.shared.enter(lane).await;
        let packed = self.load_uploads(found).await?;
        let terms = terms.clone();
        let predict = move |engine: &dyn Engine| predict(engine, &terms, &recorded, packed);
        Ok(Some(self.on_thread("predict", predict).await??))
    }
}

/// The request that a search comes to.
fn question(
    terms: &Terms,
    recorded: &BTreeMap<u64, String>,
    card: &str,
) -> Result<RequestDocument, EngineError> {
    let batches: Vec<u64> = recorded.keys().copied().collect();
    let digests: Vec<&String> = recorded.values().collect();
    let mut question = json!({
        "model": { "recorded": digests, "batches": batches },
        "device": format!("sim:{card}"),
        "allocator": terms.allocator,
    });
    if let Some(limit) = terms.memory_limit {
        question["memory_limit"] = json!(limit);
    }
    let text = question.to_string();
    RequestDocument::from_json(text.as_bytes()).map_err(EngineError::Invalid)
}

fn predict(
    engine: &dyn Engine,
    terms: &Terms,
    recorded: &BTreeMap<u64, String>,
    packed: Vec<Packed>,
) -> Result<Predicted, EngineError> {
    // The search names the recordings of single runs, not a list.
    let told = |invalid: Invalid| EngineError::Invalid(Invalid::at("/recorded", invalid.problem));
    let uploads = Uploads::unpack(packed).map_err(told)?;
    let names: Vec<&str> = CARDS.iter().map(|card| card.name).collect();
    let asked = |card: &str| {
        Request::parse_with_uploads(question(terms, recorded, card)?, &uploads, &names)
            .map_err(told)
    };
    let first = asked(CARDS[0].name)?;
    let total = match &first.lower().map_err(told)?.workload {
        Workload::Recorded(steps) => steps.total,
        Workload::Graph(_) => None,
    };
    let request = match total {
        Some(total) => asked(card_with(total).name)?,
        None => first,
    };
    let result = engine.fit(&request, &|_| {}, &Arc::new(AtomicBool::new(false)))?;
    let found = result.recommendation;
    Ok(Predicted {
        maxima: Prediction {
            max_batch: found.max_batch,
            max_batch_without_retries: found.max_batch_without_retries,
        },
        record_next: found.next_batch,
    })
}

/// The card whose memory is nearest to this.
fn card_with(total: Bytes) -> &'static Card {
    let apart = |card: &&Card| card.total_memory.0.abs_diff(total.0);
    CARDS.iter().min_by_key(apart).unwrap_or(&CARDS[0])
}
