//! Outdated answers: the nearest one to a question, and one made again.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::{calibration, followed, question_about};
use crate::jobs::agents::Executor;
use crate::jobs::document::LARGE_LANE;
use crate::jobs::lanes::ReadPermit;
use crate::jobs::shares::permits_in_use;
use crate::jobs::{
    Engine, EngineError, EnqueueOptions, FitDocument, JobError, Jobs, permit_to_read, runner,
};
use crate::limits::{Cancel, CancelOnDrop};
use crate::model::{Request, RequestDocument, RequestError};
use crate::store::{Db, Fit, JsonText, NearestQuery, StoreError, StoredRecommendation, Time};
use batchfit_fit::{Purpose, resolve};

/// How long reading a stored request may take: the largest graph is read in seconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// A stored answer that is near to a question.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct NearDocument {
    /// Whether it is the answer to this very question, as it would be given today.
    pub exact: bool,
    /// What the answer was given for instead of what is asked: members of the recommendation, what matters most first (`precision`,
    /// `optimizer`, `checkpointing`, `world_size`, `objective`, `gpu`, `limit_bytes`, `device`), then those of its request, such as
    /// `headroom` and `allocator`. Empty for a stale answer to the same question, and for an agent's where no agent would answer it now.
    pub differs: Vec<String>,
    /// The answer.
    pub recommendation: StoredRecommendation,
}

impl NearDocument {
    /// The same model by the name that it is asked about.
    fn called(mut self, understood: &Understood) -> NearDocument {
        self.recommendation.model.clone_from(&understood.name);
        self
    }
}

/// A question as far as it is understood without its device.
struct Understood {
    request: Request,
    asked: NearestQuery,
    /// The client's name of the model.
    name: String,
    /// What it would be answered under, and whether by agents; none where its device is not there.
    fingerprint: Option<(String, bool)>,
}

/// What a question is about that is answered there. Takes as long as to read its model.
fn understand(
    db: &Db,
    engine: &dyn Engine,
    place: &Result<Executor, EngineError>,
    request: Request,
    owner: &str,
    cancel: &Cancel,
) -> Result<Understood, EngineError> {
    let found = resolve(&request, Purpose::Fit, cancel, |lowered| {
        let found = place.clone().and_then(|place| place.card(engine, &request));
        let (card, is_simulated, by_agents) = match found {
            Ok((card, is_simulated, lane)) => (card, is_simulated, Some(lane.is_some())),
            Err(EngineError::DeviceUnavailable { .. }) => (None, true, None),
            Err(other) => return Err(other),
        };
        let is_simulated_here = is_simulated && by_agents != Some(true);
        Ok(((lowered, card, is_simulated, by_agents), is_simulated_here))
    });
    let (lowered, card, is_simulated, by_agents) = found?;
    let digest = request.model_digest(lowered);
    let asked = question_about(&request, &digest, card.as_deref());
    let model = (lowered, digest.as_str());
    let taught = calibration(db, &request, model, card.as_deref(), is_simulated, owner);
    let request = request.with_calibration(taught);
    let lowered = request.lower()?;
    let with = (lowered, digest.as_str());
    let card = card.filter(|_| !is_simulated);
    let fingerprint = by_agents.map(|by| (request.fingerprint_with(with, card.as_deref()), by));
    Ok(Understood {
        asked,
        name: request.model_name().to_owned(),
        fingerprint,
        request,
    })
}

/// Members of a stored request that ask for something else, beside those that its recommendation shows.
fn unlike(request: &Request, stored: Option<Fit>) -> Vec<String> {
    const SHOWN: [&str; 7] = [
        "precision",
        "optimizer",
        "checkpointing",
        "world_size",
        "objective",
        "memory_limit",
        "device",
    ];
    let document = stored.map(|fit| RequestDocument::read(fit.request.into_shared()));
    let names = match document {
        Some(Ok(document)) => request.differing(&document, &SHOWN),
        // Dropped meanwhile, or of a version whose requests are not read any more.
        Some(Err(_)) | None => Vec::new(),
    };
    names.into_iter().map(str::to_owned).collect()
}

/// The stored answer to what is asked, or the nearest one.
async fn look(db: &Db, understood: &Understood) -> Result<Option<NearDocument>, StoreError> {
    if let Some((fingerprint, by_agents)) = &understood.fingerprint
        && let Some(fit) = db.finished_fit(fingerprint, *by_agents).await?
        && let Some(exact) = answer_of(db, &fit).await?
    {
        return Ok(Some(exact.called(understood)));
    }
    let nearest = db.nearest(&understood.asked).await?;
    let near = nearest.map(|nearest| NearDocument {
        exact: false,
        differs: nearest.differs.into_iter().map(str::to_owned).collect(),
        recommendation: nearest.recommendation,
    });
    Ok(near.map(|near| near.called(understood)))
}

