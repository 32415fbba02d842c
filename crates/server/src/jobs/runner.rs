//! Claims fits and has them answered.

mod thread;
mod waits;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;
use tracing::Instrument as _;

use super::clock::milliseconds;
use super::document::{FitDocument, FitError, json, recommendations};
use super::events::Notification;
use super::lanes::answering;
use super::queue::{Running, Shared, had_its_limit};
use super::shares::{niceness_of, yielding};
use super::uploads::packed;
use super::{Engine, EngineError, FailureCode, FitResult, JobError, Progress};
use crate::jobs::{Isolation, Work};
use crate::limits::{Cancel, with_cancel};
use crate::lock;
use crate::model::{
    DeviceChoice, HeadroomCalibration, Packed, Request, RequestDocument, RequestError, UploadKind,
    Uploads,
};
use crate::store::{Attempt, Claimed, FitState, JsonText, StoreError};

pub(super) use thread::on_thread;
use waits::{overdue, until_stopped};

/// How long an engine may take to notice that it was cancelled by the end of the server. Half of the
/// second within which the server promises to end.
const GRACE: Duration = Duration::from_millis(500);

/// How long a database that did not answer is left alone; at first, and at most.
const RETRY_AFTER: Duration = Duration::from_millis(50);
const RETRY_AFTER_AT_MOST: Duration = Duration::from_secs(1);

/// Claims fits until the server ends.
pub(super) async fn run(shared: Arc<Shared>) {
    // Not at once: what there is to begin with is claimed first of all.
    let each = shared.limits.look_around;
    let mut look_around = tokio::time::interval_at(tokio::time::Instant::now() + each, each);
    look_around.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut retry_after = RETRY_AFTER;
    while !shared.shutdown.is_cancelled() {
        match next(&shared).await {
            Ok(Some(claimed)) => {
                let running = Arc::new(Running::default());
                register(&shared, &claimed.id, Some(Arc::clone(&running)));
                let before = claimed.attempts - 1;
                shared.events.of(&claimed.id, before, FitState::Running);
                shared.events.publish(&claimed.id, FitState::Running);
                let span = shared.spec_cache.span(&claimed.id);
                let attempt = attempt(Arc::clone(&shared), claimed, running);
                shared.tasks.spawn(attempt.instrument(span));
            }
            Ok(None) => {
                retry_after = RETRY_AFTER;
                tokio::select! {
                    () = shared.wake.notified() => {}
                    _ = look_around.tick() => {}
                    () = shared.shutdown.cancelled() => {}
                }
            }
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "{error}");
                tokio::select! {
                    () = tokio::time::sleep(retry_after) => {}
                    () = shared.shutdown.cancelled() => {}
                }
                retry_after = (2 * retry_after).min(RETRY_AFTER_AT_MOST);
            }
        }
    }
}

/// Claims a fit. Where there is none, queues those again whose holder lost them, and tries once more.
///
/// Another holder has lost a fit when its lease has passed. This server has when it is not at work on one that it holds: such a
/// row is left when a claim was stored and its confirmation lost, and would take its lane for ever.
async fn next(shared: &Shared) -> Result<Option<Claimed>, StoreError> {
    let claim = async || {
        let now = shared.db.now();
        let lease = shared.lease(now);
        let takes = shared.takes.as_deref();
        shared
            .db
            .claim_for(shared.parallel(), lease, takes, now)
            .await
    };
    if let Some(claimed) = claim().await? {
        return Ok(Some(claimed));
    }
    let now = shared.beats.time(shared.db.now());
    let mut found = false;
    let mut expired = false;
    let silence = milliseconds(shared.limits.lease_of_agents);
    let may_take = shared.beats.may_take(shared.limits.lease);
    let all = shared.db.running_fits(None).await?;
    let running: HashSet<&str> = all.iter().map(|held| held.id.as_str()).collect();
    lock(&shared.told_by_agents).retain(|id, _| running.contains(id.as_str()));
    for held in all {
        if held.holder.as_ref() != Some(&shared.holder) {
            match &held.holder {
                Some(holder) if may_take && held.is_overdue(silence, now) => {
                    let (id, number) = (held.id.as_str(), held.attempts);
                    shared.time_out(Attempt { id, number, holder }, now).await?;
                }
                _ => expired |= held.lease_until.is_none_or(|until| until < now),
            }
            continue;
        }
        let id = &held.id;
        let attempt = Attempt {
            id,
            number: held.attempts,
            holder: &shared.holder,
        };
        // Fits are registered before anything else is claimed, so none that is on its way here is taken for lost.
        if shared.running(id).is_none() && shared.db.put_back(attempt).await? {
            tracing::warn!(fit.id = %id, "no server worked on fit {id}; queued it again");
            found = true;
        }
    }
    if expired && may_take {
        let fits = shared.db.expired(now, &shared.holder, silence).await?;
        if fits > 0 {
            tracing::warn!(
                fits,
                "queued {fits} fits again, of which their holders have said nothing for long"
            );
            found = true;
            shared.for_agents.send_replace(());
        }
    }
    if found { claim().await } else { Ok(None) }
}

