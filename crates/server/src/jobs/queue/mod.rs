//! What the outside may ask of the queue.

mod enqueue;
mod error;
mod shared;
pub(in crate::jobs) mod spec_cache;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(in crate::jobs) use enqueue::{Checked, had_its_limit};
pub use error::JobError;
pub(in crate::jobs) use shared::{Running, Shared};

use super::clock::{Clock, milliseconds};
use super::events::{Events, FitNews, Follower, Log};
use super::lanes::Lanes;
use super::leases::{self, Heartbeats, LEASE};
use super::readiness::{NotReadyReason, Readiness};
use super::{DeviceKind, DeviceSummary, Engine, FitDocument, UploadLimits, runner, uploads};
use crate::device::sim::calibration_turn;
use crate::jobs::events::notifications::{self, RemoteProgress};
use crate::jobs::searches::predicted::Predictions;
use crate::model::{Request, RequestDocument, RequestError, Uploads};
use crate::store::{Db, FitAnswer, FitFilter, FitState, FitSummary, IdempotencyKey, Ids, Time};
use spec_cache::SpecCache;

/// How much is taken on at a time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Fits that may wait. More are refused.
    pub queued: u32,
    /// Fits and probes on simulated devices that run at a time.
    pub simulated_in_parallel: u32,
    /// What uploads may take.
    pub uploads: UploadLimits,
    /// How long what has ended is kept; `None` for ever.
    pub retention: Option<Duration>,
    /// How long a fit stays with a server that says nothing, where several share a database. At least [`LEASE`] where they are on
    /// machines of their own.
    pub lease: Duration,
    /// How long an agent may say nothing before what it works on is given to another.
    pub lease_of_agents: Duration,
    /// How long a fit on a simulated device is worked on; ten times that where a GPU or a recorder is asked and the request does not say.
    pub fit_deadline: Duration,
    /// How often the queue is looked at unasked: for rows without a worker, and for fits without a notification.
    pub look_around: Duration,
}

impl Default for Limits {
    /// A hundred waiting fits are minutes of work; simulation is bound by one core each.
    fn default() -> Limits {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Limits {
            queued: 100,
            simulated_in_parallel: u32::try_from(cores).unwrap_or(1),
            uploads: UploadLimits::default(),
            retention: None,
            lease: LEASE,
            // Some lost messages, and an agent that loads a large model, are no reason to begin again.
            lease_of_agents: Duration::from_secs(30),
            fit_deadline: Duration::from_mins(1),
            look_around: Duration::from_secs(5),
        }
    }
}

/// How a fit is asked for, beside what.
#[derive(Debug, Clone, Default)]
pub struct EnqueueOptions {
    /// Whether a client waits for the answer.
    pub interactive: bool,
    /// The API key under which it is asked; empty where none is needed.
    pub owner: String,
    /// The name that the client gave to this request: what it asks again under it is the same fit.
    pub key: Option<IdempotencyKey>,
}

/// What came of the wish to cancel.
#[derive(Debug, Clone, PartialEq)]
pub enum Cancellation {
    /// The fit is cancelled, now or since earlier.
    Cancelled(Box<FitDocument>),
    /// It had ended before.
    TooLate(FitState),
    /// Another key asked for it.
    NotYours,
    /// There is no such fit.
    Unknown,
}

/// The queue, its runner, and everything that works for them. Cloning it shares it.
#[derive(Clone)]
pub struct Jobs {
    pub(in crate::jobs) shared: Arc<Shared>,
}

impl Jobs {
    /// Takes up the fits that the last server left unfinished, and starts the runner.
    pub async fn start(
        db: Db,
        engine: Arc<dyn Engine>,
        limits: Limits,
        shutdown: CancellationToken,
    ) -> Result<Jobs, JobError> {
        let now = db.look_at_clock().await?;
        let lease = milliseconds(limits.lease_of_agents);
        // They may have worked on while there was no server.
        db.spare_agents(Time(now.0.saturating_add(lease))).await?;
        let queued = db.recover().await?;
        if queued > 0 {
            tracing::warn!(
                fits = queued,
                "queued {queued} interrupted fits again, each to run in a process of its own"
            );
        }
        let jobs = Jobs::without_runner(db, engine, limits, shutdown).await?;
        let runner = runner::run(Arc::clone(&jobs.shared));
        jobs.shared.tasks.spawn(runner);
        let renew = leases::renew(Arc::clone(&jobs.shared));
        jobs.shared.tasks.spawn(renew);
        if jobs.shared.db.is_shared() {
            let listen = notifications::listen(Arc::clone(&jobs.shared));
            jobs.shared.tasks.spawn(listen);
            let tell = notifications::publish_progress(Arc::clone(&jobs.shared));
            jobs.shared.tasks.spawn(tell);
        }
        let sweep = uploads::sweep(Arc::clone(&jobs.shared));
        jobs.shared.tasks.spawn(sweep);
        Ok(jobs)
    }

