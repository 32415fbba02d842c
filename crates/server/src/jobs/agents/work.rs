//! The side of an agent: a job has an answer.

use std::sync::Arc;

use crate::jobs::runner::on_thread;
use crate::jobs::{Engine, EngineError, FailureCode, FitError, Isolation, Progress, Work};
use crate::limits::{Cancel, with_cancel};
use crate::model::{DeviceChoice, Request, RequestDocument, RequestError};

use super::{JobDocument, JobOutcome};

/// Has the request of a job answered on a device of this machine, on a thread of its own. Where it was stopped is not reported: that
/// is `Released`.
pub async fn answer_job(
    engine: Arc<dyn Engine>,
    job: JobDocument,
    request: Vec<u8>,
    device: DeviceChoice,
    progress: impl Fn(Progress) + Send + 'static,
    cancel: Cancel,
) -> JobOutcome {
    let stopped = cancel.clone();
    let work = move |engine: &dyn Engine| {
        let read = || -> Result<Request, RequestError> {
            let document = RequestDocument::from_bytes(request)?;
            let request = Request::parse(document)?;
            Ok(request
                .with_recorder(engine.catalogue().records)
                .with_calibration(job.taught)
                .on(device))
        };
        let read = with_cancel(&cancel, read).ok_or(EngineError::Cancelled)?;
        let request = read?;
        let work = Work {
            cancel: &cancel,
            progress: &progress,
        };
        engine.fit(&request, Isolation::of(job.apart), &work)
    };
    match on_thread(&job.fit.clone(), engine, work).await {
        Ok(Ok(result)) => JobOutcome::Answered {
            result: Box::new(result),
        },
        Ok(Err(EngineError::Cancelled)) if stopped.is_cancelled() => JobOutcome::Released,
        Ok(Err(error)) => JobOutcome::Failed {
            error: FitError::from(error),
        },
        Err(error) => JobOutcome::Failed {
            error: FitError::new(FailureCode::Internal, error.to_string()),
        },
    }
}