/// Answers one fit and stores what came of it.
async fn attempt(shared: Arc<Shared>, claimed: Claimed, running: Arc<Running>) {
    if let Err(error) = answer(&shared, &claimed, &running).await {
        // The server ends. The row stays `running`; the next server takes it up.
        tracing::error!(
            fit.id = %claimed.id,
            error = &error as &dyn std::error::Error,
            "could not store what came of fit {}: {error}", claimed.id
        );
    }
    register(&shared, &claimed.id, None);
    // Where this cannot be read, the next server tells it.
    if let Ok(Some(state)) = shared.db.fit_state(&claimed.id).await {
        shared.events.publish(&claimed.id, state);
    }
    shared.ended.send_replace(());
    shared.wake.notify_one();
}

/// Stores what came of a fit: again and again while the database is locked or its disk full, until the server ends.
/// Fails only then, and where the table refuses it.
async fn persist<T, F>(shared: &Shared, id: &str, store: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut retry_after = RETRY_AFTER;
    let mut unstored = None;
    loop {
        let error = match store().await {
            Ok(stored) => return Ok(stored),
            Err(error) => error,
        };
        if error.is_refusal() || shared.shutdown.is_cancelled() {
            return Err(error);
        }
        if unstored.is_none() {
            tracing::error!(
                fit.id = %id,
                error = &error as &dyn std::error::Error,
                "could not store what came of fit {id}, and tries until it can: {error}"
            );
            unstored = Some(PendingWrite::count(shared));
        }
        // At the end of the server, one last time.
        tokio::select! {
            () = tokio::time::sleep(retry_after) => {}
            () = shared.shutdown.cancelled() => {}
        }
        retry_after = (2 * retry_after).min(RETRY_AFTER_AT_MOST);
    }
}

/// Counts a fit that waits to be stored, for as long as it does.
struct PendingWrite<'a>(&'a Shared);

impl PendingWrite<'_> {
    fn count(shared: &Shared) -> PendingWrite<'_> {
        shared.unstored.fetch_add(1, Ordering::Relaxed);
        PendingWrite(shared)
    }
}

impl Drop for PendingWrite<'_> {
    fn drop(&mut self) {
        self.0.unstored.fetch_sub(1, Ordering::Relaxed);
    }
}

fn register(shared: &Shared, id: &str, running: Option<Arc<Running>>) {
    let mut all = lock(&shared.running);
    match running {
        Some(running) => all.insert(id.to_owned(), running),
        None => all.remove(id),
    };
}

