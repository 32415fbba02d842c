//! Runs: what came of scripts on a virtual GPU.
//!
//! The service never runs a script: it shows what `batchfit run` stored in the same database.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::App;
use crate::http::request::parameters::{Page, Parameters, no_cursor};
use crate::http::request::uploads::on_thread;
use crate::http::response::large::{self, ReadsGzip};
use crate::http::response::problem::Problem;
use crate::replay::ReplayReport;
use crate::store::{JsonText, VirtualRun};
use crate::virtual_gpu::Answer;

/// A run with its answer.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct RunDocument {
    /// As in the list.
    run: VirtualRun,
    /// What `batchfit run --json` told.
    #[schema(value_type = Answer)]
    answer: JsonText,
}

/// List runs, newest first.
///
/// What `batchfit run` stored in this database. The service runs no scripts.
#[utoipa::path(get, path = "/v1/runs", tag = "runs",
    params(("limit" = Option<u32>, Query, description = "How many, from 1 to 500; 50 by default", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "`next` of the page before")),
    responses((status = 200, body = ref("#/components/schemas/RunList"), description = "A page")))]
pub(in crate::http) async fn list_runs(
    State(app): State<App>,
    parameters: Parameters,
) -> Result<Json<Page<VirtualRun>>, Problem> {
    let limit = parameters.limit()?;
    let before = parameters.text("cursor");
    let db = app.jobs.db();
    if let Some(before) = &before {
        let found = db.virtual_run(before).await?;
        found.ok_or_else(|| no_cursor(before))?;
    }
    let runs = db.virtual_runs(before.as_deref(), limit + 1).await?;
    Ok(Json(Page::of(runs, limit, |run| run.id.clone())))
}

/// Get a run.
#[utoipa::path(get, path = "/v1/runs/{id}", tag = "runs",
    params(("id" = String, Path, description = "The run's id")),
    responses((status = 200, body = RunDocument, description = "The run")))]
pub(in crate::http) async fn get_run(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    // Until it is written: it may be megabytes.
    let _permit = app.long_answers.acquire().await;
    let found = app.jobs.db().virtual_run(&id).await?;
    let (run, answer) = Problem::unless(found, "run", &id)?;
    let is_long = answer.as_str().len() > large::PART;
    let document = RunDocument { run, answer };
    if !is_long {
        return Ok(Json(document).into_response());
    }
    let reads_gzip = ReadsGzip::of(&headers);
    on_thread(move || large::serialize(StatusCode::OK, &document, reads_gzip)).await
}

/// Get the step of a run.
///
/// Each allocation and free, as a replay of its memory snapshot tells them. Kept of the newest runs, but of those to their end
/// (`--steps 0`) only with `--report` or `--svg`.
#[utoipa::path(get, path = "/v1/runs/{id}/step", tag = "runs",
    params(("id" = String, Path, description = "The run's id")),
    responses((status = 200, body = ReplayReport, description = "What the allocator did")))]
pub(in crate::http) async fn get_run_step(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let db = app.jobs.db().clone();
    let step = large::step_of_run(db, id.clone(), ReadsGzip::of(&headers)).await?;
    Problem::unless(step, "step of a run", &id)
}
