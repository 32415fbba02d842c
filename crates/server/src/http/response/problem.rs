//! Problem documents (RFC 9457): the one language in which errors leave the service.

use std::any::Any;
use std::error::Error;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use tower_http::classify::ServerErrorsFailureClass;
use tracing::Span;
use utoipa::ToSchema;

use crate::jobs::{EngineError, JobError};
use crate::limits::shorten;
use crate::model::RequestError;
use crate::store::{Fault, StoreError};

/// The media type of problem documents.
pub(in crate::http) const PROBLEM_JSON: &str = "application/problem+json";

/// Seconds after which a refused client may try again: a simulated fit takes about one.
const RETRY_AFTER_S: u64 = 5;

macro_rules! codes {
    ($(#[doc = $meaning:literal] $name:ident = $slug:literal, $status:ident, $title:literal;)*) => {
        /// The kinds of problem. Slugs are part of the API: add, never rename.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code { $(#[doc = $meaning] $name),* }

        impl Code {
            /// All of them.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// Its name in `type`, after `/problems/`.
            pub const fn slug(self) -> &'static str {
                match self { $(Code::$name => $slug),* }
            }

            /// The status it comes with.
            pub const fn status(self) -> StatusCode {
                match self { $(Code::$name => StatusCode::$status),* }
            }

            /// What it means, in a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Code::$name => $meaning.trim_ascii_start()),* }
            }

            /// What it is, in a few words.
            pub const fn title(self) -> &'static str {
                match self { $(Code::$name => $title),* }
            }
        }
    };
}

