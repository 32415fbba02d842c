//! The description of the API, made from the handlers themselves.

mod finished;

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde_json::Value;
use utoipa::OpenApi;

use crate::http::Problem;
use crate::jobs::{AccuracyDocument, CardDocument, DeviceSummary, MachineDocument, PresetDocument};
use crate::store::FitSummary;

/// What the handlers cannot say: the purpose, and the order of things.
#[derive(OpenApi)]
#[openapi(
    info(title = "batchfit", description = "Finds the largest batch that fits a GPU safely, and the gradient-accumulation steps that make the \
        batch you want. Errors are problem documents (RFC 9457); sizes are bytes; times are RFC 3339 in UTC; lists give \
        `items` and the cursor of the `next` page. Any request may get 421 when its `Host` is not known to the service, 403 \
        when a page of another origin sent it, and 503 when the service is busy or about to end. Malformed \
        HTTP gets a plain 400, too long headers 431, a too long address 414. Answers to GET have an `ETag`; an unchanged answer is a 304 to \
        `If-None-Match` with it.",
        contact(name = "The maintainers of batchfit")),
    components(schemas(
        AccuracyDocument, CardDocument, DeviceSummary, FitSummary, MachineDocument, PresetDocument, Problem
    )),
    servers((url = "http://127.0.0.1:8080", description = "Where `batchfit serve` listens unless told otherwise")),
    tags(
        (name = "fits", description = "What is the largest batch?"),
        (name = "probes", description = "Does this batch fit?"),
        (name = "searches", description = "Which batch shall I try next?"),
        (name = "graphs", description = "Files that requests name by their digests."),
        (name = "replays", description = "What would this recording have taken?"),
        (name = "recommendations", description = "What has been found so far?"),
        (name = "runs", description = "What came of scripts on a virtual GPU?"),
        (name = "catalogue", description = "What can be asked about?"),
        (name = "agents", description = "Who works on other machines?"),
        (name = "service", description = "Is the service well?"),
    )
)]
pub(super) struct Description;

/// The OpenAPI document.
pub fn openapi() -> Value {
    finished::finish(&super::routes().split_for_parts().1)
}

/// The OpenAPI document as YAML, as in the repository's `openapi.yaml`.
pub fn openapi_yaml() -> String {
    serde_norway::to_string(&openapi()).expect("the document holds nothing that YAML cannot")
}

/// The same, written once: that takes tens of milliseconds, and a connection costs its client nothing.
static WRITTEN: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(openapi_yaml()));

/// Writes the document, so that no request has to wait for it.
pub(super) fn prepare() {
    LazyLock::force(&WRITTEN);
}

/// Get this document.
#[utoipa::path(get, path = "/openapi.yaml", tag = "service",
    responses((status = 200, body = Object, content_type = "application/yaml", description = "The OpenAPI document")))]
pub(super) async fn get_openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/yaml")], WRITTEN.clone())
}
