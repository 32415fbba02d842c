//! Fits: what is the largest batch?

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::http::App;
use crate::http::request::body::{NewRequest, RequestBody};
use crate::http::request::headers::preferred_wait;
use crate::http::request::parameters::{Page, Parameters, no_cursor};
use crate::http::request::uploads::BufferedBody;
use crate::http::response::formats::get_fit_format;
use crate::http::response::problem::{Code, Problem};
use crate::http::response::response_cache::Answer;
use crate::http::server::keys::Client;
use crate::jobs::{Cancellation, EnqueueOptions, FitDocument};
use crate::model::RequestDocument;
use crate::report::Form;
use crate::store::{FitFilter, FitState, FitSummary};

/// The form of an answer without `format`.
const JSON: &str = "json";

/// Queue a fit.
///
/// Returns at once; follow `Location` for progress, or wait for the answer with `Prefer: wait=SECONDS`.
/// The same request under the same key gives the same fit, and an equal question in other words or of another key the same answer in a fit of its own, unless it failed, was cancelled, or depends on what is free on a GPU.
#[utoipa::path(post, path = "/v1/fits", tag = "fits", request_body = RequestDocument,
    params(("format" = Option<String>, Query, description = "The answer as text, as `GET /v1/fits/{id}/formats/{format}` has it, or as `json`, in this one call, which waits for up to 60 seconds unless `Prefer` says otherwise; `Accept: text/plain` asks for `text`",
            example = "env", pattern = "^(json|text|markdown|env|hf|trl|lightning|accelerate|python)$"),
        ("Prefer" = Option<String>, Header, description = "`wait=N`: wait up to N seconds (at most 600) for the fit to end", example = "wait=30"),
        ("Idempotency-Key" = Option<String>, Header, description = "A name of yours for this request, such as a UUID: sent again within 24 hours and 100,000 other names, it gets the same fit, whatever became of it", example = "6f9f0c3e-8b1c-4f3a-9a55-2f1f3b7f7a10", min_length = 1, max_length = 255)),
    responses(
        (status = 200, content((FitDocument = "application/json"), (String = "text/plain")), description = "The fit has ended within the time to wait",
            headers(("Location" = String), ("Preference-Applied" = String))),
        (status = 202, body = FitDocument, description = "The fit is queued",
            headers(("Location" = String), ("Preference-Applied" = String)))))]
pub(in crate::http) async fn create_fit(
    State(app): State<App>,
    client: Client,
    parameters: Parameters,
    mut headers: HeaderMap,
    body: RequestBody,
) -> Result<Response, Problem> {
    let accepted = headers
        .get(ACCEPT)
        .is_some_and(|accepted| accepted.as_bytes().starts_with(b"text/plain"));
    let mut forms = vec![JSON];
    forms.extend(Form::ALL.map(Form::name));
    let named = parameters.one_of("format", &forms)?;
    let Some(form) = named.or_else(|| accepted.then(|| Form::Text.name().to_owned())) else {
        return create(app, client, headers, body).await;
    };
    // A form is of an answer alone.
    headers
        .entry("prefer")
        .or_insert(HeaderValue::from_static("wait=60"));
    if form == JSON {
        return create(app, client, headers, body).await;
    }
    let response = create(app.clone(), client, headers, body).await?;
    let location = response
        .headers()
        .get(LOCATION)
        .and_then(|at| at.to_str().ok());
    let id = location
        .and_then(|at| at.rsplit('/').next())
        .unwrap_or_default()
        .to_owned();
    if response.status() == StatusCode::OK {
        return get_fit_format(State(app), Path((id, form))).await;
    }
    // A shell that evaluates it fails.
    let text = format!("false # no answer yet: GET /v1/fits/{id}/formats/{form}\n");
    Ok((
        response.status(),
        [(CONTENT_TYPE, "text/plain; charset=utf-8")],
        text,
    )
        .into_response())
}

async fn create(
    app: App,
    client: Client,
    headers: HeaderMap,
    body: RequestBody,
) -> Result<Response, Problem> {
    let new = match body {
        RequestBody::Answered(answer) => {
            app.metrics.hits.inc();
            return Ok(known(&headers, answer));
        }
        RequestBody::New(new) => *new,
    };
    let NewRequest { held, key, same } = new;
    let BufferedBody { read, permit } = held;
    let now = app.jobs.db().now();
    let patience = preferred_wait(&headers);
    let asking = EnqueueOptions {
        interactive: patience.is_some(),
        owner: client.id.clone(),
        key,
    };
    // Before the question is: what is learnt meanwhile makes the answer out of date.
    let turns = app.jobs.turns();
    let fit = app.jobs.enqueue(read, Some(permit), asking, now).await?;
    let keep = |fit: &FitDocument| {
        if let Some(same) = same {
            // The next request finds it in the cache.
            app.response_cache.keep(same, answer(fit), turns);
        }
    };
    sent(&app, &client, fit, patience, keep).await
}

