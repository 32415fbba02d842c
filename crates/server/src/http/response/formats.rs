//! Answers of fits as text: for people, for a shell, for trainers.

use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize as _;

use crate::http::App;
use crate::http::response::problem::{Code, Problem};
use crate::jobs::FitResult;
use crate::limits::shorten;
use crate::report::{Answer, Form, ShownRequest};
use crate::store::FitAnswer;

/// Get the answer of a fit as text.
///
/// What `batchfit fit --format` writes: `text` for people, `markdown` for an issue or a wiki, `env` for a shell to evaluate,
/// `hf`, `trl`, `lightning` and `accelerate` as the Python that these trainers take, and `python` as a loop in plain PyTorch. Where nothing fits there
/// is no Python, and `env` is a line that fails. A trainer that has no words for what the answer depends on is refused.
#[utoipa::path(get, path = "/v1/fits/{id}/formats/{format}", tag = "fits",
    params(("id" = String, Path, description = "The fit's id"),
        ("format" = String, Path, description = "What it is for", pattern = "^(text|markdown|env|hf|trl|lightning|accelerate|python)$")),
    responses((status = 200, body = String, content_type = "text/plain", description = "The text")))]
pub(in crate::http) async fn get_fit_format(
    State(app): State<App>,
    Path((id, format)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let form = Form::named(&format).ok_or_else(|| Problem::no_such("format", &format))?;
    let answer = Problem::unless(app.jobs.answer(&id).await?, "fit", &id)?;
    // An answer may be megabytes.
    let text = tokio::task::spawn_blocking(move || render(&id, form, &answer)).await;
    let text =
        text.map_err(|_| Problem::new(Code::Internal, "the answer could not be written"))??;
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
}

fn render(id: &str, form: Form, answer: &FitAnswer) -> Result<String, Problem> {
    let Some(result) = &answer.result else {
        let (id, state) = (shorten(id), answer.state.name());
        return Err(Problem::new(
            Code::NotFound,
            format!("fit {id:?} is {state}, and has no answer"),
        ));
    };
    let result = FitResult::deserialize(&result.0).map_err(|error| {
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "a stored answer cannot be read: {error}"
        );
        Problem::new(Code::Internal, "the stored answer cannot be read")
    })?;
    let request = ShownRequest::of(answer.request.as_str());
    let text = form.write(&Answer {
        model: &answer.model,
        length: None,
        world_size: result.ranks(request.world_size()),
        result: &result,
        request: &request,
    });
    text.map_err(|problem| Problem::new(Code::NotFound, problem))
}
