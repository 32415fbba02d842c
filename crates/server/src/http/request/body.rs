//! Reading request documents.

use axum::extract::{FromRequest, Request};
use serde_json::Value;

use crate::http::App;
use crate::http::request::headers::idempotency_key;
use crate::http::request::uploads::{BufferedBody, ReceivedBody, on_thread};
use crate::http::response::problem::{Code, Problem};
use crate::http::response::response_cache::{Answer, ResponseCache};
use crate::http::server::keys::Client;
use crate::limits::shorten;
use crate::model::{self, DeviceChoice, Digest, Reference, RequestDocument, Uploads};
use crate::probe::LARGEST_BATCH;
use crate::store::IdempotencyKey;

/// A valid request, from a body of any content type: `curl -d` says that it sends a form.
pub(in crate::http) enum RequestBody {
    /// The same was asked before, and its answer is cached.
    Answered(Answer),
    /// One that has to be looked into.
    New(Box<NewRequest>),
}

/// A request without a cached answer.
pub(in crate::http) struct NewRequest {
    /// What is asked.
    pub(in crate::http) held: BufferedBody<model::Request>,
    /// The name that the client gave to the request, if any.
    pub(in crate::http) key: Option<IdempotencyKey>,
    /// What its answer may be kept under.
    pub(in crate::http) same: Option<Digest>,
}

impl FromRequest<App> for RequestBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<RequestBody, Problem> {
        let named = idempotency_key(request.headers())?;
        let client = request.extensions().get::<Client>();
        let owner = client.map(|client| client.id.clone()).unwrap_or_default();
        let received = app.uploads.arrive(request).await?;
        // One with a name gets the fit of that name, whatever else was answered since.
        let same = received.plain().filter(|_| named.is_none());
        let same = same.and_then(|body| ResponseCache::key(&owner, body));
        if let Some(same) = &same
            && let Some(answer) = app.response_cache.find(same, &app.jobs).await?
        {
            return Ok(RequestBody::Answered(answer));
        }
        let BufferedBody { read, permit } = parse(received, app, named.is_some(), &[]).await?;
        let (read, Beside { body, .. }) = read;
        let key = named
            .zip(body)
            .map(|(key, body)| IdempotencyKey { owner, key, body });
        let same = same
            .filter(|_| matches!(read.device, DeviceChoice::Sim(_)) && read.uploads().is_empty());
        Ok(RequestBody::New(Box::new(NewRequest {
            held: BufferedBody { read, permit },
            key,
            same,
        })))
    }
}

/// A valid request with a `batch` beside it, and perhaps how much is to be told.
pub(in crate::http) struct ProbeBody(pub(in crate::http) BufferedBody<Probe>);

/// What a probe is asked.
pub(in crate::http) struct Probe {
    pub(in crate::http) request: model::Request,
    pub(in crate::http) batch: u64,
    /// Whether each allocation and free is asked for.
    pub(in crate::http) events: bool,
}

impl FromRequest<App> for ProbeBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<ProbeBody, Problem> {
        let received = app.uploads.arrive(request).await?;
        let names = &["batch", "batch_size", "detail"];
        let BufferedBody { read, permit } = parse(received, app, false, names).await?;
        let (request, Beside { mut taken, .. }) = read;
        let read = Probe {
            request,
            batch: valid_batch(taken[0].take().or(taken[1].take()))?,
            events: valid_detail(taken[2].take())?,
        };
        Ok(ProbeBody(BufferedBody { read, permit }))
    }
}

/// A request as far as it can be read from its body alone.
enum ParsedBody {
    /// The whole of it.
    Whole(Box<model::Request>),
    /// The document, which names uploads.
    Naming(RequestDocument, Vec<Reference>),
}

/// What is read beside a request.
struct Beside {
    /// The digest of the whole body, where it was asked for.
    body: Option<String>,
    /// The members that were asked for.
    taken: Vec<Option<Value>>,
}

/// Reads the request in a body, with the uploads that it names; `is_named` asks for the digest of the whole body, and `names` are members of
/// the document that belong to another part of the service, and are taken out of it.
async fn parse(
    received: ReceivedBody,
    app: &App,
    is_named: bool,
    names: &'static [&'static str],
) -> Result<BufferedBody<(model::Request, Beside)>, Problem> {
    let jobs = app.jobs.clone();
    let read = move |body: Vec<u8>| {
        let digest = is_named.then(|| Digest::of(&body).to_string());
        let mut document = document(body)?;
        let beside = Beside {
            body: digest,
            taken: names.iter().map(|name| document.take(name)).collect(),
        };
        let references = document.references()?;
        let read = if references.is_empty() {
            ParsedBody::Whole(Box::new(jobs.parse(document)?))
        } else {
            ParsedBody::Naming(document, references)
        };
        Ok((read, beside))
    };
    let owner = received.owner.clone();
    let BufferedBody { read, permit } = app.uploads.read(received, read).await?;
    let (document, references, beside) = match read {
        (ParsedBody::Whole(request), beside) => {
            let read = (*request, beside);
            return Ok(BufferedBody { read, permit });
        }
        (ParsedBody::Naming(document, references), beside) => (document, references, beside),
    };
    // From here on it takes what a body would that has the uploads in it.
    drop(permit);
    let now = app.jobs.db().now();
    let found = app.jobs.find_uploads(references, &owner, now).await?;
    let bytes = usize::try_from(found.bytes()).unwrap_or(usize::MAX);
    let permit = app.uploads.permit(bytes).await?;
    let packed = app.jobs.load_uploads(found).await?;
    let jobs = app.jobs.clone();
    let parse = move || Ok(jobs.parse_with_uploads(document, &Uploads::unpack(packed)?)?);
    let read = (on_thread(parse).await?, beside);
    Ok(BufferedBody { read, permit })
}

fn document(body: Vec<u8>) -> Result<RequestDocument, Problem> {
    if body.is_empty() {
        return Err(Problem::of_body(
            Code::BodyMalformed,
            "the body is empty; send a request document, such as \
                 {\"model\": {\"preset\": \"resnet50\"}, \"device\": \"sim:h200\"}",
        ));
    }
    Ok(RequestDocument::from_bytes(body)?)
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

/// Whether events are asked for.
fn valid_detail(detail: Option<Value>) -> Result<bool, Problem> {
    match detail {
        None => Ok(false),
        Some(Value::String(detail)) if detail == "report" => Ok(false),
        Some(Value::String(detail)) if detail == "events" => Ok(true),
        Some(other) => Err(Problem {
            pointer: Some("/detail".to_owned()),
            nearest: Some("events".to_owned()),
            value: Some(Value::String(match other {
                Value::String(word) => shorten(&word),
                other => shorten(&other.to_string()),
            })),
            ..Problem::new(
                Code::RequestInvalid,
                "`detail` is `report`, or `events` for each allocation and free too",
            )
        }),
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
