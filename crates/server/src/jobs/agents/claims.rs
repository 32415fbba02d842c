//! What an agent works on: how it gets it, says how far it is, and brings the answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::jobs::clock::milliseconds;
use crate::jobs::document::LARGE_LANE;
use crate::jobs::document::{VERSION, json, recommendations};
use crate::jobs::events::Notification;
use crate::jobs::lanes::PATIENCE_ALONE;
use crate::jobs::runner::{known, on_thread, read};
use crate::jobs::shares::{
    KeyPermit, niceness_of, permit_to_fetch, permit_to_work, permits_in_use, yielding,
};
use crate::jobs::{
    Engine, EngineError, FailureCode, FitError, FitResult, JobError, Jobs, Progress,
};
use crate::limits::shorten;
use crate::lock;
use crate::model::{DeviceChoice, Request, RequestError};
use crate::store::{
    Assignment, Attempt, Claimed, FitState, Lease, LeaseOwner, StoreError, StoredAgent, Time,
    is_simulation,
};

use super::check::{check, cut};
use super::executor::{CardRequest, free_cards, lanes};
use super::{Claim, ClaimDocument, JobDocument, JobNews, JobOutcome, LeaseDocument, Owner, cards};

/// Longest time that an agent waits for something to do. Proxies close what is silent for a minute.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// How often an agent that waits looks for what another server queued.
const LOOK: Duration = Duration::from_secs(2);

/// Longest note of an agent's progress, and longest reason for a failure, in bytes.
const LONGEST_NOTE: usize = 1_000;
const LONGEST_REASON: usize = 10_000;

/// Longest text of an answer that is a column of its recommendations.
const LONGEST_KEPT: usize = 200;

/// The name of an attempt.
struct AttemptName<'a> {
    fit: &'a str,
    number: i64,
}

impl<'a> AttemptName<'a> {
    fn read(text: &'a str) -> Option<AttemptName<'a>> {
        let (fit, number) = text.split_once('.')?;
        Some(AttemptName {
            fit,
            number: number.parse().ok()?,
        })
    }
}

impl Jobs {
    /// Gives an agent something to do, as soon as there is something; `None` where there is no such agent of this owner.
    pub async fn claim_job(
        &self,
        id: &str,
        owner: &Owner,
        claim: &Claim,
    ) -> Result<Option<ClaimDocument>, JobError> {
        let shared = &self.shared;
        let wait = Duration::from_secs(u64::from(claim.wait_seconds));
        let wait = wait
            .min(LONGEST_WAIT)
            .min(shared.limits.lease_of_agents / 2);
        let deadline = Instant::now() + wait;
        let mut changes = shared.for_agents.subscribe();
        let mut is_seen = false;
        loop {
            changes.mark_unchanged();
            let Some(agent) = self.own_agent(id, owner).await? else {
                return Ok(None);
            };
            let now = self.now();
            if !is_seen {
                // Once: it waits for less than a lease, and thousands of agents wait.
                shared.db.agent_seen(id, now).await?;
                is_seen = true;
            }
            let job = match agent.duty {
                Assignment::Ready => self.hand_out(&agent, &claim.free, now).await?,
                Assignment::Draining | Assignment::Cordoned => None,
            };
            if job.is_some() || agent.duty != Assignment::Ready || Instant::now() >= deadline {
                let duty = agent.duty;
                return Ok(Some(ClaimDocument { duty, job }));
            }
            let look = deadline.min(Instant::now() + LOOK);
            tokio::select! {
                _ = changes.changed() => {}
                () = tokio::time::sleep_until(look) => {}
                () = shared.shutdown.cancelled() => return Err(JobError::ShuttingDown),
            }
        }
    }