codes! {
    /// The body is not JSON.
    BodyMalformed = "body-malformed", BAD_REQUEST, "The body is not valid JSON";
    /// The body is JSON and no valid request.
    RequestInvalid = "request-invalid", UNPROCESSABLE_ENTITY, "The request is not valid";
    /// The recording is damaged, or contradicts itself.
    RecordingInvalid = "recording-invalid", UNPROCESSABLE_ENTITY, "The recording cannot be replayed";
    /// The file is no exported graph and no recording, or is damaged.
    UploadInvalid = "upload-invalid", UNPROCESSABLE_ENTITY, "The file is neither a graph nor a recording";
    /// The request names a graph or a recording that is not there.
    UploadUnknown = "upload-unknown", UNPROCESSABLE_ENTITY, "The upload is not there";
    /// What is in the place of a digest is none.
    DigestInvalid = "digest-invalid", UNPROCESSABLE_ENTITY, "The digest is not valid";
    /// The file that was sent is not the one whose digest was announced.
    DigestMismatch = "digest-mismatch", UNPROCESSABLE_ENTITY, "The file has another digest";
    /// Requests need a key here, and this one has none that is known.
    Unauthorized = "unauthorized", UNAUTHORIZED, "An API key is needed";
    /// The key is for less than what was asked.
    ScopeMissing = "scope-missing", FORBIDDEN, "The API key is not for this";
    /// The key was used more often than any may be.
    RateLimited = "rate-limited", TOO_MANY_REQUESTS, "The API key asks too often";
    /// As many requests of the key are being answered as may be.
    KeyBusy = "key-busy", SERVICE_UNAVAILABLE, "The API key asks too much at a time";
    /// Something else was asked under the same idempotency key.
    IdempotencyKeyReused = "idempotency-key-reused", UNPROCESSABLE_ENTITY, "The idempotency key was used for another request";
    /// A header has a value that it cannot have.
    HeaderInvalid = "header-invalid", BAD_REQUEST, "A header is not valid";
    /// A query parameter is unknown or has a value that it cannot have.
    QueryInvalid = "query-invalid", UNPROCESSABLE_ENTITY, "The query is not valid";
    /// The `cursor` is not the `next` of a page before.
    CursorInvalid = "cursor-invalid", BAD_REQUEST, "The cursor is not of this list";
    /// The device does not exist here.
    DeviceUnavailable = "device-unavailable", UNPROCESSABLE_ENTITY, "The device is not available";
    /// The body is larger than the limit.
    BodyTooLarge = "body-too-large", PAYLOAD_TOO_LARGE, "The body is too large";
    /// The body is compressed in a way that is not understood.
    EncodingUnsupported = "encoding-unsupported", UNSUPPORTED_MEDIA_TYPE, "The content encoding is not supported";
    /// The body did not arrive in time.
    BodyTimeout = "body-timeout", REQUEST_TIMEOUT, "The body did not arrive in time";
    /// A page of another site asked through a browser.
    OriginForbidden = "origin-forbidden", FORBIDDEN, "Pages of this origin may not ask";
    /// The request names a host under which the service is not known.
    HostUnknown = "host-unknown", MISDIRECTED_REQUEST, "The service does not answer to this host";
    /// There is nothing under this path.
    NotFound = "not-found", NOT_FOUND, "There is no such resource";
    /// The path exists and cannot be asked this.
    MethodNotAllowed = "method-not-allowed", METHOD_NOT_ALLOWED, "The method is not allowed here";
    /// A fit that has ended cannot be cancelled.
    FitEnded = "fit-ended", CONFLICT, "The fit has ended already";
    /// Another key asked for it.
    NotYours = "not-yours", FORBIDDEN, "It is another key's";
    /// A search that was cancelled is told nothing more, and one that is done cannot be cancelled.
    SearchEnded = "search-ended", CONFLICT, "The search has ended already";
    /// A search was told as much as it may be.
    SearchFull = "search-full", CONFLICT, "The search is full";
    /// Too many searches are under way.
    SearchesFull = "searches-full", SERVICE_UNAVAILABLE, "There are too many searches";
    /// A file that is needed cannot be deleted.
    UploadInUse = "upload-in-use", CONFLICT, "The upload is in use";
    /// All uploads together take what they may.
    UploadsFull = "uploads-full", INSUFFICIENT_STORAGE, "There is no room for more uploads";
    /// Too many fits are waiting.
    QueueFull = "queue-full", SERVICE_UNAVAILABLE, "The queue is full";
    /// Too many other requests are being worked on.
    TooManyRequests = "too-many-requests", SERVICE_UNAVAILABLE, "The service is busy";
    /// Too many large bodies are being read.
    UploadsBusy = "uploads-busy", SERVICE_UNAVAILABLE, "Too many large bodies at a time";
    /// Another process uses the device.
    DeviceBusy = "device-busy", SERVICE_UNAVAILABLE, "The device is busy";
    /// The work was not done in time, and was stopped.
    TookTooLong = "took-too-long", SERVICE_UNAVAILABLE, "The work took too long";
    /// The service is about to end, or its database does not answer.
    NotReady = "not-ready", SERVICE_UNAVAILABLE, "The service is not ready";
    /// The device did not do its work.
    DeviceFailed = "device-failed", BAD_GATEWAY, "The device failed";
    /// An agent is of another version than the service, and its answers would be others.
    AgentVersion = "agent-version", CONFLICT, "The agent has another version";
    /// Another agent of this name is registered.
    AgentNameTaken = "agent-name-taken", CONFLICT, "Another agent has this name";
    /// There are as many agents as may be.
    AgentsFull = "agents-full", SERVICE_UNAVAILABLE, "There are too many agents";
    /// What an agent says is of an attempt that is not its own any more, and is not stored.
    LeaseLost = "lease-lost", CONFLICT, "The lease has passed";
    /// A request that HTTP itself does not allow.
    BadRequest = "bad-request", BAD_REQUEST, "The request could not be understood";
    /// A fault of ours.
    Internal = "internal", INTERNAL_SERVER_ERROR, "Something went wrong on our side";
}

/// A problem document.
#[derive(Debug, Clone, PartialEq, Default, Serialize, ToSchema)]
pub struct Problem {
    /// `/problems/` and the code.
    #[serde(rename = "type")]
    #[schema(example = "/problems/request-invalid")]
    pub kind: String,
    /// What it is, in a few words.
    #[schema(example = "The request is not valid")]
    pub title: String,
    /// The HTTP status.
    #[schema(example = 422)]
    pub status: u16,
    /// What is wrong here, for the person who has to act.
    #[schema(example = "unknown preset \"resnet5\"; the nearest is \"resnet50\"")]
    pub detail: String,
    /// Where in the body, as a JSON pointer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "/model/preset")]
    pub pointer: Option<String>,
    /// Which query parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// The value found there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "resnet5")]
    pub value: Option<Value>,
    /// The nearest valid value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "resnet50")]
    pub nearest: Option<String>,
    /// What the machine lacks for the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// Devices that could be asked for instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Vec<String>>,
}