async fn answer(
    shared: &Arc<Shared>,
    claimed: &Claimed,
    running: &Arc<Running>,
) -> Result<(), StoreError> {
    let (id, attempt) = (claimed.id.as_str(), claimed.attempt());
    let put_back = || persist(shared, id, || shared.db.put_back(attempt));
    let asked = usize::try_from(claimed.of_key).unwrap_or(0);
    // Another process reads the text for itself.
    let handed = shared.spec_cache.take(id).filter(|_| !claimed.apart);
    let (handed, permit) = handed.unzip();
    // It may have been cancelled before it was registered.
    let state = persist(shared, id, || shared.db.attempt_state(attempt)).await?;
    if state != Some(FitState::Running) {
        return Ok(());
    }
    // First of all: to read a large model takes as much memory as to answer it.
    let entering = async {
        match permit.flatten() {
            Some(permit) => permit,
            None => shared.enter_claimed(claimed).await,
        }
    };
    let ended = || shared.ended.subscribe();
    let stops = (&running.cancel, &shared.shutdown);
    let Some(place) = until_stopped(ended(), stops, entering).await else {
        return put_back().await.map(|_| ());
    };
    let request = match handed {
        Some(request) => Arc::new(request),
        None => match read(shared, (id, &claimed.request), asked, &running.cancel).await? {
            // As it was when it was asked: its fingerprint says so.
            Ok(request) => Arc::new(request.with_calibration(known(claimed))),
            // It was valid when it was queued, so it was queued by another version.
            Err(error) => return fail(shared, claimed, error).await,
        },
    };
    let reserving = shared.memory_for(claimed, &request);
    let Some(memory) = until_stopped(ended(), stops, reserving).await else {
        return put_back().await.map(|_| ());
    };
    if let Some(result) = answered_before(shared, claimed, &request).await {
        drop(place);
        tracing::info!(fit.id = %id, "fit {id} asks what was answered before");
        return finish(shared, claimed, &request, &result).await;
    }
    let started = Instant::now();
    let work = {
        let (request, running) = (Arc::clone(&request), Arc::clone(running));
        let apart = claimed.apart;
        let log = shared.events.find(id);
        let lane = claimed.lane.clone();
        move |engine: &dyn Engine| {
            let progress = |step: Progress| {
                if let Some(log) = &log {
                    log.push(Notification::Probe(step.clone()));
                }
                running.show(step);
            };
            let work = Work {
                cancel: &running.cancel,
                progress: &progress,
            };
            let fit = || engine.fit(&request, Isolation::of(apart), &work);
            let outcome = answering(&lane, &request, asked, fit);
            drop((place, memory));
            outcome
        }
    };
    let working = on_thread(id, Arc::clone(&shared.engine), work);
    tokio::pin!(working);
    let outcome = tokio::select! {
        outcome = &mut working => outcome,
        () = shared.shutdown.cancelled() => {
            running.cancel.cancel();
            match tokio::time::timeout(GRACE, working).await {
                Ok(outcome) => outcome,
                Err(_) => Ok(Err(EngineError::Cancelled)),
            }
        }
        seconds = overdue(claimed.timeout_seconds, || shared.db.fit_timeout(id)) => {
            running.cancel.cancel();
            // An answer that comes just now is one. One that never comes keeps its lane, as a driver does that hangs.
            match tokio::time::timeout(GRACE, working).await {
                Ok(Ok(Ok(result))) => Ok(Ok(result)),
                Ok(_) | Err(_) => Ok(Err(EngineError::TimedOut { seconds })),
            }
        }
    };
    match outcome {
        Ok(Ok(result)) => {
            finish(shared, claimed, &request, &result).await?;
            tracing::info!(
                fit.id = %id,
                micro_batch = result.recommendation.micro_batch,
                elapsed_ms = milliseconds(started.elapsed()),
                "fit {id} ends at a micro-batch of {}", result.recommendation.micro_batch
            );
            Ok(())
        }
        // Either the row is `cancelled` already, or the server ends and the next one takes it up.
        Ok(Err(EngineError::Cancelled)) if running.cancel.is_cancelled() => {
            put_back().await.map(|_| ())
        }
        Ok(Err(error)) => fail(shared, claimed, FitError::from(error)).await,
        Err(error) => {
            let error = FitError::new(FailureCode::Internal, error.to_string());
            fail(shared, claimed, error).await
        }
    }
}

/// Reads the request of a fit, whose key asks so much, not on this thread: it may be megabytes, and others wait for the thread.
pub(super) async fn read(
    shared: &Arc<Shared>,
    (id, text): (&str, &JsonText),
    asked: usize,
    cancel: &Cancel,
) -> Result<Result<Request, FitError>, StoreError> {
    let text = text.clone().into_shared();
    let document = RequestDocument::read(Arc::clone(&text)).ok();
    let (named, aside) = match &document {
        Some(document) => load(shared, id, document).await?,
        None => (Vec::new(), None),
    };
    let parse = {
        let shared = Arc::clone(shared);
        let cancel = cancel.clone();
        let read = move || {
            let document = RequestDocument::read(text)?;
            let document = match aside {
                Some(model) => document.with_model(&model.unpack()?)?,
                None => document,
            };
            shared.parse(document, &Uploads::unpack(named)?)
        };
        move |_: &dyn Engine| yielding(niceness_of(asked), || with_cancel(&cancel, read))
    };
    let parsed: Result<Option<Result<Request, RequestError>>, JobError> =
        on_thread(id, Arc::clone(&shared.engine), parse).await;
    let parsed = parsed.map(|parsed| {
        // The row is `cancelled` then, and takes no error.
        parsed.unwrap_or_else(|| Err(RequestError::at("", "cancelled")))
    });
    Ok(match parsed {
        Ok(parsed) => parsed.map_err(|invalid| FitError::from(EngineError::Invalid(invalid))),
        Err(error) => Err(FitError::new(FailureCode::Internal, error.to_string())),
    })
}

