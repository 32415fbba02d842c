//! Claims fits and has them answered.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::oneshot;

use super::document::{FitError, chance, json, recommendations};
use super::queue::{Running, Shared};
use super::{Engine, EngineError, FailureCode, FitResult, JobError};
use crate::model::{Invalid, Request, RequestDocument};
use crate::store::{Claimed, FitState, Time};

/// How long an engine may take to notice that it was cancelled by the end of the server. Half of the
/// second within which the server promises to end.
const GRACE: Duration = Duration::from_millis(500);

/// How long the runner leaves a database alone that did not answer.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The stack of a working thread: as large as that of the main thread, on which the command line works.
const STACK: usize = 8 << 20;

/// Claims fits until the server ends.
pub(super) async fn run(shared: Arc<Shared>) {
    while !shared.shutdown.is_cancelled() {
        match shared
            .db
            .claim(shared.parallel(), Time::from(Timestamp::now()))
            .await
        {
            Ok(Some(claimed)) => {
                shared.tasks.spawn(attempt(Arc::clone(&shared), claimed));
            }
            Ok(None) => {
                tokio::select! {
                    () = shared.wake.notified() => {}
                    () = shared.shutdown.cancelled() => {}
                }
            }
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "{error}");
                tokio::select! {
                    () = tokio::time::sleep(RETRY_AFTER) => {}
                    () = shared.shutdown.cancelled() => {}
                }
            }
        }
    }
}

/// Answers one fit and stores what came of it.
async fn attempt(shared: Arc<Shared>, claimed: Claimed) {
    let running = Arc::new(Running::default());
    register(&shared, &claimed.id, Some(Arc::clone(&running)));
    if let Err(error) = answer(&shared, &claimed, &running).await {
        // The row stays `running`; the next server takes it up.
        tracing::error!(
            fit.id = %claimed.id,
            error = &error as &dyn std::error::Error,
            "could not store what came of fit {}: {error}", claimed.id
        );
    }
    register(&shared, &claimed.id, None);
    shared.ended.send_replace(());
    shared.wake.notify_one();
}

fn register(shared: &Shared, id: &str, running: Option<Arc<Running>>) {
    let mut all = shared
        .running
        .lock()
        .expect("nothing panics while it is held");
    match running {
        Some(running) => all.insert(id.to_owned(), running),
        None => all.remove(id),
    };
}

async fn answer(
    shared: &Arc<Shared>,
    claimed: &Claimed,
    running: &Arc<Running>,
) -> Result<(), JobError> {
    let (id, attempt) = (claimed.id.as_str(), claimed.attempts);
    let request = match read(shared, claimed).await? {
        Ok(request) => Arc::new(request),
        Err(invalid) => {
            // It was valid when it was queued, so it was queued by another version.
            let error = FitError::from(EngineError::Invalid(invalid));
            return fail(shared, claimed, error).await;
        }
    };
    let place = tokio::select! {
        place = shared.lanes.enter(&claimed.lane) => place,
        () = shared.shutdown.cancelled() => {
            shared.db.put_back(id, attempt).await?;
            return Ok(());
        }
    };
    // Whoever cancelled it before it was registered could not tell us.
    if shared.db.fit_state(id).await? != Some(FitState::Running) {
        return Ok(());
    }
    let started = Timestamp::now();
    let work = {
        let (request, running) = (Arc::clone(&request), Arc::clone(running));
        move |engine: &dyn Engine| {
            let progress = |step| {
                let mut shown = running
                    .progress
                    .lock()
                    .expect("nothing panics while it is held");
                *shown = Some(step);
            };
            let outcome = engine.fit(&request, &progress, &running.cancel);
            drop(place);
            outcome
        }
    };
    let working = on_thread(id, Arc::clone(&shared.engine), work);
    tokio::pin!(working);
    let outcome = tokio::select! {
        outcome = &mut working => outcome,
        () = shared.shutdown.cancelled() => {
            running.cancel.store(true, Ordering::Relaxed);
            match tokio::time::timeout(GRACE, working).await {
                Ok(outcome) => outcome,
                Err(_) => Ok(Err(EngineError::Cancelled)),
            }
        }
    };
    match outcome {
        Ok(Ok(result)) => {
            let elapsed_ms = started.duration_until(Timestamp::now()).as_millis();
            finish(shared, claimed, &request, &result).await?;
            tracing::info!(
                fit.id = %id,
                micro_batch = result.recommendation.micro_batch,
                elapsed_ms,
                "fit {id} ends at a micro-batch of {}", result.recommendation.micro_batch
            );
            Ok(())
        }
        // Either the row is `cancelled` already, or the server ends and the next one takes it up.
        Ok(Err(EngineError::Cancelled)) if running.cancel.load(Ordering::Relaxed) => {
            shared.db.put_back(id, attempt).await?;
            Ok(())
        }
        Ok(Err(error)) => fail(shared, claimed, FitError::from(error)).await,
        Err(error) => {
            let error = FitError::new(FailureCode::Internal, error.to_string());
            fail(shared, claimed, error).await
        }
    }
}