impl Problem {
    /// A problem of this kind.
    pub fn new(code: Code, detail: impl Into<String>) -> Problem {
        Problem {
            kind: format!("/problems/{}", code.slug()),
            title: code.title().to_owned(),
            status: code.status().as_u16(),
            detail: detail.into(),
            ..Problem::default()
        }
    }

    /// There is no `what` called `id`.
    pub fn no_such(what: &str, id: &str) -> Problem {
        Problem::new(
            Code::NotFound,
            format!("there is no {what} {:?}", shorten(id)),
        )
    }

    /// What was found, or that there is no `what` called `id`.
    pub fn unless<T>(found: Option<T>, what: &str, id: &str) -> Result<T, Problem> {
        found.ok_or_else(|| Problem::no_such(what, id))
    }

    /// A problem with the body as a whole.
    pub fn of_body(code: Code, detail: impl Into<String>) -> Problem {
        Problem {
            pointer: Some(String::new()),
            ..Problem::new(code, detail)
        }
    }

    /// A fault of ours, of which the log has what happened.
    pub(in crate::http) fn fault() -> Problem {
        let detail =
            "the fault is in the log of the service, under the x-request-id of this response";
        Problem::new(Code::Internal, detail)
    }

    /// A fault of ours: the log gets what happened, the caller only that it did.
    fn internal(error: &(dyn Error + 'static)) -> Problem {
        tracing::error!(error, "could not answer a request: {error}");
        Problem::fault()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).expect("it is from the table of codes");
        let mut response = (status, Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response
    }
}

impl From<RequestError> for Problem {
    fn from(invalid: RequestError) -> Problem {
        let detail = invalid.to_string();
        let code = if invalid.is_malformed {
            Code::BodyMalformed
        } else {
            Code::RequestInvalid
        };
        Problem {
            pointer: Some(invalid.pointer),
            // A value that was shortened is no longer JSON: show it as text.
            value: invalid
                .value
                .map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text))),
            nearest: invalid.nearest,
            ..Problem::new(code, detail)
        }
    }
}

/// What to do about a database that does not answer.
pub(in crate::http) fn what_to_do(fault: Fault) -> &'static str {
    match fault {
        Fault::Full => "its disk is full: make room",
        Fault::Locked => "another process keeps it locked: let that one end",
        Fault::ReadOnly => "it may not be written: give the service the right to",
        Fault::Gone => "its file was moved or deleted: put it back, or restart the service",
        Fault::Damaged => "it is damaged: `batchfit db check` says where",
        Fault::Unreachable => "its server is not reached: is it started, and reached from here?",
        Fault::Other => "the log of the service says why",
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        Problem::from(JobError::from(error))
    }
}

impl From<JobError> for Problem {
    fn from(error: JobError) -> Problem {
        let detail = error.to_string();
        let code = match error {
            JobError::TooManySearches(_) => Code::SearchesFull,
            JobError::KeyReused { .. } => Code::IdempotencyKeyReused,
            JobError::TooLarge => Code::UploadsBusy,
            JobError::QueueFull(_) | JobError::ShareFull { .. } => Code::QueueFull,
            JobError::DeviceBusy(_) | JobError::Engine(EngineError::DeviceBusy { .. }) => {
                Code::DeviceBusy
            }
            JobError::UploadsFull { .. } => Code::UploadsFull,
            JobError::TookTooLong(_) | JobError::Engine(EngineError::TimedOut { .. }) => {
                Code::TookTooLong
            }
            JobError::AgentVersion(_) => Code::AgentVersion,
            JobError::AgentNameTaken { .. } => Code::AgentNameTaken,
            JobError::TooManyAgents => Code::AgentsFull,
            JobError::LeaseLost(_) | JobError::JobEnded(_) => Code::LeaseLost,
            JobError::Busy => Code::TooManyRequests,
            JobError::ShuttingDown | JobError::NoThread => Code::NotReady,
            JobError::Engine(EngineError::DeviceFailed { .. }) => Code::DeviceFailed,
            JobError::UploadUnknown { pointer, digest } => {
                return Problem {
                    pointer: Some(pointer),
                    value: Some(Value::String(digest.to_string())),
                    ..Problem::new(Code::UploadUnknown, detail)
                };
            }
            JobError::Engine(EngineError::Invalid(invalid)) => return Problem::from(invalid),
            JobError::Engine(EngineError::DeviceUnavailable {
                device,
                missing,
                simulated,
            }) => {
                // A recorder needs a GPU whatever card is asked about.
                let detail = if device.starts_with("sim:") {
                    format!(
                        "{missing}, and recording needs one; without it `batchfit fit my.py:build` exports a module and simulates {device}"
                    )
                } else {
                    format!(
                        "{detail}; name a card, as in `\"device\": \"rtx4090\"`, and it is simulated on any machine"
                    )
                };
                return Problem {
                    pointer: Some("/device".to_owned()),
                    value: Some(Value::String(device)),
                    missing: Some(missing),
                    simulated: Some(simulated),
                    ..Problem::new(Code::DeviceUnavailable, detail)
                };
            }
            JobError::Store(error) => {
                tracing::error!(
                    error = &error as &dyn Error,
                    "could not answer a request: {error}"
                );
                let why = what_to_do(error.fault());
                let detail = format!(
                    "the database does not answer ({why}); nothing was stored, so ask again later"
                );
                return Problem::new(Code::NotReady, detail);
            }
            JobError::Engine(EngineError::Cancelled | EngineError::Died { .. })
            | JobError::EnginePanicked(_) => return Problem::internal(&error),
        };
        Problem::new(code, detail)
    }
}

