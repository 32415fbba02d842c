//! Probes: does this batch fit?

use axum::Json;
use axum::extract::{Path, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};

use crate::http::App;
use crate::http::request::body::ProbeBody;
use crate::http::request::uploads::{BufferedBody, on_thread};
use crate::http::response::large::{self, ReadsGzip};
use crate::http::response::problem::Problem;
use crate::jobs::{ProbeDocument, ProbeRequest};
use crate::model::RequestDocument;

/// The body of a new probe, for the OpenAPI document; `ProbeBody` reads it.
///
/// One object, and not a request `allOf` something else: a request admits no further members.
pub(in crate::http) struct NewProbe;

impl utoipa::PartialSchema for NewProbe {
    fn schema() -> RefOr<Schema> {
        let batch = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .description(Some("Samples per micro-step on one GPU."))
            .minimum(Some(1))
            .examples([32]);
        let detail = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some(
                "`events` tells each allocation and free of the steps too: what a drawing of all of it is made from. They are not stored.",
            ))
            .enum_values(Some(["report", "events"]))
            .default(Some("report".into()));
        match <RequestDocument as utoipa::PartialSchema>::schema() {
            RefOr::T(Schema::Object(mut request)) => {
                request.title = None;
                request.description = Some("A request and the batch to try.".to_owned());
                request.properties.insert("batch".to_owned(), batch.into());
                request
                    .properties
                    .insert("detail".to_owned(), detail.into());
                request.required.push("batch".to_owned());
                RefOr::T(Schema::Object(request))
            }
            other => other,
        }
    }
}

impl ToSchema for NewProbe {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        RequestDocument::schemas(schemas);
    }
}

/// Run one batch.
///
/// Waits for the device and for the answer. Running out of memory is an answer. `training` must name one variant.
#[utoipa::path(post, path = "/v1/probes", tag = "probes", request_body = NewProbe,
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
