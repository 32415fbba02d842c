//! What the outside may ask of the queue.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::agents::Place;
use super::clock::{Clock, milliseconds};
use super::document::{chance, new_fit, terms};
use super::events::{Events, FitNews, Follower, Log};
use super::handover::Handover;
use super::lanes::{LARGE_LANE, Lanes, lane_of_fit};
use super::leases::{self, Beats, LEASE};
use super::news::{self, Elsewhere};
use super::outcomes::{short_digest, taught};
use super::readiness::{Readiness, Unready};
use super::uploads::unknown;
use super::validate::{validate, validate_fit};
use super::{
    DeviceKind, DeviceSummary, Engine, EngineError, FitDocument, Progress, UploadLimits, runner,
    uploads,
};
use crate::alloc::MemoryLimit;
use crate::bounded::{CancelOnDrop, unless};
use crate::device::sim::calibration_turn;
use crate::model::{DeviceChoice, Digest, Invalid, ModelAside, Request, RequestDocument, Uploads};
use crate::store::{
    Db, Enqueued, FitAnswer, FitFilter, FitState, FitSummary, Holder, IdempotencyKey, Ids,
    JsonText, Lease, NewFit, NewUpload, ParallelSimulated, Reuse, StoreError, Time,
};

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
            // Some lost messages, and an agent that loads a large model, are no reason to begin anew.
            lease_of_agents: Duration::from_secs(30),
        }
    }
}

/// Why a job was not done.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// Too many fits are waiting.
    #[error("{waiting} fits are waiting already")]
    QueueFull {
        /// The bound that was reached.
        waiting: u32,
    },
    /// Something else was asked under the same idempotency key.
    #[error(
        "something else was asked under the Idempotency-Key {key:?}, which got fit {fit}; send what was sent then, or a new \
         key"
    )]
    KeyReused {
        /// The key.
        key: String,
        /// What was asked first.
        fit: String,
    },
    /// As many searches are under way as may be.
    #[error("{most} searches are under way already; cancel those that nobody needs")]
    TooManySearches {
        /// The bound that was reached.
        most: u32,
    },
    /// The device has been busy for longer than a caller should wait.
    #[error("{device} is busy with another request")]
    DeviceBusy {
        /// As in the request.
        device: String,
    },
    /// The request names an upload that is not there.
    #[error(
        "there is no upload {digest}, or it has expired; send the file with PUT /v1/graphs/{digest}, or POST \
         /v1/graphs, and ask again"
    )]
    UploadUnknown {
        /// Where in the request, as a JSON pointer.
        pointer: String,
        /// What is named there.
        digest: Digest,
    },
    /// All uploads together take what they may.
    #[error(
        "this upload takes {} MiB compressed, and others take {} of the {} MiB that all of them may; GET /v1/graphs \
         lists them, DELETE drops one, and those that nothing refers to expire", needed.div_ceil(1 << 20), taken.div_ceil(1 << 20), limit >> 20
    )]
    UploadsFull {
        /// What this one takes, in bytes.
        needed: usize,
        /// What the others do.
        taken: u64,
        /// What all of them may.
        limit: u64,
    },
    /// The engine has no answer.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine panicked.
    #[error("the engine panicked: {message}")]
    EnginePanicked {
        /// What it said.
        message: String,
    },
    /// The work was not done in time, and was stopped.
    #[error("the probe took longer than {} s and was stopped; ask for less at a time", deadline.as_secs())]
    TookTooLong {
        /// How long it might have taken.
        deadline: Duration,
    },
    /// Others changed what was just looked at.
    #[error("others changed the fit meanwhile; ask again")]
    Busy,
    /// An agent has another version.
    #[error("{needed}")]
    AgentVersion {
        /// Which one is needed.
        needed: String,
    },
    /// Another agent has this name.
    #[error(
        "another agent called {name} is registered and was heard of {silent} s ago; give this one another name (`--name`), or wait \
         until that one is lost"
    )]
    AgentNameTaken {
        /// The name.
        name: String,
        /// How long nothing was heard of the other, in seconds.
        silent: u64,
    },
    /// There are as many agents as may be.
    #[error(
        "there are as many agents as may be; forget those that are lost with DELETE /v1/agents/{{id}}"
    )]
    TooManyAgents,
    /// What an agent says is of an attempt that is not its own any more.
    #[error(
        "attempt {attempt} is not under way any more: its lease has passed and the fit was given to another, or it was cancelled; what \
         is said of it is not stored"
    )]
    LeaseLost {
        /// The attempt.
        attempt: String,
    },
    /// There is nothing more to be said of an attempt.
    #[error("attempt {attempt} has ended, and its answer is stored")]
    JobEnded {
        /// The attempt.
        attempt: String,
    },
    /// The server is about to end.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The database has no answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How a fit is asked for, beside what.