    /// Claims the first fit that waits for one of these cards.
    async fn hand_out(
        &self,
        agent: &StoredAgent,
        free: &[String],
        now: Time,
    ) -> Result<Option<JobDocument>, JobError> {
        let shared = &self.shared;
        let cards = cards(agent);
        let all: Vec<String> = lanes(&agent.name, &cards).into_keys().collect();
        let all = format!(",{},", all.join(","));
        let waiting = shared.db.waiting_for_agents(&all, now).await?;
        if waiting.is_empty() {
            return Ok(None);
        }
        let holder = agent.holder();
        let held = shared.db.running_fits(Some(&holder)).await?;
        let works_on = held.iter().map(|fit| fit.lane.as_str()).collect();
        let free = free_cards(&agent.name, &cards, free, works_on);
        let lanes: HashMap<String, CardRequest> = lanes(&agent.name, free);
        for (id, lane) in waiting {
            let Some(takes) = lanes.get(&lane) else {
                continue;
            };
            let lease = Lease {
                holder: &holder,
                until: self.lease_until(now),
            };
            let Some(claimed) = shared.db.claim_one(&id, lease, held.len(), now).await? else {
                // Another agent was faster; or another claim of this one, which may have its card.
                if shared.db.running_fits(Some(&holder)).await?.len() != held.len() {
                    return Ok(None);
                }
                continue;
            };
            if claimed.timeout_seconds.is_some_and(|left| left <= 0) {
                // Earlier attempts took all of it.
                shared.time_out(claimed.attempt(), now).await?;
                continue;
            }
            tracing::info!(
                fit.id = %id, agent = %agent.name,
                "the agent {} works on fit {id}, attempt {}", agent.name, claimed.attempts
            );
            lock(&shared.told_by_agents).remove(&id);
            let before = claimed.attempts - 1;
            shared.events.of(&id, before, FitState::Running);
            shared.events.publish(&id, FitState::Running);
            return Ok(Some(JobDocument {
                attempt: format!("{id}.{}", claimed.attempts),
                fit: id,
                device: takes.device.clone(),
                cards: takes.cards,
                apart: claimed.apart,
                timeout_seconds: claimed.timeout_seconds,
                taught: known(&claimed),
                lease_seconds: shared.limits.lease_of_agents.as_secs(),
            }));
        }
        Ok(None)
    }

    /// What `write` makes of what is asked in a job, whole: with what its model names in place. `None` where there is no such agent of this
    /// owner. One at a time where it may be large: the next one of the key is read when its permit is dropped.
    pub async fn request_of_job<T: Send + 'static>(
        &self,
        id: &str,
        owner: &Owner,
        attempt: &str,
        write: impl FnOnce(String) -> T + Send + 'static,
    ) -> Result<Option<(T, Option<KeyPermit>)>, JobError> {
        let shared = &self.shared;
        let Some(agent) = self.own_agent(id, owner).await? else {
            return Ok(None);
        };
        let (claimed, state) = self.under_way(&agent, attempt).await?;
        if state != FitState::Running {
            let attempt = shorten(attempt);
            return Err(JobError::JobEnded(attempt));
        }
        let write = move |request: Request| write(request.self_contained().text().to_string());
        match self.read_job(&claimed, permit_to_fetch(), write).await? {
            (Ok(written), turn) => Ok(Some((written, turn))),
            (Err(error), _) => {
                // It was valid when it was queued, so it was queued by another version.
                let error = shared
                    .fail_job(claimed.attempt(), error, self.now())
                    .await?;
                let invalid = RequestError::at("", error.detail);
                Err(EngineError::Invalid(invalid).into())
            }
        }
    }

    /// Notes how far an agent is, and renews its lease. `None` where there is no such agent of this owner.
    pub async fn renew_job(
        &self,
        id: &str,
        owner: &Owner,
        attempt: &str,
        news: JobNews,
    ) -> Result<Option<LeaseDocument>, JobError> {
        let shared = &self.shared;
        let Some(agent) = self.own_agent(id, owner).await? else {
            return Ok(None);
        };
        let holder = agent.holder();
        let named = named(attempt, &holder)?;
        let now = self.now();
        let lease = |state, timeout_seconds| LeaseDocument {
            state,
            timeout_seconds,
            lease_seconds: shared.limits.lease_of_agents.as_secs(),
        };
        if !self.renewed(named, now).await? {
            return match shared.db.attempt_state(named).await? {
                Some(state @ (FitState::Done | FitState::Cancelled)) => {
                    Ok(Some(lease(state, None)))
                }
                Some(FitState::Failed | FitState::Queued | FitState::Running) | None => {
                    Err(lease_lost(attempt))
                }
            };
        }
        shared.db.agent_seen(id, now).await?;
        if let Some(progress) = news.progress {
            let progress = Progress {
                note: cut(&progress.note, LONGEST_NOTE),
                ..progress
            };
            if let Some(log) = shared.events.find(named.id) {
                log.push(Notification::Probe(progress.clone()));
            }
            lock(&shared.told_by_agents).insert(named.id.to_owned(), progress);
        }
        let timeout = shared.db.fit_timeout(named.id).await?;
        Ok(Some(lease(FitState::Running, timeout)))
    }

