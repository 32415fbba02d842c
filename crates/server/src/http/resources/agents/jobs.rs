//! What agents work on.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use http_body_util::BodyExt as _;

use crate::http::App;
use crate::http::resources::agents::body::JsonBody;
use crate::http::response::large::{self, ReadsGzip};
use crate::http::response::problem::Problem;
use crate::http::server::keys::Client;
use crate::jobs::{
    Claim, ClaimDocument, FailureCode, FitError, JobNews, JobOutcome, LeaseDocument, permit_to_send,
};
use crate::model::RequestDocument;

/// Get something to work on.
///
/// Waits for up to `wait_seconds` until a fit waits that one of the free cards can run. It is the agent's as long as the agent says so
/// again and again (`POST /v1/agents/{id}/jobs/{attempt}/progress`): one that says nothing for `lease_seconds` loses it to another.
#[utoipa::path(post, path = "/v1/agents/{id}/claims", tag = "agents", request_body = Claim,
    params(("id" = String, Path, description = "The agent's id")),
    responses((status = 200, body = ClaimDocument, description = "What to work on, or that there is nothing")))]
pub(in crate::http) async fn create_claim(
    State(app): State<App>,
    Path(id): Path<String>,
    client: Client,
    JsonBody(claim): JsonBody<Claim>,
) -> Result<Json<ClaimDocument>, Problem> {
    Problem::unless(
        app.jobs.claim_job(&id, &client.id, &claim).await?,
        "agent",
        &id,
    )
    .map(Json)
}

/// Get what is asked in a job.
///
/// The whole request, with the graphs and recordings that it names in place.
#[utoipa::path(get, path = "/v1/agents/{id}/jobs/{attempt}/request", tag = "agents",
    params(("id" = String, Path, description = "The agent's id"), ("attempt" = String, Path, description = "The name of the attempt")),
    responses((status = 200, body = RequestDocument, description = "The request")))]
pub(in crate::http) async fn get_job_request(
    State(app): State<App>,
    Path((id, attempt)): Path<(String, String)>,
    client: Client,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let reads_gzip = ReadsGzip::of(&headers);
    let write = move |text: String| {
        let bytes = text.len();
        let answer = large::written(StatusCode::OK, text.into_bytes(), reads_gzip);
        (bytes, answer)
    };
    let jobs = &app.jobs;
    let ((bytes, answer), turn) = Problem::unless(
        jobs.request_of_job(&id, &client.id, &attempt, write)
            .await?,
        "agent",
        &id,
    )?;
    // Until it is sent it is in memory, compressed. The next one is read meanwhile.
    let sending = match turn {
        Some(_turn) => permit_to_send(bytes).await?,
        None => None,
    };
    let held = move |part| {
        let _sending = &sending;
        part
    };
    Ok(answer?.map(|body| Body::new(body.map_frame(held))))
}

/// Say how far a job is, and that its agent is there.
///
/// Renews the lease. The answer says when the job was cancelled.
#[utoipa::path(post, path = "/v1/agents/{id}/jobs/{attempt}/progress", tag = "agents", request_body = JobNews,
    params(("id" = String, Path, description = "The agent's id"), ("attempt" = String, Path, description = "The name of the attempt")),
    responses((status = 200, body = LeaseDocument, description = "`running`, and until when; otherwise stop")))]
pub(in crate::http) async fn create_progress(
    State(app): State<App>,
    Path((id, attempt)): Path<(String, String)>,
    client: Client,
    JsonBody(news): JsonBody<JobNews>,
) -> Result<Json<LeaseDocument>, Problem> {
    Problem::unless(
        app.jobs.renew_job(&id, &client.id, &attempt, news).await?,
        "agent",
        &id,
    )
    .map(Json)
}

/// Bring the answer of a job.
///
/// Or say why there is none, or that another agent is to work on it. Sent twice it counts once.
#[utoipa::path(put, path = "/v1/agents/{id}/jobs/{attempt}/result", tag = "agents", request_body = JobOutcome,
    params(("id" = String, Path, description = "The agent's id"), ("attempt" = String, Path, description = "The name of the attempt")),
    responses((status = 204, description = "It is stored")))]
pub(in crate::http) async fn put_result(
    State(app): State<App>,
    Path((id, attempt)): Path<(String, String)>,
    client: Client,
    sent: Result<JsonBody<JobOutcome>, Problem>,
) -> Result<StatusCode, Problem> {
    let (outcome, refused) = match sent {
        Ok(JsonBody(outcome)) => (outcome, None),
        // It arrived whole and is no JSON, or JSON of another form: sent again it would be the same.
        Err(problem) if problem.pointer.is_some() => {
            let detail = format!("the agent's answer cannot be read: {}", problem.detail);
            let error = FitError::new(FailureCode::Internal, detail);
            (JobOutcome::Failed { error }, Some(problem))
        }
        Err(problem) => return Err(problem),
    };
    let done = app
        .jobs
        .finish_job(&id, &client.id, &attempt, outcome)
        .await?;
    match refused {
        Some(problem) => Err(problem),
        None if done => Ok(StatusCode::NO_CONTENT),
        None => Err(Problem::no_such("agent", &id)),
    }
}
