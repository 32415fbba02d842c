//! Searches: which batch should the client run next?

use axum::Json;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use crate::http::App;
use crate::http::response::problem::{Code, Problem};
use crate::http::server::keys::Client;
use crate::jobs::{ObservationReply, SearchCancellation, SearchDocument};
use crate::limits::{AnyValue, clause, with_budget};
use crate::model::{Digest, RequestError};
use batchfit_fit::search::ask_tell::{Observation, SearchRequest};

/// Longest body: a search or an observation has a few hundred bytes, and an allocator setting up to 4 KiB.
const LONGEST: usize = 64 << 10;

/// What such a body may take in memory.
const MEMORY: usize = 1 << 20;

/// A small document, from a body of any content type.
pub(in crate::http) struct Small<T>(T);

impl FromRequest<App> for Small<SearchRequest> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Small<SearchRequest>, Problem> {
        small(request, app, SearchRequest::parse).await.map(Small)
    }
}

impl FromRequest<App> for Small<Observation> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Small<Observation>, Problem> {
        small(request, app, Observation::parse).await.map(Small)
    }
}

async fn small<T: Send + 'static>(
    request: Request,
    app: &App,
    parse: fn(&Value) -> Result<T, RequestError>,
) -> Result<T, Problem> {
    small_named(request, app, parse).await.map(|(read, _)| read)
}

/// The same with the SHA-256 of the body.
pub(in crate::http) async fn small_named<T: Send + 'static>(
    request: Request,
    app: &App,
    parse: fn(&Value) -> Result<T, RequestError>,
) -> Result<(T, String), Problem> {
    let arrived = app.uploads.arrive(request).await?;
    let read = move |body: Vec<u8>| {
        if body.len() > LONGEST {
            let detail = format!("the body is larger than {} KiB", LONGEST >> 10);
            return Err(Problem::new(Code::BodyTooLarge, detail));
        }
        let (read, excess) = with_budget(MEMORY, || serde_json::from_slice::<AnyValue>(&body));
        let malformed = |detail: String| Problem::of_body(Code::BodyMalformed, detail);
        if excess.is_some() {
            let detail = format!(
                "the body would take more than {} MiB of memory",
                MEMORY >> 20
            );
            return Err(malformed(detail));
        }
        let AnyValue(document) = read.map_err(|error| {
            let (line, column) = (error.line(), error.column());
            malformed(format!(
                "the body is not valid JSON at line {line}, column {column}: {}",
                clause(&error)
            ))
        })?;
        let digest = Digest::of(&body).to_string();
        Ok((parse(&document).map_err(Problem::from)?, digest))
    };
    Ok(app.uploads.read(arrived, read).await?.read)
}

/// Begin a search whose batches you run.
///
/// The answer names the first batch to run. Tell what came of it, and run the next, until the state is `done`. Works with any
/// program, framework and hardware; see `POST /v1/searches/{id}/observations`.
#[utoipa::path(post, path = "/v1/searches", tag = "searches", request_body = ref("#/components/schemas/NewSearch"),
    responses((status = 201, body = SearchDocument, description = "The search", headers(("Location" = String)))))]
pub(in crate::http) async fn create_search(
    State(app): State<App>,
    client: Client,
    Small(terms): Small<SearchRequest>,
) -> Result<Response, Problem> {
    let search = app.jobs.create_search(terms, &client.id).await?;
    let location = [(LOCATION, format!("/v1/searches/{}", search.id))];
    Ok((StatusCode::CREATED, location, Json(search)).into_response())
}

/// Tell what came of a batch.
///
/// Of the one that was proposed, or of any other. The same observation twice counts once; of contradicting ones all are kept,
/// and the worst counts. What fits may be told with `peak_reserved_bytes`: with a `memory_limit`, two such batches are enough
/// for the next one to come from a line through them, from below. `crashed` says nothing about memory: another batch is
/// tried, and three crashes in a row end the search. With `recorded`, a recording of the run, batches are proposed by what the
/// recordings predict. Where the first recording was told to an earlier search of the same key for the same, on the same card, that
/// search's answer is given at once (`answered_by`). A search is its key's: others, but for `admin`, do not find it.
#[utoipa::path(post, path = "/v1/searches/{id}/observations", tag = "searches", request_body = ref("#/components/schemas/NewObservation"),
    params(("id" = String, Path, description = "The search's id")),
    responses(
        (status = 200, body = SearchDocument, description = "The same was told before"),
        (status = 201, body = SearchDocument, description = "The search, with the next batch or the answer")))]
pub(in crate::http) async fn create_observation(
    State(app): State<App>,
    client: Client,
    Path(id): Path<String>,
    Small(observation): Small<Observation>,
) -> Result<Response, Problem> {
    let told = app.jobs.tell_search(&id, client.owner(), &observation);
    match told.await? {
        ObservationReply::New(search) => Ok((StatusCode::CREATED, Json(search)).into_response()),
        ObservationReply::Again(search) => Ok(Json(search).into_response()),
        ObservationReply::Full(most) => Err(Problem::new(
            Code::SearchFull,
            format!("search {id:?} was told {most} observations; begin another"),
        )),
        ObservationReply::Cancelled => Err(Problem::new(
            Code::SearchEnded,
            format!("search {id:?} is cancelled"),
        )),
        ObservationReply::Unknown => Err(Problem::no_such("search", &id)),
    }
}

/// Get a search.
#[utoipa::path(get, path = "/v1/searches/{id}", tag = "searches",
    params(("id" = String, Path, description = "The search's id")),
    responses((status = 200, body = SearchDocument, description = "The search")))]
pub(in crate::http) async fn get_search(
    State(app): State<App>,
    client: Client,
    Path(id): Path<String>,
) -> Result<Json<SearchDocument>, Problem> {
    Problem::unless(app.jobs.search(&id, client.owner()).await?, "search", &id).map(Json)
}

/// Cancel a search.
///
/// It can be read as before, with what is known so far. Cancelling it again changes nothing.
#[utoipa::path(delete, path = "/v1/searches/{id}", tag = "searches",
    params(("id" = String, Path, description = "The search's id")),
    responses((status = 200, body = SearchDocument, description = "The search is cancelled")))]
pub(in crate::http) async fn cancel_search(
    State(app): State<App>,
    client: Client,
    Path(id): Path<String>,
) -> Result<Json<SearchDocument>, Problem> {
    match app.jobs.cancel_search(&id, client.owner()).await? {
        SearchCancellation::Cancelled(search) => Ok(Json(*search)),
        SearchCancellation::TooLate => Err(Problem::new(
            Code::SearchEnded,
            format!("search {id:?} is done"),
        )),
        SearchCancellation::Unknown => Err(Problem::no_such("search", &id)),
    }
}
