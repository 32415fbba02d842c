//! Reading request documents.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde_json::Value;

use super::App;
use super::problem::{Code, Problem};
use crate::model::{self, RequestDocument};

/// The largest body, decompressed. An exported graph of a large model is a few MiB.
pub(super) const LIMIT_MIB: usize = 64;

/// How long a body may take to arrive.
const ARRIVAL: Duration = Duration::from_mins(1);

/// A valid request, from a body of any content type: `curl -d` says that it sends a form.
pub(super) struct RequestBody(pub(super) model::Request);

impl FromRequest<App> for RequestBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<RequestBody, Problem> {
        let body = read(request, app).await?;
        let jobs = app.jobs.clone();
        understood(move || Ok(RequestBody(jobs.parse(document(&body)?)?))).await
    }
}

/// A valid request with a `batch` beside it.
pub(super) struct ProbeBody {
    pub(super) request: model::Request,
    pub(super) batch: u64,
}

impl FromRequest<App> for ProbeBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<ProbeBody, Problem> {
        let body = read(request, app).await?;
        let jobs = app.jobs.clone();
        understood(move || {
            let mut document = document(&body)?;
            let batch = document
                .0
                .as_object_mut()
                .and_then(|members| members.shift_remove("batch"));
            let request = jobs.parse(document)?;
            Ok(ProbeBody {
                request,
                batch: valid_batch(batch)?,
            })
        })
        .await
    }
}

/// Reads and checks large documents away from the threads that serve connections.
pub(super) async fn understood<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    tokio::task::spawn_blocking(read)
        .await
        .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Takes a whole body.
pub(super) async fn read(request: Request, app: &App) -> Result<Bytes, Problem> {
    let reading = Bytes::from_request(request, app);
    let arrived = tokio::time::timeout(ARRIVAL, reading).await.map_err(|_| {
        Problem::new(
            Code::BodyTimeout,
            format!("the body took longer than {} s", ARRIVAL.as_secs()),
        )
    })?;
    arrived.map_err(|rejection| {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            let detail = format!("the body is larger than {LIMIT_MIB} MiB, decompressed");
            return Problem::new(Code::BodyTooLarge, detail);
        }
        // A body that ends early, or gzip that is none.
        let detail = format!("the body could not be read: {}", rejection.body_text());
        Problem::new(Code::BodyMalformed, detail)
    })
}

fn document(body: &[u8]) -> Result<RequestDocument, Problem> {
    if body.is_empty() {
        return Err(Problem {
            pointer: Some(String::new()),
            ..Problem::new(
                Code::BodyMalformed,
                "the body is empty; send a request document, such as \
                 {\"model\": {\"preset\": \"resnet50\"}, \"device\": \"sim:h200\"}",
            )
        });
    }
    RequestDocument::from_json(body).map_err(|invalid| Problem {
        pointer: Some(invalid.pointer),
        ..Problem::new(Code::BodyMalformed, invalid.problem)
    })
}

/// The batch to probe: an integer of at least 1, also when written as `32.0`, which JSON Schema allows.
fn valid_batch(batch: Option<Value>) -> Result<u64, Problem> {
    let wrong = |detail: String, value: Value, nearest: Option<&str>| Problem {
        pointer: Some("/batch".to_owned()),
        value: Some(value),
        nearest: nearest.map(str::to_owned),
        ..Problem::new(Code::RequestInvalid, detail)
    };
    let Some(batch) = batch else {
        let detail = "a probe needs `batch`, the number of samples per micro-step";
        return Err(wrong(detail.to_owned(), Value::Null, Some("1")));
    };
    match integral(&batch) {
        Some(samples) if (1..=MAX_BATCH).contains(&samples) => Ok(samples),
        Some(0) => Err(wrong("`batch` is at least 1".to_owned(), batch, Some("1"))),
        Some(_) => Err(wrong(
            format!("`batch` is at most {MAX_BATCH}"),
            batch,
            Some("4294967296"),
        )),
        None => Err(wrong(
            format!("`batch` is a whole number of at least 1, not {batch}"),
            batch,
            Some("1"),
        )),
    }
}

/// More samples than any memory holds bytes for; keeps sizes within 64 bits.
const MAX_BATCH: u64 = 1 << 32;

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be whole, positive and below 2^64 on the line above"
)]
fn integral(number: &Value) -> Option<u64> {
    number.as_u64().or_else(|| {
        let float = number.as_f64()?;
        (float.fract() == 0.0 && (0.0..1.8e19).contains(&float)).then_some(float as u64)
    })
}