/// Reads the request of a fit, not on this thread: it may be megabytes, and others wait for the thread.
async fn read(
    shared: &Arc<Shared>,
    claimed: &Claimed,
) -> Result<Result<Request, Invalid>, JobError> {
    let text = claimed.request.clone().into_shared();
    let aside = match RequestDocument::read(Arc::clone(&text)).ok() {
        Some(document) => match document.model_aside() {
            Some(digest) => shared.db.model(&digest).await?,
            None => None,
        },
        None => None,
    };
    let parse = {
        let shared = Arc::clone(shared);
        move |_: &dyn Engine| {
            let document = RequestDocument::read(text)?;
            let document = match aside {
                Some(model) => document.with_model(&model)?,
                None => document,
            };
            shared.parse(document)
        }
    };
    on_thread(&claimed.id, Arc::clone(&shared.engine), parse).await
}

async fn finish(
    shared: &Shared,
    claimed: &Claimed,
    request: &Request,
    result: &FitResult,
) -> Result<(), JobError> {
    let now = Time::from(Timestamp::now());
    let rows = recommendations(&claimed.id, request, result, now, || {
        shared.ids.next(now, chance())
    })?;
    let result = json(result);
    shared
        .db
        .finish(&claimed.id, claimed.attempts, &result, &rows, now)
        .await?;
    Ok(())
}

async fn fail(shared: &Shared, claimed: &Claimed, error: FitError) -> Result<(), JobError> {
    tracing::warn!(fit.id = %claimed.id, "fit {} failed: {}", claimed.id, error.detail);
    shared
        .db
        .fail(
            &claimed.id,
            claimed.attempts,
            &json(&error),
            Time::from(Timestamp::now()),
        )
        .await?;
    Ok(())
}

/// Runs `work` on a thread of its own.
///
/// Not on the runtime's blocking pool: a runtime that ends waits for its blocking threads, and an
/// engine stuck in a driver would keep the server from ending. The receiver owns the thread; when it is
/// gone, nobody wants the answer, and the process may end under it.
pub(super) async fn on_thread<T: Send + 'static>(
    name: &str,
    engine: Arc<dyn Engine>,
    work: impl FnOnce(&dyn Engine) -> T + Send + 'static,
) -> Result<T, JobError> {
    let (done, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK)
        .spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| work(engine.as_ref())));
            // Nobody listens when the server ends: see above.
            let _ = done.send(outcome);
        });
    if let Err(error) = thread {
        return Err(JobError::EnginePanicked {
            message: format!("no thread could be started: {error}"),
        });
    }
    match receiver.await.expect("the thread sends whatever happens") {
        Ok(outcome) => Ok(outcome),
        Err(panic) => {
            let message = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            tracing::error!("the engine panicked: {message}");
            Err(JobError::EnginePanicked {
                message: message.to_owned(),
            })
        }
    }
}