#[derive(Debug, Clone, Default)]
pub struct Asking {
    /// Whether somebody waits for the answer.
    pub somebody_waits: bool,
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
    /// There is no such fit.
    Unknown,
}

/// The queue, its runner, and everything that works for them. Cloning it shares it.
#[derive(Clone)]
pub struct Jobs {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) db: Db,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) limits: Limits,
    pub(super) ids: Ids,
    /// Under which name this server works on fits.
    pub(super) holder: Holder,
    /// Which GPUs its fits may be for, where other servers have others; `None` for any.
    pub(super) gpus: Option<String>,
    /// When it last reached the database, and what time it is there.
    pub(super) beats: Beats,
    pub(super) clock: Clock,
    pub(super) lanes: Lanes,
    pub(super) handover: Handover,
    /// What is told of fits.
    pub(super) events: Events,
    /// What other servers tell.
    pub(super) elsewhere: Elsewhere,
    /// The fits at work in this process, by id.
    pub(super) running: Mutex<HashMap<String, Arc<Running>>>,
    /// How far agents are, by fit.
    told_by_agents: Mutex<HashMap<String, Progress>>,
    /// Tells the runner that there may be something to claim.
    pub(super) wake: Notify,
    /// Changes whenever there may be something for agents.
    pub(super) for_agents: watch::Sender<()>,
    /// Changes whenever a fit ends.
    pub(super) ended: watch::Sender<()>,
    /// Fits that have ended and could not be stored yet.
    pub(super) unstored: AtomicU32,
    readiness: Readiness,
    pub(super) shutdown: CancellationToken,
    pub(super) tasks: TaskTracker,
}

/// A fit at work.
#[derive(Debug, Default)]
pub(super) struct Running {
    pub(super) cancel: Arc<AtomicBool>,
    pub(super) progress: Mutex<Option<Progress>>,
}

impl Jobs {
    /// Takes up the fits that the last server left unfinished, and starts the runner.
    pub async fn start(
        db: Db,
        engine: Arc<dyn Engine>,
        limits: Limits,
        shutdown: CancellationToken,
    ) -> Result<Jobs, JobError> {
        let now = db.clock(Time::from(jiff::Timestamp::now())).await?;
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
        let jobs = Jobs::beside(db, engine, limits, shutdown).await?;
        let runner = runner::run(Arc::clone(&jobs.shared));
        jobs.shared.tasks.spawn(runner);
        let renew = leases::renew(Arc::clone(&jobs.shared));
        jobs.shared.tasks.spawn(renew);
        if jobs.shared.db.is_shared() {
            let listen = news::listen(Arc::clone(&jobs.shared));
            jobs.shared.tasks.spawn(listen);
            let tell = news::tell(Arc::clone(&jobs.shared));
            jobs.shared.tasks.spawn(tell);
        }
        let sweep = uploads::sweep(Arc::clone(&jobs.shared));
        jobs.shared.tasks.spawn(sweep);
        Ok(jobs)
    }

