//! Outcomes: what came of trainings that followed a recommendation?

use axum::Json;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::http::App;
use crate::http::request::headers::idempotency_key;
use crate::http::request::parameters::{Page, Parameters, no_cursor};
use crate::http::resources::searches::small_named;
use crate::http::response::problem::{Code, Problem};
use crate::http::server::keys::Client;
use crate::jobs::{
    AccuracyDocument, OutcomeDocument, OutcomeStatus, ReportedOutcome, Reporter, accuracy,
    add_outcome, outcomes,
};

/// An outcome, who reports it, and under which name.
pub(in crate::http) struct OutcomeReport {
    told: ReportedOutcome,
    reporter: Reporter,
}

impl FromRequest<App> for OutcomeReport {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<OutcomeReport, Problem> {
        let name = idempotency_key(request.headers())?;
        let client = request.extensions().get::<Client>();
        let owner = client.map(|client| client.id.clone()).unwrap_or_default();
        let (told, digest) = small_named(request, app, ReportedOutcome::parse).await?;
        let reporter = Reporter {
            owner,
            named: name.map(|name| (name, digest)),
        };
        Ok(OutcomeReport { told, reporter })
    }
}

/// Tell what a training came to.
///
/// It is kept beside what was predicted. Where it can be believed, later answers for the same model and card leave more free at once
/// where this one left too little, and less after twenty in a row for which less would have done, but never under 0.5 % of the limit.
/// The id of a fit stands for its first recommendation. With an `Idempotency-Key` it may be sent again; without, each is a training of its own.
#[utoipa::path(post, path = "/v1/recommendations/{id}/outcomes", tag = "recommendations", request_body = ref("#/components/schemas/NewOutcome"),
    params(("id" = String, Path, description = "The recommendation's id, or its fit's"),
        ("Idempotency-Key" = Option<String>, Header, description = "A name of yours for this training: told again under it, it counts once", example = "6f9f0c3e-8b1c-4f3a-9a55-2f1f3b7f7a10", min_length = 1, max_length = 255)),
    responses(
        (status = 200, body = OutcomeDocument, description = "It was told before, under the same `Idempotency-Key`"),
        (status = 201, body = OutcomeDocument, description = "The outcome, and what was learnt of it")))]
pub(in crate::http) async fn create_outcome(
    State(app): State<App>,
    Path(id): Path<String>,
    OutcomeReport { told, reporter }: OutcomeReport,
) -> Result<Response, Problem> {
    let now = app.jobs.db().now();
    let name = reporter.named.as_ref().map(|(name, _)| name.clone());
    match add_outcome(app.jobs.db(), &id, &told, reporter, now).await? {
        OutcomeStatus::New(outcome) => Ok((StatusCode::CREATED, Json(outcome)).into_response()),
        OutcomeStatus::Again(outcome) => Ok(Json(outcome).into_response()),
        OutcomeStatus::NameTaken => Err(Problem::new(
            Code::IdempotencyKeyReused,
            format!(
                "another outcome was told under the Idempotency-Key {:?}; send what was sent then, or a new key",
                name.unwrap_or_default()
            ),
        )),
        OutcomeStatus::Unknown => Err(Problem::no_such("recommendation", &id)),
    }
}

/// List what trainings by a recommendation came to, newest first.
///
/// The last 1,000 of a recommendation are kept, and the last 100,000 in all.
#[utoipa::path(get, path = "/v1/recommendations/{id}/outcomes", tag = "recommendations",
    params(("id" = String, Path, description = "The recommendation's id, or its fit's"),
        ("limit" = Option<u32>, Query, description = "How many, from 1 to 500; 50 by default", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "`next` of the page before")),
    responses((status = 200, body = ref("#/components/schemas/OutcomeList"), description = "A page")))]
pub(in crate::http) async fn list_outcomes(
    State(app): State<App>,
    Path(id): Path<String>,
    parameters: Parameters,
) -> Result<Json<Page<OutcomeDocument>>, Problem> {
    let limit = parameters.limit()?;
    let before = cursor(&parameters)?;
    let found = Problem::unless(
        outcomes(app.jobs.db(), &id, before, limit + 1).await?,
        "recommendation",
        &id,
    )?;
    Ok(Json(Page::of(found, limit, |outcome| {
        outcome.id.to_string()
    })))
}

/// List how predictions compare with what trainings came to, for each model on each card.
///
/// And the headroom of answers because of that.
#[utoipa::path(get, path = "/v1/accuracy", tag = "recommendations",
    params(("gpu" = Option<String>, Query, description = "The card's name, as listed", example = "NVIDIA H200"),
        ("limit" = Option<u32>, Query, description = "How many, from 1 to 500; 50 by default", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "`next` of the page before")),
    responses((status = 200, body = ref("#/components/schemas/AccuracyList"), description = "A page")))]
pub(in crate::http) async fn list_accuracy(
    State(app): State<App>,
    parameters: Parameters,
) -> Result<Json<Page<AccuracyDocument>>, Problem> {
    let limit = parameters.limit()?;
    let gpu = parameters.text("gpu");
    let after = cursor(&parameters)?;
    let found = accuracy(app.jobs.db(), gpu.as_deref(), after, limit + 1).await?;
    Ok(Json(Page::of(found, limit, |row| row.id.to_string())))
}

/// The number that a cursor of these lists is.
fn cursor(parameters: &Parameters) -> Result<Option<i64>, Problem> {
    let given = parameters.text("cursor");
    let read = given.map(|text| {
        let number = text.parse().ok().filter(|number| *number > 0);
        number.ok_or_else(|| no_cursor(&text))
    });
    read.transpose()
}
