//! The life of an agent: it registers, takes what its cards can run, and ends when it is told to.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::Method;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::client::{Server, ServerError, ServerRequest};
use super::{alongside, job};
use crate::jobs::{
    AgentCard, Claim, ClaimDocument, Engine, JobDocument, PROTOCOL, Registration,
    RegistrationResponse,
};
use crate::limits::shorten;
use crate::model::{DeviceChoice, ENGINE_DIGEST};
use crate::store::Assignment;

/// How long it waits for something to do at a time, and how much longer the answer may take.
const WAIT: Duration = Duration::from_secs(20);
const ON_THE_WAY: Duration = Duration::from_secs(15);

/// How much longer than its wait the service may be silent to an agent that takes one job.
const LATE: Duration = Duration::from_secs(2);

/// The same while it works on something: what it is asked when has changed by then.
const SHORT_WAIT: Duration = Duration::from_secs(2);

/// How long it looks away while there is nothing that it may do.
const LOOK: Duration = Duration::from_millis(500);

/// How long engines may take to stop when it has to end at once.
const STOPPING: Duration = Duration::from_secs(5);

/// How long it may take to take leave.
const LEAVE: Duration = Duration::from_secs(5);

/// How an agent works.
#[derive(Debug, Clone, Copy)]
pub struct AgentConfig {
    /// To take one job and end; or, where there is none within this time, nothing.
    pub once: Option<Duration>,
    /// How long it may go on with what it works on once it is told to end; for ever, if not given.
    pub grace: Option<Duration>,
    /// How long it tries to bring an answer to a service that cannot be reached.
    pub deliver: Duration,
}

/// When it is to end.
#[derive(Debug, Clone, Default)]
pub struct Signals {
    /// When what it works on is finished.
    pub drain: CancellationToken,
    /// At once.
    pub stop: CancellationToken,
}

impl Signals {
    /// Until it is told to end, either way.
    async fn told(&self) {
        tokio::select! {
            () = self.drain.cancelled() => {}
            () = self.stop.cancelled() => {}
        }
    }
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Drained,
    /// It worked on the one job that it was to take.
    WorkedOnce,
    /// There was nothing to do.
    NothingToDo,
}

/// Why it could not work.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The service does not want it: of another version, without a key.
    #[error("{server} does not take this agent")]
    Refused {
        /// The service.
        server: String,
        /// What it said.
        source: ServerError,
    },
    /// The system has no randomness.
    #[error("the system has no randomness: {0}")]
    NoChance(String),
}

/// What all parts of an agent know.
pub(super) struct Shared {
    pub(super) server: Server,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) orders: AgentConfig,
    pub(super) signals: Signals,
    registration: Registration,
    known: Mutex<Known>,
    draining: AtomicBool,
}

/// What the service said last.
#[derive(Debug, Clone)]
struct Known {
    id: String,
    duty: Assignment,
    lease: Duration,
    /// Cards on which nothing runs.
    free: BTreeSet<String>,
}