    /// For commands that lead a search on a database that a server may use: claims no fits, and drops nothing that
    /// expires.
    pub async fn without_runner(
        db: Db,
        engine: Arc<dyn Engine>,
        limits: Limits,
        shutdown: CancellationToken,
    ) -> Result<Jobs, JobError> {
        let is_shared = db.is_shared();
        let takes = if is_shared {
            let devices = runner::on_thread("devices", Arc::clone(&engine), devices).await?;
            Some(leases::lanes_of(&devices))
        } else {
            None
        };
        let clock = Clock::since(db.last_noted().await?);
        Ok(Jobs {
            shared: Arc::new(Shared {
                db,
                engine,
                limits,
                ids: Ids::default(),
                holder: leases::name(),
                takes,
                beats: Heartbeats::default(),
                clock,
                lanes: Lanes::new(limits.simulated_in_parallel.max(1) as usize),
                spec_cache: SpecCache::default(),
                predictions: Predictions::default(),
                events: Events::new(is_shared),
                remote_progress: RemoteProgress::default(),
                running: Mutex::default(),
                told_by_agents: Mutex::default(),
                wake: Notify::new(),
                for_agents: watch::Sender::default(),
                ended: watch::Sender::default(),
                unstored: AtomicU32::new(0),
                readiness: Readiness::default(),
                shutdown,
                tasks: TaskTracker::new(),
            }),
        })
    }