/// Answers paths that do not exist.
pub(in crate::http) async fn no_such_route(uri: Uri) -> Problem {
    Problem::new(
        Code::NotFound,
        format!(
            "there is nothing at {}; /openapi.yaml lists all paths",
            shorten(uri.path())
        ),
    )
}

/// Refuses a method that a path does not know; the router adds `Allow`.
pub(in crate::http) fn no_such_method(uri: &Uri, method: &Method, known: &[&Method]) -> Problem {
    let known: Vec<&str> = known.iter().map(|method| method.as_str()).collect();
    let path = shorten(uri.path());
    Problem::new(
        Code::MethodNotAllowed,
        format!(
            "{path} does not answer {method}; it answers {}",
            known.join(", ")
        ),
    )
}

/// Logs an answer that says that something failed. Refusals while there is too much to do, or not yet or no longer
/// anything can be done, are how the service holds together, not a fault of it.
pub(in crate::http) fn log_failure(failure: ServerErrorsFailureClass, latency: Duration, _: &Span) {
    let latency_ms = latency.as_millis();
    match failure {
        ServerErrorsFailureClass::StatusCode(StatusCode::SERVICE_UNAVAILABLE) => {
            tracing::warn!(latency_ms, "refused: busy, or about to end");
        }
        ServerErrorsFailureClass::StatusCode(StatusCode::INSUFFICIENT_STORAGE) => {
            tracing::warn!(latency_ms, "refused: no room for more uploads");
        }
        failed => tracing::error!(latency_ms, "answered with a fault: {failed}"),
    }
}

/// Answers for a handler that panicked.
pub(in crate::http) fn panicked(_: Box<dyn Any + Send + 'static>) -> Response {
    // The panic hook has printed the message already.
    tracing::error!("a handler panicked");
    Problem::fault().into_response()
}

/// Most of the framework's own words that are repeated, in bytes; it has no more than a sentence.
const LONGEST_REASON: usize = 1 << 10;

/// Turns the errors of the framework and its layers, which are plain text or empty, into problems.
pub(in crate::http) async fn speak_one_language(response: Response) -> Response {
    let status = response.status();
    let is_problem = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind == PROBLEM_JSON);
    if is_problem || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let problem = match status {
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Problem::new(
            Code::EncodingUnsupported,
            "send the body as it is, or with `Content-Encoding: gzip`",
        ),
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(Code::BodyTooLarge, "the body is too large"),
        StatusCode::NOT_FOUND => Problem::new(Code::NotFound, "there is nothing at this path"),
        StatusCode::METHOD_NOT_ALLOWED => Problem::new(
            Code::MethodNotAllowed,
            "this path does not answer this method",
        ),
        other if other.is_client_error() => {
            let reason = to_bytes(body, LONGEST_REASON).await.unwrap_or_default();
            let reason = match String::from_utf8_lossy(&reason).trim() {
                "" => other.canonical_reason().unwrap_or("bad request").to_owned(),
                said => said.to_owned(),
            };
            Problem::new(Code::BadRequest, reason)
        }
        _ours => Problem::fault(),
    };
    let (own, body) = problem.into_response().into_parts();
    parts.status = own.status;
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.extend(own.headers);
    Response::from_parts(parts, Body::new(body))
}