/// An agent with these cards works until it is told to end.
pub async fn run(
    server: Server,
    engine: Arc<dyn Engine>,
    name: String,
    cards: Vec<AgentCard>,
    orders: AgentConfig,
    signals: Signals,
) -> Result<Ended, AgentError> {
    let mut instance = [0; 16];
    getrandom::fill(&mut instance).map_err(|error| AgentError::NoChance(error.to_string()))?;
    let instance = format!("{:032x}", u128::from_be_bytes(instance));
    let shared = Arc::new(Shared {
        known: Mutex::new(Known {
            id: String::new(),
            duty: Assignment::Ready,
            lease: Duration::from_secs(30),
            free: cards.iter().map(|card| card.device.clone()).collect(),
        }),
        registration: Registration {
            name,
            instance,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: PROTOCOL,
            rules: ENGINE_DIGEST.to_owned(),
            draining: false,
            cards,
        },
        server,
        engine,
        orders,
        signals,
        draining: AtomicBool::new(false),
    });
    let deadline = shared.orders.once.map(|wait| Instant::now() + wait);
    if let Some(ended) = shared.arrive(deadline).await? {
        if ended == Ended::NothingToDo {
            tracing::warn!("could not register in time; ends");
        }
        return Ok(ended);
    }
    let ended = {
        let _beats = alongside(beat(Arc::clone(&shared)));
        let _grace = alongside(grace(Arc::clone(&shared)));
        shared.work(deadline).await
    };
    shared.leave().await;
    if ended == Ended::NothingToDo {
        tracing::info!("there was nothing to do; ends");
    }
    Ok(ended)
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its id, as the service knows it.
    pub(super) fn id(&self) -> String {
        self.known().id.clone()
    }

    /// How long it may say nothing.
    pub(super) fn lease(&self) -> Duration {
        self.known().lease
    }

    /// Registers, or says that it is there.
    pub(super) async fn register(&self) -> Result<(), ServerError> {
        let registration = Registration {
            draining: self.draining.load(Ordering::Relaxed),
            ..self.registration.clone()
        };
        let asking = ServerRequest::with(Method::POST, "/v1/agents", &registration);
        let welcome: RegistrationResponse = self.server.ask_json(asking).await?;
        let mut known = self.known();
        if known.id != welcome.agent.id {
            tracing::info!(
                id = %welcome.agent.id,
                "registered as {} at {}", welcome.agent.name, self.server.url()
            );
        }
        if known.duty != welcome.duty {
            tracing::info!("told to be {}", welcome.duty.name());
        }
        known.id = welcome.agent.id;
        known.duty = welcome.duty;
        known.lease = Duration::from_secs(welcome.lease_seconds.max(1));
        Ok(())
    }

    /// Registers for the first time, again and again where the service does not answer. Says how it ended before it did, if so.
    async fn arrive(&self, deadline: Option<Instant>) -> Result<Option<Ended>, AgentError> {
        let mut backoff = Backoff::default();
        loop {
            let registered = tokio::select! {
                registered = in_time(deadline, self.register()) => registered,
                () = self.signals.told() => return Ok(Some(Ended::Drained)),
            };
            let error = match registered {
                Some(Ok(())) => return Ok(None),
                Some(Err(error)) => error,
                None => return Ok(Some(Ended::NothingToDo)),
            };
            if !error.may_pass() && !error.is("agent-name-taken") {
                return Err(AgentError::Refused {
                    server: self.server.url().to_owned(),
                    source: error,
                });
            }
            let pause = backoff.pause();
            tracing::warn!("{error}; trying again in {:.1} s", pause.as_secs_f64());
            if deadline.is_some_and(|deadline| Instant::now() + pause >= deadline) {
                return Ok(Some(Ended::NothingToDo));
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.signals.told() => return Ok(Some(Ended::Drained)),
            }
        }
    }

    /// Takes jobs until it is to end, and waits for those that are under way.
    async fn work(self: &Arc<Shared>, deadline: Option<Instant>) -> Ended {
        let mut jobs: JoinSet<()> = JoinSet::new();
        let mut backoff = Backoff::default();
        let mut ended = Ended::Drained;
        loop {
            while jobs.try_join_next().is_some() {}
            let is_to_end = self.signals.drain.is_cancelled() || self.signals.stop.is_cancelled();
            let duty = self.known().duty;
            if is_to_end || duty == Assignment::Draining {
                break;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                ended = Ended::NothingToDo;
                break;
            }
            let free: Vec<String> = self.known().free.iter().cloned().collect();
            if duty == Assignment::Cordoned || free.is_empty() {
                self.rest(&mut jobs, LOOK).await;
                continue;
            }
            let wait = if jobs.is_empty() { WAIT } else { SHORT_WAIT };
            let left = deadline.map_or(wait, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            let longest = match deadline {
                Some(_) if left <= wait => left + LATE,
                Some(_) | None => wait + ON_THE_WAY,
            };
            match self.claim(free, wait.min(left), longest).await {
                Ok(None) => backoff.reset(),
                Ok(Some(job)) => {
                    backoff.reset();
                    if let Some(place) = self.take(&job) {
                        jobs.spawn(work_on(Arc::clone(self), job, place));
                    }
                    if deadline.is_some() {
                        ended = Ended::WorkedOnce;
                        break;
                    }
                }
                Err(error) => {
                    let error = if error.is_gone() {
                        // The service has forgotten it.
                        tokio::select! {
                            registered = self.register() => registered.err(),
                            () = self.signals.told() => continue,
                        }
                    } else {
                        Some(error)
                    };
                    let pause = backoff.pause();
                    if let Some(error) = error {
                        tracing::warn!("{error}; trying again in {:.1} s", pause.as_secs_f64());
                    }
                    self.rest(&mut jobs, pause).await;
                }
            }
        }
        if !jobs.is_empty() && ended != Ended::WorkedOnce {
            tracing::info!(
                jobs = jobs.len(),
                "taking no more, and finishing {} fits",
                jobs.len()
            );
        }
        let stopped = async {
            self.signals.stop.cancelled().await;
            tokio::time::sleep(STOPPING).await;
        };
        let all = async { while jobs.join_next().await.is_some() {} };
        tokio::select! {
            () = all => {}
            () = stopped => tracing::warn!("some work did not stop in time; its fits go to others when their leases have passed"),
        }
        ended
    }

    /// Waits a moment, or until a job has ended or this is to end.
    async fn rest(&self, jobs: &mut JoinSet<()>, pause: Duration) {
        let some_job = async {
            if jobs.join_next().await.is_none() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = some_job => {}
            () = tokio::time::sleep(pause) => {}
            () = self.signals.told() => {}
        }
    }

    /// Asks for something to do. Not given up half way, because what is given would be lost: the service is told to answer.
    async fn claim(
        &self,
        free: Vec<String>,
        wait: Duration,
        longest: Duration,
    ) -> Result<Option<JobDocument>, ServerError> {
        let claim = Claim {
            free,
            wait_seconds: u32::try_from(wait.as_secs()).unwrap_or(0),
        };
        let path = format!("/v1/agents/{}/claims", self.id());
        let asking = ServerRequest::with(Method::POST, path, &claim).timeout(longest);
        let claiming = self.server.ask_json::<ClaimDocument>(asking);
        tokio::pin!(claiming);
        let claimed = tokio::select! {
            claimed = &mut claiming => claimed,
            () = self.signals.drain.cancelled() => {
                self.draining.store(true, Ordering::Relaxed);
                // Where it cannot be told, the wait is over in some seconds.
                let _ = self.register().await;
                claiming.await
            }
        }?;
        self.known().duty = claimed.duty;
        match claimed.job {
            Some(job) if !job.is_named() => Err(self.server.odd("a job whose attempt has no name")),
            job => Ok(job),
        }
    }

    /// Takes the cards of a job; `None` where they are not free, which the service thought they were.
    fn take(&self, job: &JobDocument) -> Option<CardLease> {
        let all = &self.registration.cards;
        let mut known = self.known();
        let is_meant = |card: &&AgentCard| {
            let named = card.device == job.device || card.kind.as_deref() == Some(&job.device);
            named && known.free.contains(&card.device)
        };
        let wanted = usize::try_from(job.cards).unwrap_or(usize::MAX);
        let cards: Vec<AgentCard> = all.iter().filter(is_meant).take(wanted).cloned().collect();
        if cards.is_empty() || cards.len() < wanted {
            tracing::error!(
                "the service gave a fit for {:?}, which is not free",
                shorten(&job.device)
            );
            return None;
        }
        for card in &cards {
            known.free.remove(&card.device);
        }
        Some(CardLease { cards })
    }

    fn give_back(&self, taken: &CardLease) {
        let mut known = self.known();
        for card in &taken.cards {
            known.free.insert(card.device.clone());
        }
    }

    /// Says that it is gone.
    async fn leave(&self) {
        let path = format!("/v1/agents/{}", self.id());
        let asking = ServerRequest {
            method: Method::DELETE,
            ..ServerRequest::get(path)
        };
        if let Err(error) = self.server.send(asking.timeout(LEAVE)).await {
            tracing::warn!("could not take leave: {error}");
        }
    }
}

/// What comes of this before an agent that takes one job gives up.
async fn in_time<T>(deadline: Option<Instant>, what: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline + LATE, what).await.ok(),
        None => Some(what.await),
    }
}

