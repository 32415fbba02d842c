//! One job: what is asked, the answer, and how it gets to the service.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::alongside;
use super::backoff::Backoff;
use super::client::{ServerError, ServerRequest};
use super::run::Shared;
use crate::jobs::{
    EngineError, FailureCode, FitError, JobDocument, JobNews, JobOutcome, LeaseDocument, Progress,
    answer_job,
};
use crate::limits::Cancel;
use crate::model::DeviceChoice;
use crate::store::FitState;

/// Longest request: uploads may be hundreds of megabytes, decompressed.
const LONGEST_REQUEST: usize = 1 << 30;

/// How long a request may take to arrive.
const ARRIVAL: Duration = Duration::from_mins(10);

/// How often it is told how far a job is, at most.
const NEWS: Duration = Duration::from_secs(1);

/// How long telling may take.
const TELLING: Duration = Duration::from_secs(10);

/// How long bringing an answer may take: the service may have it wait for a turn of large models for 150 s.
const BRINGING: Duration = Duration::from_mins(3);

/// Works on a job until its answer is delivered, or not wanted.
pub(super) async fn work(shared: &Arc<Shared>, job: JobDocument, device: DeviceChoice) {
    let fit = job.fit.clone();
    let path = format!("/v1/agents/{}/jobs/{}", shared.id(), job.attempt);
    tracing::info!(fit.id = %fit, "works on fit {fit} on {device}, attempt {}", job.attempt);
    let cancel = Cancel::default();
    let unwanted = CancellationToken::new();
    let (news, heard) = watch::channel(None);
    let (allow, allowed) = watch::channel(job.timeout_seconds);
    let keeper = {
        let (shared, path, fit) = (Arc::clone(shared), path.clone(), fit.clone());
        let (cancel, unwanted) = (cancel.clone(), unwanted.clone());
        alongside(async move {
            let why = keep(&shared, &path, heard, allow).await;
            tracing::info!(fit.id = %fit, "the answer to fit {fit} is no longer wanted from this agent: {why}");
            cancel.cancel();
            unwanted.cancel();
        })
    };
    let _keeper = keeper;
    let outcome = answered(shared, &path, job, device, cancel, (news, allowed)).await;
    let Some(outcome) = outcome else { return };
    tokio::select! {
        biased;
        () = unwanted.cancelled() => {}
        () = deliver(shared, &path, &fit, &outcome) => {}
    }
}

/// What comes of a job; `None` where the service says that it is not this agent's.
async fn answered(
    shared: &Arc<Shared>,
    path: &str,
    job: JobDocument,
    device: DeviceChoice,
    cancel: Cancel,
    (news, allowed): (
        watch::Sender<Option<Progress>>,
        watch::Receiver<Option<i64>>,
    ),
) -> Option<JobOutcome> {
    let begun = Instant::now();
    let request = match request(shared, path, &cancel).await {
        Ok(request) => request,
        Err(outcome) => return outcome,
    };
    let progress = move |step: Progress| {
        news.send_replace(Some(step));
    };
    let engine = Arc::clone(&shared.engine);
    let answering = answer_job(engine, job, request, device, progress, cancel.clone());
    let answering = Box::pin(answering);
    tokio::pin!(answering);
    let (mut late, mut stopped) = (None, false);
    let outcome = loop {
        tokio::select! {
            outcome = &mut answering => break outcome,
            () = shared.signals.stop.cancelled(), if !stopped => {
                stopped = true;
                cancel.cancel();
            }
            seconds = overdue(begun, allowed.clone()), if late.is_none() => {
                late = Some(seconds);
                cancel.cancel();
            }
        }
    };
    Some(match (outcome, late) {
        (JobOutcome::Released, Some(seconds)) => JobOutcome::Failed {
            error: FitError::from(EngineError::TimedOut { seconds }),
        },
        (outcome, _) => outcome,
    })
}