async fn answer_of(db: &Db, fit: &str) -> Result<Option<NearDocument>, StoreError> {
    let found = followed(db, fit).await?;
    Ok(found.map(|recommendation| NearDocument {
        exact: true,
        differs: Vec::new(),
        recommendation,
    }))
}

/// The stored answer to a question, or the nearest one for the same model, for commands outside of the queue that have this thread
/// to itself. Computes nothing, and needs no device.
pub async fn nearest(
    db: &Db,
    engine: &dyn Engine,
    request: Request,
) -> Result<Option<NearDocument>, JobError> {
    db.read_learnt().await?;
    let here = Ok(Executor::Here);
    let understood = understand(db, engine, &here, request, "", &Cancel::NEVER)?;
    let mut near = look(db, &understood).await?;
    if let Some(near) = near.as_mut().filter(|near| !near.exact) {
        let fit = db.fit(&near.recommendation.fit_id).await?;
        near.differs.extend(unlike(&understood.request, fit));
    }
    Ok(near)
}

/// The request that was answered by the recommendation of this id, or by the fit of this id.
pub async fn question_of(db: &Db, id: &str) -> Result<Option<JsonText>, StoreError> {
    let Some(found) = followed(db, id).await? else {
        return Ok(None);
    };
    let fit = db.fit(&found.fit_id).await?;
    Ok(fit.map(|fit| fit.request))
}

impl Jobs {
    /// The stored answer to a question, or the nearest one for the same model. Computes nothing, and needs no device.
    /// `permit` is that under which the request was read.
    pub async fn nearest(
        &self,
        request: Request,
        permit: Option<ReadPermit>,
        owner: String,
    ) -> Result<Option<NearDocument>, JobError> {
        let db = self.shared.db.clone();
        db.read_learnt().await?;
        let place = self.executor(&request).await?;
        let abandoned = CancelOnDrop::default();
        let cancel = abandoned.0.clone();
        let understand = move |engine: &dyn Engine| {
            let (place, request) = (place.clone(), request.clone());
            understand(&db, engine, &place, request, &owner, &cancel)
        };
        let (understood, _large) = self.reading("nearest", permit, understand).await?;
        let mut near = look(&self.shared.db, &understood).await?;
        if let Some(near) = near.as_mut().filter(|near| !near.exact) {
            let fit = self.shared.db.fit(&near.recommendation.fit_id).await?;
            let unlike = move |_: &dyn Engine| unlike(&understood.request, fit);
            near.differs
                .extend(self.on_thread("nearest", unlike).await?);
        }
        Ok(near)
    }

    /// The first recommendation of a fit that answers a question exactly.
    pub async fn answer_of(&self, fit: &str) -> Result<Option<NearDocument>, JobError> {
        Ok(answer_of(&self.shared.db, fit).await?)
    }

    /// Asks the question of a recommendation again. Where nothing has changed since, that is the same fit.
    pub async fn refresh(
        &self,
        id: &str,
        asking: EnqueueOptions,
        now: Time,
    ) -> Result<Option<FitDocument>, JobError> {
        let shared = &self.shared;
        let Some(found) = followed(&shared.db, id).await? else {
            return Ok(None);
        };
        let Some(fit) = shared.db.fit(&found.fit_id).await? else {
            return Ok(None);
        };
        let document = RequestDocument::read(fit.request.clone().into_shared())?;
        let names_files = document.model_aside().is_some() || !document.references()?.is_empty();
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let late = |_| JobError::TookTooLong(PATIENCE);
        // What is not in the request itself may be large, and large models are read one at a time.
        let large = if names_files {
            let acquiring = async { (permit_to_read().await, shared.enter(LARGE_LANE).await) };
            let acquired = tokio::time::timeout_at(deadline, acquiring).await;
            let (turn, permit) = acquired.map_err(late)?;
            Some(ReadPermit {
                turn,
                permit,
                is_large: true,
            })
        } else {
            None
        };
        let abandoned = CancelOnDrop::default();
        let reading = runner::read(
            shared,
            (&fit.id, &fit.request),
            permits_in_use(),
            &abandoned.0,
        );
        let read = tokio::time::timeout_at(deadline, reading).await;
        let request = read.map_err(late)??.map_err(|error| {
            let pointer = error.pointer.unwrap_or_default();
            EngineError::Invalid(RequestError::at(pointer, error.detail))
        })?;
        self.enqueue(request, large, asking, now).await.map(Some)
    }
}