    /// Stores what came of a job; the same said twice counts once. False where there is no such agent of this owner.
    pub async fn finish_job(
        &self,
        id: &str,
        owner: &Owner,
        attempt: &str,
        outcome: JobOutcome,
    ) -> Result<bool, JobError> {
        let shared = &self.shared;
        let Some(agent) = self.own_agent(id, owner).await? else {
            return Ok(false);
        };
        let (claimed, state) = self.under_way(&agent, attempt).await?;
        match (state, &outcome) {
            (FitState::Running, _) => {}
            (FitState::Failed, JobOutcome::Answered { .. }) => return Err(lease_lost(attempt)),
            _ => return Ok(true),
        }
        let done = match outcome {
            JobOutcome::Released => {
                let attempt = claimed.attempt();
                let given_back = shared
                    .db
                    .give_back(attempt.holder, Some(attempt), self.now())
                    .await?;
                shared.events.publish(&claimed.id, FitState::Queued);
                shared.for_agents.send_replace(());
                given_back > 0
            }
            JobOutcome::Failed { error } => {
                let error = FitError {
                    detail: cut(&error.detail, LONGEST_REASON),
                    pointer: error.pointer.map(|pointer| cut(&pointer, LONGEST_NOTE)),
                    simulated: None,
                    ..error
                };
                shared
                    .fail_job(claimed.attempt(), error, self.now())
                    .await?;
                true
            }
            JobOutcome::Answered { result } => self.answered(&agent, &claimed, *result).await?,
        };
        if done {
            Ok(true)
        } else {
            Err(lease_lost(attempt))
        }
    }

    /// Stores an answer. False where the attempt was overtaken meanwhile.
    async fn answered(
        &self,
        agent: &StoredAgent,
        claimed: &Claimed,
        result: FitResult,
    ) -> Result<bool, JobError> {
        let shared = &self.shared;
        let reading = self.read_job(claimed, permit_to_work(), |request| request);
        let (request, _) = reading.await?;
        let found = request.and_then(|request| {
            let result = signed(result, agent, &request)?;
            Ok((request, result))
        });
        let (request, result) = match found {
            Ok(found) => found,
            Err(error) => {
                let attempt = claimed.attempt();
                let error = shared.fail_job(attempt, error, self.now()).await?;
                return Err(EngineError::Invalid(RequestError::at("/result", error.detail)).into());
            }
        };
        let (now, found) = (self.now(), (&request, &result));
        let stored = self.keep(agent, claimed, found, now).await?;
        if stored && let Err(error) = self.answer_twins(agent, claimed, found, now).await {
            // Agents come to them in their turn.
            tracing::warn!(fit.id = %claimed.id, "who asks the same as fit {} goes on waiting: {error}", claimed.id);
        }
        Ok(stored)
    }

    /// Other keys may have asked the same before there was an answer, and no agent has begun with it.
    async fn answer_twins(
        &self,
        agent: &StoredAgent,
        claimed: &Claimed,
        found: (&Request, &FitResult),
        now: Time,
    ) -> Result<(), JobError> {
        let mut twin = claimed.clone();
        for waiting in self.shared.db.waiting_twins(claimed).await? {
            (twin.id, twin.attempts) = (waiting.id, waiting.attempts + 1);
            self.keep(agent, &twin, found, now).await?;
        }
        Ok(())
    }

    /// Stores an answer that was looked at. False where the attempt was overtaken meanwhile.
    async fn keep(
        &self,
        agent: &StoredAgent,
        claimed: &Claimed,
        (request, result): (&Request, &FitResult),
        now: Time,
    ) -> Result<bool, JobError> {
        let shared = &self.shared;
        let of = (request, claimed.model_digest.as_str());
        let next_id = || shared.ids.next(now);
        let mut rows = recommendations(&claimed.id, of, result, now, next_id)?;
        // The service has these of all its answers in memory.
        for row in &mut rows {
            row.limited_by = cut(&row.limited_by, LONGEST_KEPT);
            row.cudnn = row.cudnn.as_deref().map(|text| cut(text, LONGEST_KEPT));
        }
        // What an agent simulated is no simulation of the service's own.
        for row in rows.iter_mut().filter(|row| is_simulation(&row.device)) {
            row.device = request.device.to_string();
            row.driver = None;
        }
        let attempt = claimed.attempt();
        let document = json(result);
        let stored = shared.db.finish(attempt, &document, &rows, now).await?;
        if stored {
            tracing::info!(
                fit.id = %claimed.id, agent = %agent.name,
                micro_batch = result.recommendation.micro_batch,
                "fit {} ends at a micro-batch of {}, as the agent {} found",
                claimed.id, result.recommendation.micro_batch, agent.name
            );
            shared.job_ended(&claimed.id, FitState::Done);
        }
        Ok(stored)
    }

