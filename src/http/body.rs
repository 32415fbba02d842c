//! Reading request documents.

use axum::extract::{FromRequest, Request};
use jiff::Timestamp;
use serde_json::Value;

use super::App;
use super::answers::{Answer, Answers};
use super::problem::{Code, Problem};
use super::uploads::{Arrived, Held, on_thread};
use crate::bounded::shorten;
use crate::model::{self, DeviceChoice, Digest, Reference, RequestDocument, Uploads};
use crate::probe::LARGEST_BATCH;
use crate::store::Time;

/// A valid request, from a body of any content type: `curl -d` says that it sends a form.
pub(super) enum RequestBody {
    /// The same was asked before, and its answer is at hand.
    Answered(Answer),
    /// A request, and what its answer may be kept under.
    New(Box<Held<model::Request>>, Option<Digest>),
}

impl FromRequest<App> for RequestBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<RequestBody, Problem> {
        let arrived = app.uploads.arrive(request).await?;
        let key = arrived.plain().and_then(Answers::key);
        if let Some(key) = &key
            && let Some(answer) = app.answers.find(key, &app.jobs).await?
        {
            return Ok(RequestBody::Answered(answer));
        }
        let Held { read, permit } = asked(arrived, app, |_| ()).await?;
        let (read, ()) = read;
        let same = key
            .filter(|_| matches!(read.device, DeviceChoice::Sim(_)) && read.uploads().is_empty());
        Ok(RequestBody::New(Box::new(Held { read, permit }), same))
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
        let batch = |document: &mut RequestDocument| document.take("batch");
        let arrived = app.uploads.arrive(request).await?;
        let Held { read, permit } = asked(arrived, app, batch).await?;
        let (request, batch) = read;
        let read = Probe {
            request,
            batch: valid_batch(batch)?,
        };
        Ok(ProbeBody(Held { read, permit }))
    }
}

/// A request as far as it can be read from its body alone.
enum Asked<T> {
    /// The whole of it.
    Whole(Box<model::Request>, T),
    /// The document, which names uploads.
    Naming(RequestDocument, Vec<Reference>, T),
}

/// Reads the request in a body, with the uploads that it names; `beside` takes out of the document what belongs to
/// somebody else.
async fn asked<T: Send + 'static>(
    arrived: Arrived,
    app: &App,
    beside: impl FnOnce(&mut RequestDocument) -> T + Send + 'static,
) -> Result<Held<(model::Request, T)>, Problem> {
    let jobs = app.jobs.clone();
    let read = move |body: Vec<u8>| {
        let mut document = document(body)?;
        let beside = beside(&mut document);
        let references = document.references()?;
        Ok(if references.is_empty() {
            Asked::Whole(Box::new(jobs.parse(document)?), beside)
        } else {
            Asked::Naming(document, references, beside)
        })
    };
    let Held { read, permit } = app.uploads.read(arrived, read).await?;
    let (document, references, beside) = match read {
        Asked::Whole(request, beside) => {
            let read = (*request, beside);
            return Ok(Held { read, permit });
        }
        Asked::Naming(document, references, beside) => (document, references, beside),
    };
    // From here on it takes what a body would that has the uploads in it.
    drop(permit);
    let now = Time::from(Timestamp::now());
    let found = app.jobs.find_uploads(references, now).await?;
    let bytes = usize::try_from(found.bytes()).unwrap_or(usize::MAX);
    let permit = app.uploads.permit(bytes).await?;
    let packed = app.jobs.load_uploads(found).await?;
    let jobs = app.jobs.clone();
    let parse = move || Ok(jobs.parse_with_uploads(document, &Uploads::unpack(packed)?)?);
    let read = (on_thread(parse).await?, beside);
    Ok(Held { read, permit })
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
