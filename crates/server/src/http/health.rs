//! Health: is the service well?

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use crate::http::response::problem::{Code, Problem, what_to_do};
use crate::jobs::NotReadyReason;

/// A sign of life.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Health {
    /// Always `ok`.
    #[schema(example = "ok")]
    status: &'static str,
    /// The version that answers.
    version: &'static str,
}

const OK: Health = Health {
    status: "ok",
    version: env!("CARGO_PKG_VERSION"),
};

/// Ask whether the process answers.
#[utoipa::path(get, path = "/healthz", tag = "service",
    responses((status = 200, body = Health, description = "It does")))]
pub(super) async fn get_health() -> Json<Health> {
    Json(OK)
}

/// Ask whether requests can be taken.
#[utoipa::path(get, path = "/readyz", tag = "service",
    responses((status = 200, body = Health, description = "They can")))]
pub(super) async fn get_readiness(State(app): State<App>) -> Result<Json<Health>, Problem> {
    let why = match app.jobs.is_ready().await {
        Ok(()) => return Ok(Json(OK)),
        Err(NotReadyReason::Ending) => "the service is about to end".to_owned(),
        Err(NotReadyReason::Unstored(fits)) => {
            format!("{fits} fits have ended and could not be stored yet; the log says why")
        }
        Err(NotReadyReason::Database(fault)) => {
            format!("the database does not answer ({})", what_to_do(fault))
        }
        Err(NotReadyReason::Silent) => {
            "the database has not answered for seconds: it is locked, or its server is not reached"
                .to_owned()
        }
    };
    Err(Problem::new(Code::NotReady, why))
}
