//! What the queue, its runner and all that work for them share.

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::jobs::clock::Clock;
use crate::jobs::document::{FitError, json};
use crate::jobs::events::Events;
use crate::jobs::events::notifications::RemoteProgress;
use crate::jobs::leases::Heartbeats;
use crate::jobs::queue::spec_cache::SpecCache;
use crate::jobs::readiness::Readiness;
use crate::jobs::searches::predicted::Predictions;
use crate::jobs::{Engine, EngineError, Limits, Progress};
use crate::jobs::{document::LARGE_LANE, lanes::Lanes};
use crate::limits::Cancel;
use crate::lock;
use crate::model::{Request, RequestDocument, RequestError, Uploads};
use crate::store::{
    Attempt, Db, FitState, Ids, Lease, LeaseOwner, ParallelSimulated, StoreError, Time,
};

pub(in crate::jobs) struct Shared {
    pub(in crate::jobs) db: Db,
    pub(in crate::jobs) engine: Arc<dyn Engine>,
    pub(in crate::jobs) limits: Limits,
    pub(in crate::jobs) ids: Ids,
    /// Under which name this server works on fits.
    pub(in crate::jobs) holder: LeaseOwner,
    /// Of which lanes it takes fits, where other servers have other GPUs; `None` for any.
    pub(in crate::jobs) takes: Option<String>,
    /// When it last reached the database, and what time it is there.
    pub(in crate::jobs) beats: Heartbeats,
    pub(in crate::jobs) clock: Clock,
    pub(in crate::jobs) lanes: Lanes,
    pub(in crate::jobs) spec_cache: SpecCache,
    /// What recordings of searches predict.
    pub(in crate::jobs) predictions: Predictions,
    /// What is told of fits.
    pub(in crate::jobs) events: Events,
    /// What other servers tell.
    pub(in crate::jobs) remote_progress: RemoteProgress,
    /// The fits at work in this process, by id.
    pub(in crate::jobs) running: Mutex<HashMap<String, Arc<Running>>>,
    /// How far agents are, by fit.
    pub(in crate::jobs) told_by_agents: Mutex<HashMap<String, Progress>>,
    /// Tells the runner that there may be something to claim.
    pub(in crate::jobs) wake: Notify,
    /// Changes whenever there may be something for agents.
    pub(in crate::jobs) for_agents: watch::Sender<()>,
    /// Changes whenever a fit ends.
    pub(in crate::jobs) ended: watch::Sender<()>,
    /// Fits that have ended and could not be stored yet.
    pub(in crate::jobs) unstored: AtomicU32,
    pub(super) readiness: Readiness,
    pub(in crate::jobs) shutdown: CancellationToken,
    pub(in crate::jobs) tasks: TaskTracker,
}

/// A fit at work.
#[derive(Debug, Default)]
pub(in crate::jobs) struct Running {
    pub(in crate::jobs) cancel: Cancel,
    pub(in crate::jobs) progress: Mutex<Option<Progress>>,
}

impl Running {
    /// Publishes this step.
    pub(in crate::jobs) fn show(&self, step: Progress) {
        *lock(&self.progress) = Some(step);
    }
}

impl Shared {
    /// Reads a request that names these uploads.
    pub(in crate::jobs) fn parse(
        &self,
        document: RequestDocument,
        uploads: &Uploads,
    ) -> Result<Request, RequestError> {
        let request = Request::parse_with_uploads(document, uploads)?;
        Ok(request.with_recorder(self.engine.catalogue().records))
    }

    /// Waits for a place in a lane.
    pub(in crate::jobs) async fn enter(&self, lane: &str) -> OwnedSemaphorePermit {
        // The fits that wait with a permit are claimed after this one.
        let _wanted = (lane == LARGE_LANE).then(|| self.spec_cache.want_permit());
        self.lanes.enter(lane).await
    }

    pub(in crate::jobs) fn running(&self, id: &str) -> Option<Arc<Running>> {
        lock(&self.running).get(id).map(Arc::clone)
    }

    /// Lets go of a fit that was cancelled in the database, and tells those that follow it.
    pub(in crate::jobs) fn forget_cancelled(&self, id: &str) {
        self.spec_cache.take(id);
        if let Some(running) = self.running(id) {
            running.cancel.cancel();
        }
        self.job_ended(id, FitState::Cancelled);
        tracing::info!(fit.id = %id, "cancelled fit {id}");
    }

    /// Whether any fit is at work here.
    pub(in crate::jobs) fn works(&self) -> bool {
        !lock(&self.running).is_empty()
    }

    /// The fits that are at work here.
    pub(in crate::jobs) fn at_work(&self) -> Vec<String> {
        lock(&self.running).keys().cloned().collect()
    }

    /// For this server, from now on.
    pub(in crate::jobs) fn lease(&self, now: Time) -> Lease<'_> {
        Lease {
            holder: &self.holder,
            until: self.beats.until(now, self.limits.lease),
        }
    }

    /// How far the fits are that are at work here.
    pub(in crate::jobs) fn all_progress(&self) -> HashMap<String, Progress> {
        let running = lock(&self.running);
        let progress = running
            .iter()
            .filter_map(|(id, running)| Some((id.clone(), lock(&running.progress).clone()?)));
        let mut all = lock(&self.told_by_agents).clone();
        all.extend(progress);
        all
    }

    /// Stores why an attempt of an agent has no answer.
    pub(in crate::jobs) async fn fail_job(
        &self,
        attempt: Attempt<'_>,
        error: FitError,
        now: Time,
    ) -> Result<FitError, StoreError> {
        if self.db.fail(attempt, &json(&error), now).await? {
            tracing::warn!(fit.id = %attempt.id, "fit {} failed: {}", attempt.id, error.detail);
            self.job_ended(attempt.id, FitState::Failed);
        }
        Ok(error)
    }

    /// Ends an attempt that its agent holds beyond the time limit of the fit.
    pub(in crate::jobs) async fn time_out(
        &self,
        attempt: Attempt<'_>,
        now: Time,
    ) -> Result<(), StoreError> {
        let seconds = self.db.fit_timeout(attempt.id).await?.unwrap_or(0);
        let seconds = seconds.unsigned_abs();
        let error = FitError::from(EngineError::TimedOut { seconds });
        self.fail_job(attempt, error, now).await.map(drop)
    }

    pub(in crate::jobs) fn job_ended(&self, fit: &str, state: FitState) {
        self.events.publish(fit, state);
        self.ended.send_replace(());
        self.wake.notify_one();
    }

    pub(super) fn progress(&self, id: &str) -> Option<Progress> {
        let Some(running) = self.running(id) else {
            return lock(&self.told_by_agents).get(id).cloned();
        };
        lock(&running.progress).clone()
    }

    /// How many simulated fits may be claimed.
    pub(in crate::jobs) fn parallel(&self) -> ParallelSimulated {
        ParallelSimulated(i64::from(self.limits.simulated_in_parallel.max(1)))
    }
}
