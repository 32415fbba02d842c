//! From a request to a row of the queue.

use tokio::sync::OwnedSemaphorePermit;

use super::{EnqueueOptions, JobError, Jobs};
use crate::alloc::MemoryLimit;
use crate::jobs::document::{LARGE_LANE, is_large, lane_of_fit, short_digest};
use crate::jobs::document::{asked_by, new_fit, terms};
use crate::jobs::lanes::ReadPermit;
use crate::jobs::outcomes::calibration;
use crate::jobs::uploads::unknown;
use crate::jobs::{Engine, FitDocument};
use crate::limits::CancelOnDrop;
use crate::model::{DetachedModel, DeviceChoice, Request};
use crate::store::{Enqueued, FitState, IdempotencyKey, JsonText, NewFit, NewUpload, Reuse, Time};
use batchfit_fit::{Purpose, check_work, resolve, work};

impl Jobs {
    /// Whether a fit is answered for less memory than this request allows.
    async fn is_for_less(&self, id: &str, request: &Request) -> Result<bool, JobError> {
        let done = self
            .fit(id)
            .await?
            .filter(|fit| fit.state == FitState::Done);
        let for_all = |fit: FitDocument| {
            fit.limit_bytes()
                .is_some_and(|it| had_its_limit(request, it))
        };
        Ok(done.is_some_and(|fit| !for_all(fit)))
    }

    /// Queues a fit, or finds the one that asks the same in the same words. One that asks the same in others gets the other's answer
    /// when it is its turn.
    ///
    /// An answer that depends on what is free on a GPU at the moment is not used twice: one without a limit, or
    /// one whose limit other processes lowered.
    ///
    /// `permit` is that under which the request was read. A large model, not a large body, keeps it until it is answered.
    pub async fn enqueue(
        &self,
        request: Request,
        permit: Option<ReadPermit>,
        asking: EnqueueOptions,
        now: Time,
    ) -> Result<FitDocument, JobError> {
        let shared = &self.shared;
        if let Some(fit) = self.asked_before(asking.key.as_ref()).await? {
            return Ok(fit);
        }
        let owner = &asking.owner;
        let (checked, large) = self.checked(request, Purpose::Fit, owner, permit).await?;
        let Checked {
            request,
            fingerprint,
            model_digest,
            shown,
            aside,
            lane,
            for_agents,
            is_simulated,
        } = checked;
        let is_simulated_here = is_simulated && !for_agents;
        let deadline = shared.limits.fit_deadline;
        let terms = terms(&request, asking.interactive, is_simulated_here, deadline);
        let id = shared.ids.next(now);
        let aside = aside.map(|aside| detached_upload(aside, now));
        let new = NewFit {
            key: asking.key,
            owner: asking.owner,
            ..new_fit(
                id,
                &request,
                shown,
                (fingerprint, model_digest),
                aside,
                (terms, lane),
                now,
            )
        };
        let space = shared.upload_space();
        let reuse = if is_simulated || request.memory_limit.is_some() {
            Reuse::Finished
        } else {
            Reuse::InFlight
        };
        let capacity = i64::from(shared.limits.queued);
        // Before the row is there: the runner that claims it looks here once. A worker reads the text for itself.
        let handed = if matches!(request.device, DeviceChoice::Sim(_)) {
            request.clone().without_text()
        } else {
            request.clone()
        };
        // A small model that is much work takes the place when it is its turn.
        let permit = large.filter(|_| new.lane == LARGE_LANE && is_large(&request));
        // An agent reads it for itself.
        let left = (!for_agents).then(|| shared.spec_cache.leave(&new.id, handed, permit));
        let mut queued = shared.db.enqueue(&new, reuse, capacity, space).await?;
        if let Enqueued::Same(id) = &queued
            && !is_simulated
            && self.is_for_less(id, &request).await?
        {
            let reuse = Reuse::InFlight;
            queued = shared.db.enqueue(&new, reuse, capacity, space).await?;
        }
        let id = match queued {
            Enqueued::Added => {
                tracing::info!(fit.id = %new.id, device = %new.device, "queued fit {}", new.id);
                if let Some(left) = left {
                    left.stay();
                }
                shared.events.of(&new.id, 0, FitState::Queued);
                shared.wake.notify_one();
                if for_agents {
                    // Each agent that waits here looks at the table then.
                    shared.for_agents.send_replace(());
                }
                new.id
            }
            Enqueued::Same(id) => {
                if let Some(key) = &new.key
                    && !shared.db.remember_key(key, &id, now).await?
                    && let Some(fit) = self.asked_before(new.key.as_ref()).await?
                {
                    return Ok(fit);
                }
                id
            }
            // By a request that was sent at the same time.
            Enqueued::KeyTaken => match self.asked_before(new.key.as_ref()).await? {
                Some(fit) => return Ok(fit),
                None => return Err(JobError::Busy),
            },
            Enqueued::UploadGone(digest) => return Err(unknown("/model", &digest)),
            Enqueued::QueueFull { waiting, of_key } => {
                let most = shared.limits.queued;
                return Err(if of_key {
                    JobError::ShareFull { waiting, most }
                } else {
                    JobError::QueueFull(waiting)
                });
            }
        };
        // One that ended long ago may be dropped meanwhile.
        self.fit(&id).await?.ok_or(JobError::Busy)
    }

