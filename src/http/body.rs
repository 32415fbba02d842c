//! Reading request documents.

use axum::extract::{FromRequest, Request};
use serde_json::Value;

use super::App;
use super::problem::{Code, Problem};
use super::uploads::Held;
use crate::bounded::shorten;
use crate::model::{self, RequestDocument};
use crate::probe::LARGEST_BATCH;

/// A valid request, from a body of any content type: `curl -d` says that it sends a form.
pub(super) struct RequestBody(pub(super) Held<model::Request>);

impl FromRequest<App> for RequestBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<RequestBody, Problem> {
        let arrived = app.uploads.arrive(request).await?;
        let jobs = app.jobs.clone();
        let read = move |body: Vec<u8>| {
            let document = document(body)?;
            Ok(jobs.parse(document)?)
        };
        app.uploads.read(arrived, read).await.map(RequestBody)
    }
}

/// A valid request with a `batch` beside it.
pub(super) struct ProbeBody(pub(super) Held<Probe>);

/// What a probe is asked.
pub(super) struct Probe {
    pub(super) request: model::Request,
    pub(super) batch: u64,
}

impl FromRequest<App> for ProbeBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<ProbeBody, Problem> {
        let arrived = app.uploads.arrive(request).await?;
        let jobs = app.jobs.clone();
        let read = move |body: Vec<u8>| {
            let mut document = document(body)?;
            let batch = document.take("batch");
            let request = jobs.parse(document)?;
            Ok(Probe {
                request,
                batch: valid_batch(batch)?,
            })
        };
        app.uploads.read(arrived, read).await.map(ProbeBody)
    }
}

fn document(body: Vec<u8>) -> Result<RequestDocument, Problem> {
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
    RequestDocument::from_bytes(body).map_err(|invalid| Problem {
        pointer: Some(invalid.pointer),
        ..Problem::new(Code::BodyMalformed, invalid.problem)
    })
}

/// The batch to probe: an integer of at least 1, also when written as `32.0`, which JSON Schema allows.
fn valid_batch(batch: Option<Value>) -> Result<u64, Problem> {
    let wrong = |detail: String, value: Value, nearest: Option<&str>| Problem {
        pointer: Some("/batch".to_owned()),
        value: Some(match value.to_string() {
            long if shorten(&long) != long => Value::String(shorten(&long)),
            _short => value,
        }),
        nearest: nearest.map(str::to_owned),
        ..Problem::new(Code::RequestInvalid, detail)
    };
    let Some(batch) = batch else {
        let detail = "a probe needs `batch`, the number of samples per micro-step";
        return Err(wrong(detail.to_owned(), Value::Null, Some("1")));
    };
    match integral(&batch) {
        Some(samples) if (1..=LARGEST_BATCH).contains(&samples) => Ok(samples),
        Some(0) => Err(wrong("`batch` is at least 1".to_owned(), batch, Some("1"))),
        Some(_) => Err(wrong(
            format!("`batch` is at most {LARGEST_BATCH}"),
            batch,
            Some(&LARGEST_BATCH.to_string()),
        )),
        None => Err(wrong(
            format!(
                "`batch` is a whole number of at least 1, not {}",
                shorten(&batch.to_string())
            ),
            batch,
            Some("1"),
        )),
    }
}

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
