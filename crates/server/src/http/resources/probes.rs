//! Probes: does this batch fit?

use axum::Json;
use axum::extract::{Path, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::http::App;
use crate::http::request::body::ProbeBody;
use crate::http::request::uploads::{BufferedBody, on_thread};
use crate::http::response::large::{self, ReadsGzip};
use crate::http::response::problem::Problem;
use crate::jobs::{ProbeDocument, ProbeRequest};

/// Run one batch.
///
/// Waits for the device and for the answer. Running out of memory is an answer. `training` must name one variant.
#[utoipa::path(post, path = "/v1/probes", tag = "probes", request_body = ref("#/components/schemas/NewProbe"),
    responses((status = 201, body = ProbeDocument, description = "The probe ran", headers(("Location" = String)))))]
pub(in crate::http) async fn create_probe(
    State(app): State<App>,
    headers: HeaderMap,
    body: ProbeBody,
) -> Result<Response, Problem> {
    let BufferedBody { read, permit } = body.0;
    let asked = ProbeRequest {
        request: read.request,
        batch: read.batch,
        events: read.events,
    };
    let probe = app.jobs.probe(asked, Some(permit)).await?;
    let location = [(LOCATION, format!("/v1/probes/{}", probe.id))];
    if probe.events.is_none() {
        return Ok((StatusCode::CREATED, location, Json(probe)).into_response());
    }
    let reads_gzip = ReadsGzip::of(&headers);
    let written = on_thread(move || large::serialize(StatusCode::CREATED, &probe, reads_gzip));
    Ok((location, written.await?).into_response())
}

/// Get a probe.
#[utoipa::path(get, path = "/v1/probes/{id}", tag = "probes",
    params(("id" = String, Path, description = "The probe's id")),
    responses((status = 200, body = ProbeDocument, description = "The probe")))]
pub(in crate::http) async fn get_probe(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<ProbeDocument>, Problem> {
    Problem::unless(app.jobs.probe_by_id(&id).await?, "probe", &id).map(Json)
}