    /// For whoever leads a search beside a server, perhaps, on its database: takes up no fits, and drops nothing that
    /// expires.
    pub async fn beside(
        db: Db,
        engine: Arc<dyn Engine>,
        limits: Limits,
        shutdown: CancellationToken,
    ) -> Result<Jobs, JobError> {
        let is_shared = db.is_shared();
        let gpus = if is_shared {
            let devices =
                runner::on_thread("devices", Arc::clone(&engine), <dyn Engine>::devices).await?;
            Some(leases::gpus(&devices))
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
                gpus,
                beats: Beats::default(),
                clock,
                lanes: Lanes::new(limits.simulated_in_parallel.max(1) as usize),
                handover: Handover::default(),
                events: Events::new(is_shared),
                elsewhere: Elsewhere::default(),
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
    pub async fn is_ready(&self) -> Result<(), Unready> {
        let shared = &self.shared;
        if shared.shutdown.is_cancelled() {
            return Err(Unready::Ending);
        }
        let found = shared
            .readiness
            .ask(&shared.db, shared.clock.noted(), &shared.tasks)
            .await;
        found?;
        match shared.unstored.load(Ordering::Relaxed) {
            0 => Ok(()),
            some => Err(Unready::Unstored(some)),
        }
    }

    /// One permit for whoever works on a large model, or on what may be one. A fit of one holds it meanwhile.
    pub fn large_models(&self) -> Arc<Semaphore> {
        self.shared.lanes.large()
    }

    /// Reads a request that names no uploads.
    pub fn parse(&self, document: RequestDocument) -> Result<Request, Invalid> {
        self.shared.parse(document, &Uploads::default())
    }

    /// Queues a fit, or finds the one that asks the same.
    ///
    /// An answer that depends on what is free on a GPU at the moment is not used twice: one without a limit, or
    /// one whose limit other processes lowered.
    ///
    /// `large` is the permit of [`Jobs::large_models`], where the request was read under it. A large model keeps it
    /// until it is answered.
    pub async fn enqueue(
        &self,
        request: Request,
        large: Option<OwnedSemaphorePermit>,
        asking: Asking,
        now: Time,
    ) -> Result<FitDocument, JobError> {
        let shared = &self.shared;
        if let Some(fit) = self.asked_before(asking.key.as_ref()).await? {
            return Ok(fit);
        }
        let terms = terms(&request, asking.somebody_waits);
        let Checked {
            request,
            fingerprint,
            model_digest,
            shown,
            aside,
            lane,
            for_agents,
            is_simulated,
        } = self.checked(request).await?;
        let lowered = request.lower().map_err(EngineError::Invalid)?;
        validate_fit(lowered).map_err(EngineError::Invalid)?;
        let id = shared.ids.next(now, chance());
        let aside = aside.map(|aside| beside(aside, now));
        let new = NewFit {
            key: asking.key,
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
        // Before the row is there: whoever claims it looks here once. A worker reads the text for itself.
        let handed = match request.device {
            DeviceChoice::Sim(_) => request.clone().without_text(),
            DeviceChoice::Auto
            | DeviceChoice::Cuda(_)
            | DeviceChoice::Kind(_)
            | DeviceChoice::Host(..) => request.clone(),
        };
        let permit = large.filter(|_| new.lane == LARGE_LANE);
        // An agent reads it for itself.
        let left = (!for_agents).then(|| shared.handover.leave(&new.id, handed, permit));
        let mut queued = shared.db.enqueue(&new, reuse, capacity, space).await?;
        if let Enqueued::Same(id) = &queued
            && !is_simulated
            && let Some(fit) = self.fit(id).await?
            && fit.state == FitState::Done
            && !had_its_limit(&request, &fit)
        {
            queued = shared
                .db
                .enqueue(&new, Reuse::InFlight, capacity, space)
                .await?;
        }
        let is_shared = matches!(queued, Enqueued::Same(_));
        let id = match queued {
            Enqueued::Added => {
                tracing::info!(fit.id = %new.id, device = %new.device, "queued fit {}", new.id);
                if let Some(left) = left {
                    left.stay();
                }
                shared.events.of(&new.id, 0, FitState::Queued);
                shared.wake.notify_one();
                shared.for_agents.send_replace(());
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
            Enqueued::QueueFull => {
                return Err(JobError::QueueFull {
                    waiting: shared.limits.queued,
                });
            }
        };
        // One that ended long ago may be dropped meanwhile.
        let fit = self.fit(&id).await?.ok_or(JobError::Busy)?;
        if is_shared && !fit.state.is_final() {
            shared.db.ask_again(&id, terms).await?;
        }
        Ok(fit)
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
                let log = Log::new(attempts, state, shared.db.is_shared());
                Arc::new(log).follow(last)
            }));
        }
        // One that runs has begun one of its attempts.
        let before = attempts - i64::from(state == FitState::Running);
        let log = shared.events.of(id, before, state);
        // It may have ended before the log was there to be told.
        let state = shared.db.fit_state(id).await?;
        if let Some(state) = state.filter(|state| state.is_final()) {
            shared.events.tell(id, state);
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
                    .or_else(|| self.shared.elsewhere.progress(id)),
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

    /// Stops a fit that waits or runs.
    pub async fn cancel(&self, id: &str, now: Time) -> Result<Cancellation, JobError> {
        let shared = &self.shared;
        if shared.db.cancel(id, now).await? {
            shared.handover.take(id);
            if let Some(running) = shared.running(id) {
                running.cancel.store(true, Ordering::Relaxed);
            }
            shared.told_by_agents().remove(id);
            shared.events.tell(id, FitState::Cancelled);
            shared.wake.notify_one();
            shared.ended.send_replace(());
            tracing::info!(fit.id = %id, "cancelled fit {id}");
        }
        Ok(match self.fit(id).await? {
            None => Cancellation::Unknown,
            Some(fit) if fit.state == FitState::Cancelled => Cancellation::Cancelled(Box::new(fit)),
            Some(fit) => Cancellation::TooLate(fit.state),
        })
    }

    /// The devices that requests may name: those of this machine, of agents, and simulated ones.
    pub async fn devices(&self) -> Result<Vec<DeviceSummary>, JobError> {
        let mut devices = self.on_thread("devices", <dyn Engine>::devices).await?;
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

    /// Builds the request's graph and looks for its device, in this order: a request that is wrong
    /// everywhere is answered with what is wrong in it.
    pub(super) async fn checked(&self, request: Request) -> Result<Checked, JobError> {
        // Dropped with this future, as when the client goes away.
        let abandoned = CancelOnDrop::default();
        let cancel = Arc::clone(&abandoned.0);
        let db = self.shared.db.clone();
        db.read_learnt().await?;
        let place = self.place(&request).await?;
        let check = move |engine: &dyn Engine| {
            let lowered = unless(&cancel, || validate(&request)).ok_or(EngineError::Cancelled)?;
            let lowered = lowered.map_err(EngineError::Invalid)?;
            let (card, agents) = match place? {
                Place::Here => (engine.check(&request)?, None),
                Place::Agents { lane, card } => (card, Some(lane)),
            };
            let digest = request.model_digest(lowered);
            let taught = taught(&db, &request, (lowered, &digest), card.as_deref());
            let request = request.with_taught(taught);
            let lowered = request.lower().map_err(EngineError::Invalid)?;
            let fingerprint = request.fingerprint_with((lowered, &digest), card.as_deref());
            let (shown, aside) = request.shown();
            let for_agents = agents.is_some();
            Ok(Checked {
                lane: agents.unwrap_or_else(|| lane_of_fit(&request, card.as_deref())),
                for_agents,
                is_simulated: card.is_none(),
                shown: JsonText::from(shown.text()),
                aside,
                fingerprint,
                model_digest: short_digest(&digest),
                request,
            })
        };
        let checked: Result<_, EngineError> = self.on_thread("check", check).await?;
        Ok(checked?)
    }

    /// Runs `work` on a thread of its own and waits for it, or for the end of the server.
    pub(super) async fn on_thread<T: Send + 'static>(
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

/// A request that can be worked on.
pub(super) struct Checked {
    pub(super) request: Request,
    pub(super) fingerprint: String,
    /// The model itself: the beginning of a digest.
    model_digest: String,
    /// The request as it is stored and shown.
    pub(super) shown: JsonText,
    /// Its model, where that is not shown.
    aside: Option<ModelAside>,
    /// What it must not run beside.
    pub(super) lane: String,
    /// Whether agents are to answer it.
    pub(super) for_agents: bool,
    /// Whether no real card is asked.
    is_simulated: bool,
}

impl Shared {
    /// Reads a request that names these uploads.
    pub(super) fn parse(
        &self,
        document: RequestDocument,
        uploads: &Uploads,
    ) -> Result<Request, Invalid> {
        // A card may have been calibrated meanwhile.
        let simulated = self.engine.simulated();
        let simulated: Vec<&str> = simulated.iter().map(String::as_str).collect();
        let request = Request::parse_with_uploads(document, uploads, &simulated)?;
        Ok(request.with_recorder(self.engine.records()))
    }

    /// Waits for a place in a lane.
    pub(super) async fn enter(&self, lane: &str) -> OwnedSemaphorePermit {
        // The fits that wait with a permit are claimed after this one.
        let _wanted = (lane == LARGE_LANE).then(|| self.handover.want_permit());
        self.lanes.enter(lane).await
    }

    pub(super) fn running(&self, id: &str) -> Option<Arc<Running>> {
        let running = self
            .running
            .lock()
            .expect("nothing panics while it is held");
        running.get(id).map(Arc::clone)
    }

    /// Whether any fit is at work here.
    pub(super) fn works(&self) -> bool {
        let running = self
            .running
            .lock()
            .expect("nothing panics while it is held");
        !running.is_empty()
    }

    /// The fits that are at work here.
    pub(super) fn at_work(&self) -> Vec<String> {
        let running = self
            .running
            .lock()
            .expect("nothing panics while it is held");
        running.keys().cloned().collect()
    }

    /// For this server, from now on.
    pub(super) fn lease(&self, now: Time) -> Lease<'_> {
        Lease {
            holder: &self.holder,
            until: self.beats.until(now, self.limits.lease),
        }
    }

    /// How far the fits are that are at work here.
    pub(super) fn all_progress(&self) -> HashMap<String, Progress> {
        let running = self
            .running
            .lock()
            .expect("nothing panics while it is held");
        let progress = running.iter().filter_map(|(id, running)| {
            let progress = running.progress.lock();
            let progress = progress.expect("nothing panics while it is held");
            Some((id.clone(), progress.clone()?))
        });
        let mut all = self.told_by_agents().clone();
        all.extend(progress);
        all
    }

    /// How far agents are, by fit.
    pub(super) fn told_by_agents(&self) -> MutexGuard<'_, HashMap<String, Progress>> {
        let told = self.told_by_agents.lock();
        told.expect("nothing panics while it is held")
    }

    fn progress(&self, id: &str) -> Option<Progress> {
        let Some(running) = self.running(id) else {
            return self.told_by_agents().get(id).cloned();
        };
        let progress = running
            .progress
            .lock()
            .expect("nothing panics while it is held");
        progress.clone()
    }

    /// How many simulated fits may be claimed.
    pub(super) fn parallel(&self) -> ParallelSimulated {
        ParallelSimulated(i64::from(self.limits.simulated_in_parallel.max(1)))
    }
}

/// The model of a fit that is not shown with it, to be kept beside it.
fn beside(aside: ModelAside, now: Time) -> NewUpload {
    NewUpload {
        digest: aside.digest,
        names: Vec::new(),
        kind: aside.kind,
        bytes: aside.bytes,
        about: JsonText::from("{}"),
        gzip: aside.gzip,
        created_at: now,
    }
}

/// Whether the answer is for all of the memory that its request allows.
fn had_its_limit(request: &Request, fit: &FitDocument) -> bool {
    let had = fit.result.as_ref().and_then(|result| {
        let recommendation = result.get("recommendation")?;
        recommendation.get("limit_bytes")?.as_u64()
    });
    match (request.memory_limit, had) {
        (Some(MemoryLimit::Bytes(asked)), Some(had)) => had >= asked.0,
        (Some(MemoryLimit::Bytes(_) | MemoryLimit::Fraction(_)) | None, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn fit(limit: u64) -> FitDocument {
        FitDocument {
            id: "1".to_owned(),
            state: FitState::Done,
            request: JsonText::from("{}"),
            result: Some(serde_json::json!({"recommendation": {"limit_bytes": limit}})),
            error: None,
            progress: None,
            created_at: Time::from(Timestamp::UNIX_EPOCH),
            started_at: None,
            finished_at: None,
        }
    }

    #[test]
    fn an_answer_for_less_memory_than_was_asked_for_is_not_used_again() {
        let request = |limit: &str| {
            let text =
                format!(r#"{{"model": {{"preset": "resnet18"}}, "memory_limit": "{limit}"}}"#);
            let document = RequestDocument::from_json(text.as_bytes()).unwrap();
            Request::parse(document, &[]).unwrap()
        };

        assert!(had_its_limit(&request("1GiB"), &fit(1 << 30)));
        assert!(!had_its_limit(&request("1GiB"), &fit(1 << 29)));
        assert!(!had_its_limit(&request("0.5"), &fit(1 << 30)));
    }
}