/// What outcomes had taught when a fit was asked.
pub(super) fn known(claimed: &Claimed) -> Vec<HeadroomCalibration> {
    let text = claimed.taught.clone().into_shared();
    serde_json::from_str(&text).unwrap_or_default()
}

/// What stands in the database for parts of this request: the uploads that it names, and its whole model where that was
/// put aside.
async fn load(
    shared: &Shared,
    id: &str,
    document: &RequestDocument,
) -> Result<(Vec<Packed>, Option<Packed>), StoreError> {
    let references = document.references().unwrap_or_default();
    let mut digests: Vec<_> = references.into_iter().map(|named| named.digest).collect();
    digests.extend(document.model_aside().filter(|_| digests.is_empty()));
    let (mut named, mut aside) = (Vec::new(), None);
    for digest in digests {
        let Some(stored) = persist(shared, id, || shared.db.upload(&digest)).await? else {
            continue;
        };
        let contents = || shared.db.upload_contents(&stored.digest);
        let Some(gzip) = persist(shared, id, contents).await? else {
            continue;
        };
        let packed = packed(digest, &stored, gzip);
        match stored.kind {
            UploadKind::Exported | UploadKind::Recorded => named.push(packed),
            UploadKind::Model => aside = Some(packed),
        }
    }
    Ok((named, aside))
}

async fn finish(
    shared: &Shared,
    claimed: &Claimed,
    request: &Request,
    result: &FitResult,
) -> Result<(), StoreError> {
    let (id, attempt) = (claimed.id.as_str(), claimed.attempt());
    let now = shared.db.now();
    let of = (request, claimed.model_digest.as_str());
    let rows = recommendations(id, of, result, now, || shared.ids.next(now));
    let refused = match rows {
        Err(error) => error.to_string(),
        Ok(rows) => {
            let result = json(result);
            let store = || shared.db.finish(attempt, &result, &rows, now);
            match persist(shared, id, store).await {
                Err(error) if error.is_refusal() => error.to_string(),
                stored => return stored.map(|_| ()),
            }
        }
    };
    let error = FitError::new(
        FailureCode::Internal,
        format!("the answer cannot be stored: {refused}"),
    );
    fail(shared, claimed, error).await
}

async fn fail(shared: &Shared, claimed: &Claimed, error: FitError) -> Result<(), StoreError> {
    let (id, attempt) = (claimed.id.as_str(), claimed.attempt());
    tracing::warn!(fit.id = %id, "fit {id} failed: {}", error.detail);
    let error = json(&error);
    let now = shared.db.now();
    persist(shared, id, || shared.db.fail(attempt, &error, now)).await?;
    Ok(())
}

/// Whether nothing that the answer depends on can have changed since it was given.
fn is_reusable(request: &Request) -> bool {
    matches!(request.device, DeviceChoice::Sim(_)) || request.memory_limit.is_some()
}

/// The answer to the same question in other words, where nothing that it depends on can have changed. The client then gets
/// their own document.
async fn answered_before(
    shared: &Shared,
    claimed: &Claimed,
    request: &Request,
) -> Option<FitResult> {
    if !is_reusable(request) {
        return None;
    }
    // What an agent answered stays that agent's word: this is the service's own.
    let found = shared.db.finished_fit(&claimed.fingerprint, false).await;
    let id = found.ok()??;
    let fit = FitDocument::of(shared.db.fit(&id).await.ok()??, None);
    let answer = fit.answer()?;
    let is_simulated = matches!(request.device, DeviceChoice::Sim(_));
    (is_simulated || had_its_limit(request, answer.recommendation.limit_bytes)).then_some(answer)
}
