//! Problems: what do the errors mean?

use axum::Json;
use axum::extract::Path;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::request::parameters::Page;
use crate::http::response::problem::{Code, Problem};

/// A kind of problem.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProblemKind {
    /// The `type` of its documents, and the path of this one.
    #[serde(rename = "type")]
    #[schema(example = "/problems/queue-full")]
    kind: String,
    /// The `title` of its documents.
    #[schema(example = "The queue is full")]
    title: &'static str,
    /// The HTTP status.
    #[schema(example = 503)]
    status: u16,
    /// What it means, in a sentence.
    #[schema(example = "Too many fits are waiting.")]
    meaning: &'static str,
}

impl From<Code> for ProblemKind {
    fn from(code: Code) -> ProblemKind {
        ProblemKind {
            kind: format!("/problems/{}", code.slug()),
            title: code.title(),
            status: code.status().as_u16(),
            meaning: code.meaning(),
        }
    }
}

/// List the kinds of problem.
#[utoipa::path(get, path = "/problems", tag = "service",
    responses((status = 200, body = ref("#/components/schemas/ProblemKindList"), description = "All kinds")))]
pub(super) async fn list_problems() -> Json<Page<ProblemKind>> {
    Json(Page::whole(
        Code::ALL.iter().copied().map(ProblemKind::from).collect(),
    ))
}

/// Get what a problem's `type` means.
#[utoipa::path(get, path = "/problems/{code}", tag = "service",
    params(("code" = String, Path, description = "The last part of the `type`", example = "queue-full")),
    responses((status = 200, body = ProblemKind, description = "The kind of problem")))]
pub(super) async fn get_problem(Path(slug): Path<String>) -> Result<Json<ProblemKind>, Problem> {
    let found = Code::ALL.iter().copied().find(|code| code.slug() == slug);
    let found = Problem::unless(found, "kind of problem", &slug)?;
    Ok(Json(ProblemKind::from(found)))
}