    /// The fit that was asked for under this name before.
    async fn asked_before(
        &self,
        key: Option<&IdempotencyKey>,
    ) -> Result<Option<FitDocument>, JobError> {
        let Some(key) = key else { return Ok(None) };
        match self.shared.db.asked_before(key).await? {
            None => Ok(None),
            Some(before) if before.body == key.body => self.fit(&before.fit_id).await,
            Some(before) => Err(JobError::KeyReused {
                key: key.key.clone(),
                fit: before.fit_id,
            }),
        }
    }

    /// Builds the request's graph, adds what outcomes taught this key and looks for its device, in this order: a request that is wrong
    /// everywhere is answered with what is wrong in it.
    ///
    /// Whatever is large is read under the permit for that, which is given back with it.
    pub(in crate::jobs) async fn checked(
        &self,
        request: Request,
        purpose: Purpose,
        owner: &str,
        permit: Option<ReadPermit>,
    ) -> Result<(Checked, Option<OwnedSemaphorePermit>), JobError> {
        // Dropped with this future, as when the client goes away.
        let abandoned = CancelOnDrop::default();
        let cancel = abandoned.0.clone();
        let (db, owner) = (self.shared.db.clone(), owner.to_owned());
        db.read_learnt().await?;
        let place = self.executor(&request).await?;
        let check = move |engine: &dyn Engine| {
            let request = request.clone();
            let found = resolve(&request, purpose, &cancel, |lowered| {
                check_work(&request, work(&request))?;
                let (card, is_simulated, agents) = place.clone()?.card(engine, &request)?;
                let is_simulated_here = is_simulated && agents.is_none();
                Ok(((lowered, card, is_simulated, agents), is_simulated_here))
            });
            let (lowered, card, is_simulated, agents) = found?;
            let digest = request.model_digest(lowered);
            let model = (lowered, digest.as_str());
            let taught = calibration(&db, &request, model, card.as_deref(), is_simulated, &owner);
            let card = card.filter(|_| !is_simulated);
            let request = request.with_calibration(taught);
            let lowered = request.lower()?;
            let fingerprint = request.fingerprint_with((lowered, &digest), card.as_deref());
            let (shown, aside) = request.shown();
            let for_agents = agents.is_some();
            Ok(Checked {
                lane: agents.unwrap_or_else(|| lane_of_fit(&request, card.as_deref())),
                for_agents,
                is_simulated,
                fingerprint: asked_by(&fingerprint, &shown),
                shown: JsonText::from(shown.text()),
                aside,
                model_digest: short_digest(&digest),
                request,
            })
        };
        self.reading("check", permit, check).await
    }
}

/// A request that can be worked on.
pub(in crate::jobs) struct Checked {
    pub(in crate::jobs) request: Request,
    pub(in crate::jobs) fingerprint: String,
    /// The model itself: the beginning of a digest.
    model_digest: String,
    /// The request as it is stored and shown.
    pub(in crate::jobs) shown: JsonText,
    /// Its model, where that is not shown.
    aside: Option<DetachedModel>,
    /// What it must not run beside.
    pub(in crate::jobs) lane: String,
    /// Whether agents are to answer it.
    pub(in crate::jobs) for_agents: bool,
    /// Whether no real card is asked.
    pub(in crate::jobs) is_simulated: bool,
}

/// The model of a fit that is not shown with it, to be kept beside it.
fn detached_upload(aside: DetachedModel, now: Time) -> NewUpload {
    NewUpload {
        digest: aside.digest,
        names: Vec::new(),
        owner: String::new(),
        kind: aside.kind,
        bytes: aside.bytes,
        about: JsonText::from("{}"),
        gzip: aside.gzip,
        created_at: now,
    }
}

/// Whether an answer for this limit is for all of the memory that its request allows.
pub(in crate::jobs) fn had_its_limit(request: &Request, limit_bytes: u64) -> bool {
    matches!(request.memory_limit, Some(MemoryLimit::Bytes(asked)) if limit_bytes >= asked.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RequestDocument;

    #[test]
    fn an_answer_for_less_memory_than_was_asked_for_is_not_used_again() {
        let request = |limit: &str| {
            let text =
                format!(r#"{{"model": {{"preset": "resnet18"}}, "memory_limit": "{limit}"}}"#);
            let document = RequestDocument::from_json(text.as_bytes()).unwrap();
            Request::parse(document).unwrap()
        };

        assert!(had_its_limit(&request("1GiB"), 1 << 30));
        assert!(!had_its_limit(&request("1GiB"), 1 << 29));
        assert!(!had_its_limit(&request("0.5"), 1 << 30));
    }
}