    /// Waits until every task has ended. Cancel the token given to [`Jobs::start`] first.
    pub async fn ended(&self) {
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    /// Whether fits can be stored: nothing waits to be, and a row was just written.
    pub async fn is_ready(&self) -> Result<(), NotReadyReason> {
        let shared = &self.shared;
        if shared.shutdown.is_cancelled() {
            return Err(NotReadyReason::Ending);
        }
        let found = shared
            .readiness
            .check(
                &shared.db,
                shared.clock.noted(shared.db.now()),
                &shared.tasks,
            )
            .await;
        found?;
        match shared.unstored.load(Ordering::Relaxed) {
            0 => Ok(()),
            some => Err(NotReadyReason::Unstored(some)),
        }
    }

    /// One permit to work on a large model, or on what may be one. A fit of one holds it meanwhile.
    pub fn large_models(&self) -> Arc<Semaphore> {
        self.shared.lanes.large()
    }

    /// Reads a request that names no uploads.
    pub fn parse(&self, document: RequestDocument) -> Result<Request, RequestError> {
        self.shared.parse(document, &Uploads::default())
    }

    /// What is told of a fit after event `last`. `None` where there is no such fit.
    pub async fn events(&self, id: &str, last: Option<u64>) -> Result<Option<Follower>, JobError> {
        let shared = &self.shared;
        if let Some(log) = shared.events.find(id) {
            return Ok(Some(log.follow(last)));
        }
        let Some((state, attempts)) = shared.db.fit_attempts(id).await? else {
            return Ok(None);
        };
        if state.is_final() {
            return Ok(Some({
                let log = Log::new(attempts, state, shared.db.is_shared(), &Arc::default());
                Arc::new(log).follow(last)
            }));
        }
        // One that runs has begun one of its attempts.
        let before = attempts - i64::from(state == FitState::Running);
        let log = shared.events.of(id, before, state);
        // It may have ended before the log was there to be told.
        let state = shared.db.fit_state(id).await?;
        if let Some(state) = state.filter(|state| state.is_final()) {
            shared.events.publish(id, state);
        }
        Ok(Some(log.follow(last)))
    }

    /// What changes from now on, of all fits that this server is asked about.
    pub fn follow_all(&self) -> broadcast::Receiver<FitNews> {
        self.shared.events.follow_all()
    }

    /// The answer of a fit, without its question.
    pub async fn answer(&self, id: &str) -> Result<Option<FitAnswer>, JobError> {
        Ok(self.shared.db.fit_answer(id).await?)
    }

    /// Ends when the server is about to.
    pub async fn ending(&self) {
        self.shared.shutdown.cancelled().await;
    }

    /// The fit, with its progress while it runs here.
    pub async fn fit(&self, id: &str) -> Result<Option<FitDocument>, JobError> {
        let fit = self.shared.db.fit(id).await?;
        Ok(fit.map(|fit| {
            let progress = match fit.state {
                FitState::Running => self
                    .shared
                    .progress(id)
                    .or_else(|| self.shared.remote_progress.progress(id)),
                FitState::Queued | FitState::Done | FitState::Failed | FitState::Cancelled => None,
            };
            FitDocument::of(fit, progress)
        }))
    }

    /// Fits, newest first.
    pub async fn fits(&self, filter: &FitFilter) -> Result<Vec<FitSummary>, JobError> {
        Ok(self.shared.db.fits(filter).await?)
    }

    /// Waits until the fit has ended, the patience is at its end or the server is.
    pub async fn wait(
        &self,
        id: &str,
        patience: Duration,
    ) -> Result<Option<FitDocument>, JobError> {
        let deadline = Instant::now() + patience;
        let mut ended = self.shared.ended.subscribe();
        loop {
            let state = self.shared.db.fit_state(id).await?;
            if state.is_none_or(FitState::is_final) {
                break;
            }
            let waited = tokio::select! {
                changed = tokio::time::timeout_at(deadline, ended.changed()) => changed.is_ok(),
                () = self.shared.shutdown.cancelled() => false,
            };
            if !waited {
                break;
            }
        }
        self.fit(id).await
    }

    /// Stops a fit that waits or runs, where it is this owner's if one is named.
    pub async fn cancel(
        &self,
        id: &str,
        owner: Option<&str>,
        now: Time,
    ) -> Result<Cancellation, JobError> {
        let shared = &self.shared;
        let is_stopped = shared.db.cancel(id, owner, now).await?;
        let Some(fit) = self.fit(id).await? else {
            return Ok(Cancellation::Unknown);
        };
        let is_cancelled = fit.state == FitState::Cancelled;
        if is_stopped {
            shared.forget_cancelled(id);
        }
        Ok(if fit.state.is_final() && !is_cancelled {
            Cancellation::TooLate(fit.state)
        } else if is_cancelled {
            Cancellation::Cancelled(Box::new(fit))
        } else {
            Cancellation::NotYours
        })
    }

    /// The devices that requests may name: those of this machine, of agents, and simulated ones.
    pub async fn devices(&self) -> Result<Vec<DeviceSummary>, JobError> {
        let mut devices = self.on_thread("devices", devices).await?;
        let is_real = |device: &DeviceSummary| device.kind == DeviceKind::Cuda;
        let real = devices.iter().filter(|device| is_real(device)).count();
        devices.splice(real..real, self.devices_of_agents().await?);
        Ok(devices)
    }

    /// Another number whenever answers that were given before may be others: headroom was learnt, or a card calibrated.
    pub fn turns(&self) -> u64 {
        let learnt = self.shared.db.learnt_turns();
        learnt.wrapping_add(calibration_turn())
    }

    /// The database, for questions that need no work.
    pub fn db(&self) -> &Db {
        &self.shared.db
    }

    /// Runs `work` on a thread of its own and waits for it, or for the end of the server.
    pub(in crate::jobs) async fn on_thread<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&dyn Engine) -> T + Send + 'static,
    ) -> Result<T, JobError> {
        let working = runner::on_thread(name, Arc::clone(&self.shared.engine), work);
        tokio::select! {
            done = working => done,
            () = self.shared.shutdown.cancelled() => Err(JobError::ShuttingDown),
        }
    }
}

/// The devices of this machine.
fn devices(engine: &dyn Engine) -> Vec<DeviceSummary> {
    engine.catalogue().devices()
}