/// Sends a fit, once it has ended where the client waits for that. `keep` sees it where it is done.
pub(in crate::http) async fn sent(
    app: &App,
    client: &Client,
    fit: FitDocument,
    patience: Option<Duration>,
    keep: impl FnOnce(&FitDocument),
) -> Result<Response, Problem> {
    let location = [(LOCATION, format!("/v1/fits/{}", fit.id))];
    // Waiting is a wish. When very many have it, some are answered at once, and can follow `Location`.
    let place = patience.zip(app.waiters.take(&client.id));
    let Some((patience, _place)) = place else {
        if fit.state == FitState::Done {
            keep(&fit);
        }
        return Ok((StatusCode::ACCEPTED, location, Json(fit)).into_response());
    };
    let fit = app.jobs.wait(&fit.id, patience).await?.unwrap_or(fit);
    let status = if fit.state.is_final() {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    if fit.state == FitState::Done {
        keep(&fit);
    }
    Ok((status, location, [applied(patience)], Json(fit)).into_response())
}

/// The document of a fit, ready to be sent.
fn answer(fit: &FitDocument) -> Answer {
    let document = serde_json::to_vec(fit).expect("documents have text keys and finite numbers");
    Answer {
        id: fit.id.clone(),
        document: Bytes::from(document),
    }
}

/// Sends an answer that was given before, as if its fit had just been found.
fn known(headers: &HeaderMap, answer: Answer) -> Response {
    let location = [(LOCATION, format!("/v1/fits/{}", answer.id))];
    let body = ([(CONTENT_TYPE, "application/json")], answer.document);
    match preferred_wait(headers) {
        Some(patience) => (StatusCode::OK, location, [applied(patience)], body).into_response(),
        None => (StatusCode::ACCEPTED, location, body).into_response(),
    }
}

/// What is said of a wish to wait that was heard.
fn applied(patience: Duration) -> (&'static str, HeaderValue) {
    let applied = format!("wait={}", patience.as_secs());
    let applied = HeaderValue::from_str(&applied).expect("digits are valid in headers");
    ("preference-applied", applied)
}

/// List fits, newest first.
#[utoipa::path(get, path = "/v1/fits", tag = "fits",
    params(("state" = Option<FitState>, Query, description = "Only fits in this state"),
        ("limit" = Option<u32>, Query, description = "How many, from 1 to 500; 50 by default", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "`next` of the page before")),
    responses((status = 200, body = ref("#/components/schemas/FitList"), description = "A page")))]
pub(in crate::http) async fn list_fits(
    State(app): State<App>,
    parameters: Parameters,
) -> Result<Json<Page<FitSummary>>, Problem> {
    let limit = parameters.limit()?;
    let state = parameters.one_of("state", &FitState::ALL.map(FitState::name))?;
    let filter = FitFilter {
        state: state.as_deref().and_then(FitState::named),
        before: parameters.text("cursor"),
        limit: limit + 1,
    };
    if let Some(cursor) = &filter.before
        && app.jobs.fit(cursor).await?.is_none()
    {
        return Err(no_cursor(cursor));
    }
    Ok(Json(Page::of(
        app.jobs.fits(&filter).await?,
        limit,
        |fit| fit.id.clone(),
    )))
}

/// Get a fit.
#[utoipa::path(get, path = "/v1/fits/{id}", tag = "fits",
    params(("id" = String, Path, description = "The fit's id")),
    responses((status = 200, body = FitDocument, description = "The fit")))]
pub(in crate::http) async fn get_fit(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<FitDocument>, Problem> {
    Problem::unless(app.jobs.fit(&id).await?, "fit", &id).map(Json)
}

/// Cancel a fit.
///
/// The fit stays in the list, as `cancelled`. Cancelling it again changes nothing. The key that asked for it may, and `admin`.
#[utoipa::path(delete, path = "/v1/fits/{id}", tag = "fits",
    params(("id" = String, Path, description = "The fit's id")),
    responses((status = 200, body = FitDocument, description = "The fit is cancelled")))]
pub(in crate::http) async fn cancel_fit(
    State(app): State<App>,
    client: Client,
    Path(id): Path<String>,
) -> Result<Json<FitDocument>, Problem> {
    let now = app.jobs.db().now();
    match app.jobs.cancel(&id, client.owner(), now).await? {
        Cancellation::Cancelled(fit) => Ok(Json(*fit)),
        Cancellation::TooLate(state) => Err(Problem::new(
            Code::FitEnded,
            format!("fit {id:?} is {}", state.name()),
        )),
        Cancellation::NotYours => Err(Problem::new(
            Code::NotYours,
            format!("another key asked for fit {id:?}; that key may cancel it, or one for `admin`"),
        )),
        Cancellation::Unknown => Err(Problem::no_such("fit", &id)),
    }
}