    /// Renews the lease of an attempt. False where it is not under way any more: one whose time limit passed a lease ago ends here.
    async fn renewed(&self, attempt: Attempt<'_>, now: Time) -> Result<bool, StoreError> {
        let shared = &self.shared;
        let silence = milliseconds(shared.limits.lease_of_agents);
        let until = self.lease_until(now);
        let Some(until) = shared.db.renew(attempt, until, silence).await? else {
            return Ok(false);
        };
        if until < now {
            shared.time_out(attempt, now).await?;
        }
        Ok(until >= now)
    }

    /// The attempt of this name, which this agent makes, and whether it is under way or has ended.
    async fn under_way(
        &self,
        agent: &StoredAgent,
        attempt: &str,
    ) -> Result<(Claimed, FitState), JobError> {
        let holder = agent.holder();
        let named = named(attempt, &holder)?;
        self.renewed(named, self.now()).await?;
        match self.shared.db.attempted(named).await? {
            Some((state @ (FitState::Running | FitState::Done | FitState::Failed), claimed)) => {
                Ok((claimed, state))
            }
            Some((FitState::Cancelled | FitState::Queued, _)) | None => Err(lease_lost(attempt)),
        }
    }

    /// Reads what a job asks, for `then`. One that may be large waits for its `turn` under the key, which it gives back with what it read, and for
    /// the place of large models. It keeps both until it is read, also where whoever asked is gone.
    async fn read_job<T: Send + 'static>(
        &self,
        claimed: &Claimed,
        turn: impl Future<Output = Option<KeyPermit>>,
        then: impl FnOnce(Request) -> T + Send + 'static,
    ) -> Result<(Result<T, FitError>, Option<KeyPermit>), JobError> {
        let (shared, claimed) = (Arc::clone(&self.shared), claimed.clone());
        // What is large is somewhere else, and named by its digest.
        let (turn, place) = if claimed.request.as_str().contains("sha256:") {
            let entering = async { (turn.await, Some(shared.enter(LARGE_LANE).await)) };
            let entered = tokio::time::timeout(PATIENCE_ALONE, entering).await;
            entered.map_err(|_| JobError::TooLarge)?
        } else {
            (None, None)
        };
        // What is spawned has no key.
        let (tasks, asked) = (shared.tasks.clone(), permits_in_use());
        let reading = async move {
            let _place = place;
            let named = (claimed.id.as_str(), &claimed.request);
            let request = match read(&shared, named, asked, &Arc::default()).await? {
                Ok(request) => request,
                Err(error) => return Ok((Err(error), turn)),
            };
            let engine = Arc::clone(&shared.engine);
            let then = move |_: &dyn Engine| yielding(niceness_of(asked), || then(request));
            let read = on_thread("request", engine, then).await?;
            Ok((Ok(read), turn))
        };
        tasks.spawn(reading).await.expect("it panics nowhere")
    }

    fn lease_until(&self, now: Time) -> Time {
        Time(
            now.0
                .saturating_add(milliseconds(self.shared.limits.lease_of_agents)),
        )
    }
}

/// An attempt by its name.
fn named<'a>(attempt: &'a str, holder: &'a LeaseOwner) -> Result<Attempt<'a>, JobError> {
    let name = AttemptName::read(attempt).ok_or_else(|| lease_lost(attempt))?;
    Ok(Attempt {
        id: name.fit,
        number: name.number,
        holder,
    })
}

fn lease_lost(attempt: &str) -> JobError {
    JobError::LeaseLost(shorten(attempt))
}

/// The answer of an agent, as it is stored: it says where it was found. An error where it answers something else.
fn signed(
    mut result: FitResult,
    agent: &StoredAgent,
    request: &Request,
) -> Result<FitResult, FitError> {
    let name = &agent.name;
    let wrong = |what: &str| {
        let detail = format!("the agent {name} answered something else than was asked: {what}");
        FitError::new(FailureCode::Internal, detail)
    };
    if result.environment.batchfit != VERSION {
        return Err(wrong("the answer is of another version"));
    }
    check(&result, request, &cards(agent)).map_err(|what| wrong(&what))?;
    let on = &mut result.environment.device;
    if on.starts_with("sim:") {
        let note = format!("simulated by the agent {name}");
        result.recommendation.notes.push(note.clone());
        for variant in &mut result.variants {
            variant.recommendation.notes.push(note.clone());
        }
    } else {
        *on = format!("{name}/{on}");
    }
    match &request.device {
        DeviceChoice::Kind(_) | DeviceChoice::Host(..) => Ok(result),
        DeviceChoice::Auto | DeviceChoice::Cuda(_) | DeviceChoice::Sim(_) => {
            Err(wrong("it was not for an agent"))
        }
    }
}