/// Waits until a job has been worked on for longer than it may be, and says how long that is.
async fn overdue(begun: Instant, mut allowed: watch::Receiver<Option<i64>>) -> u64 {
    loop {
        let seconds = *allowed.borrow_and_update();
        let seconds = seconds.map(i64::unsigned_abs);
        // A moment that no clock reaches is no limit.
        let end = seconds.and_then(|seconds| begun.checked_add(Duration::from_secs(seconds)));
        let end = async {
            match seconds.zip(end) {
                Some((seconds, end)) => {
                    tokio::time::sleep_until(end).await;
                    seconds
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            seconds = end => return seconds,
            changed = allowed.changed() => {
                if changed.is_err() {
                    return std::future::pending().await;
                }
            }
        }
    }
}

/// What is asked in a job; otherwise what comes of that.
async fn request(
    shared: &Shared,
    path: &str,
    cancel: &Cancel,
) -> Result<Vec<u8>, Option<JobOutcome>> {
    let mut backoff = Backoff::default();
    while !cancel.is_cancelled() {
        let asking = ServerRequest {
            longest: LONGEST_REQUEST,
            ..ServerRequest::get(format!("{path}/request"))
        };
        let error = match shared.server.send(asking.timeout(ARRIVAL)).await {
            Ok(answer) => return Ok(answer.body.into()),
            Err(error) => error,
        };
        if !error.may_pass() {
            tracing::warn!("what is asked cannot be had: {error}");
            // No other agent reads more.
            return Err(matches!(error, ServerError::TooLong { .. }).then(|| {
                let error = FitError::new(FailureCode::Internal, error.to_string());
                JobOutcome::Failed { error }
            }));
        }
        let pause = backoff.pause();
        tracing::warn!("{error}; trying again in {:.1} s", pause.as_secs_f64());
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shared.signals.stop.cancelled() => return Err(None),
        }
    }
    Err(None)
}

/// Tells how far a job is, and renews its lease, until its answer is not wanted; says why.
async fn keep(
    shared: &Shared,
    path: &str,
    mut heard: watch::Receiver<Option<Progress>>,
    allow: watch::Sender<Option<i64>>,
) -> String {
    let mut is_heard = true;
    let mut is_told = false;
    loop {
        let rest = tokio::time::sleep(shared.lease() / 3);
        tokio::select! {
            () = rest => {}
            // The sender goes with the engine, and its answer may still have to be brought.
            changed = heard.changed(), if !is_told => is_told = changed.is_err(),
        }
        let news = JobNews {
            progress: heard.borrow_and_update().clone(),
        };
        let asking = ServerRequest::with(Method::POST, format!("{path}/progress"), &news);
        let told = shared
            .server
            .ask_json::<LeaseDocument>(asking.timeout(TELLING))
            .await;
        match told {
            Ok(lease) if lease.state == FitState::Running => {
                is_heard = true;
                allow.send_if_modified(|allowed| {
                    let is_other = *allowed != lease.timeout_seconds;
                    *allowed = lease.timeout_seconds;
                    is_other
                });
            }
            Ok(lease) => return format!("it is {}", lease.state.name()),
            Err(error) if error.may_pass() => {
                if is_heard {
                    tracing::warn!("{error}; the work goes on");
                }
                is_heard = false;
            }
            Err(error) => return error.to_string(),
        }
        tokio::time::sleep(NEWS).await;
    }
}

/// Brings what came of a job: again and again, while the service cannot be reached. No other agent gets the fit meanwhile, because
/// it is the service that does so, and one that starts gives agents the time of a lease to say that they are there.
async fn deliver(shared: &Shared, path: &str, fit: &str, outcome: &JobOutcome) {
    let begun = Instant::now();
    let mut backoff = Backoff::default();
    loop {
        let asking = ServerRequest::with(Method::PUT, format!("{path}/result"), outcome);
        let error: ServerError = match shared.server.send(asking.timeout(BRINGING)).await {
            Ok(_) => {
                tracing::info!(fit.id = %fit, "brought {} of fit {fit}", description(outcome));
                return;
            }
            Err(error) => error,
        };
        if !error.may_pass() {
            tracing::warn!(fit.id = %fit, "{} of fit {fit} is not taken: {error}", description(outcome));
            return;
        }
        if begun.elapsed() >= shared.orders.deliver {
            tracing::error!(
                fit.id = %fit,
                "{} of fit {fit} could not be brought in {} s, and is given up: {error}", description(outcome), begun.elapsed().as_secs()
            );
            return;
        }
        let pause = backoff.pause();
        tracing::warn!(
            fit.id = %fit,
            "could not bring {} of fit {fit}: {error}; trying again in {:.1} s, and for {} s more", description(outcome),
            pause.as_secs_f64(),
            shared.orders.deliver.saturating_sub(begun.elapsed()).as_secs()
        );
        tokio::time::sleep(pause).await;
    }
}

/// An outcome, for people.
fn description(outcome: &JobOutcome) -> &'static str {
    match outcome {
        JobOutcome::Answered { .. } => "the answer",
        JobOutcome::Failed { .. } => "the failure",
        JobOutcome::Released => "the return",
    }
}