/// Cards that a job has.
struct CardLease {
    cards: Vec<AgentCard>,
}

impl CardLease {
    /// What the engine of this machine calls them.
    fn device(&self) -> DeviceChoice {
        let (first, kind) = (&self.cards[0], self.cards[0].kind.clone());
        match (first.simulated, kind, self.cards.len()) {
            (true, Some(kind), _) => DeviceChoice::Sim(kind),
            (false, Some(kind), 2..) => DeviceChoice::Kind(kind),
            (_, _, _) => {
                let number = first.device.strip_prefix("cuda:");
                let number = number.and_then(|number| number.parse().ok());
                number.map_or(DeviceChoice::Auto, DeviceChoice::Cuda)
            }
        }
    }
}

async fn work_on(shared: Arc<Shared>, job: JobDocument, taken: CardLease) {
    job::work(&shared, job, taken.device()).await;
    shared.give_back(&taken);
}

/// Says again and again that this agent is there.
async fn beat(shared: Arc<Shared>) {
    let mut is_heard = true;
    loop {
        let beat = shared.lease() / 3;
        tokio::select! {
            () = tokio::time::sleep(beat) => {}
            () = shared.signals.drain.cancelled(), if !shared.draining.load(Ordering::Relaxed) => {
                shared.draining.store(true, Ordering::Relaxed);
            }
        }
        match shared.register().await {
            Ok(()) => is_heard = true,
            Err(error) => {
                if is_heard {
                    tracing::warn!(
                        "{error}; this agent goes on, and says that it is there until it is heard"
                    );
                }
                is_heard = false;
            }
        }
    }
}

/// Has it end at once when its time is up.
async fn grace(shared: Arc<Shared>) {
    shared.signals.drain.cancelled().await;
    match shared.orders.grace {
        Some(grace) => tokio::time::sleep(grace).await,
        None => std::future::pending().await,
    }
    tracing::warn!("the time to finish is up: what is not finished goes to others");
    shared.signals.stop.cancel();
}
