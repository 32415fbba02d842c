//! Recommendations: what has been found so far?

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::parameters::{Parameters, no_cursor, page};
use super::problem::Problem;
use crate::jobs::JobError;
use crate::model::{Optimizer, Precision};
use crate::probe::Evidence;
use crate::store::{RecommendationFilter, StoredRecommendation};

/// A page of recommendations.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RecommendationList {
    /// Newest first.
    items: Vec<StoredRecommendation>,
    /// The `cursor` of the next page; null on the last one.
    next: Option<String>,
}

/// List recommendations, newest first.
///
/// Every variant of every finished fit is one; those of rank 1 are the answers.
#[utoipa::path(get, path = "/v1/recommendations", tag = "recommendations",
    params(("model" = Option<String>, Query, description = "A preset's name, or a model's as listed", example = "resnet50"),
        ("device" = Option<String>, Query, description = "As resolved", example = "sim:h200"),
        ("precision" = Option<String>, Query, description = "As in a request", pattern = "^(fp32|amp_fp16|amp_bf16|bf16|fp16)$"),
        ("optimizer" = Option<String>, Query, description = "As in a request", pattern = "^(sgd|sgd_momentum|adam|adamw)$"),
        ("checkpointing" = Option<String>, Query, description = "Which modules recompute their activations", pattern = "^(none|per_block|modules)$"),
        ("evidence" = Option<String>, Query, description = "Where the numbers come from", pattern = "^(simulated|recorded|probed|trained)$"),
        ("limit" = Option<u32>, Query, description = "How many, from 1 to 500; 50 by default", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "`next` of the page before")),
    responses(
        (status = 200, body = RecommendationList, description = "A page"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "A parameter is unknown or wrong",
            example = json!({"type": "/problems/query-invalid", "title": "The query is not valid", "status": 422,
                "detail": "`precision` is one of fp32, amp_fp16, amp_bf16, bf16, fp16, not \"fp8\"", "parameter": "precision",
                "value": "fp8", "nearest": "fp16"})),
        (status = 500, body = Problem, content_type = "application/problem+json", description = "A fault of ours")))]
pub(super) async fn list_recommendations(
    State(app): State<App>,
    parameters: Parameters,
) -> Result<Json<RecommendationList>, Problem> {
    let limit = parameters.limit()?;
    let filter = RecommendationFilter {
        model: parameters.text("model"),
        device: parameters.text("device"),
        precision: parameters.one_of("precision", &Precision::ALL.map(Precision::name))?,
        optimizer: parameters.one_of("optimizer", &Optimizer::ALL.map(Optimizer::name))?,
        checkpointing: parameters.one_of("checkpointing", &["none", "per_block", "modules"])?,
        evidence: parameters.one_of("evidence", &Evidence::ALL.map(Evidence::name))?,
        before: parameters.text("cursor"),
        limit: limit + 1,
    };
    if let Some(cursor) = &filter.before {
        let last = app.jobs.db().recommendation(cursor).await;
        if last.map_err(JobError::from)?.is_none() {
            return Err(no_cursor(cursor));
        }
    }
    let found = app.jobs.db().recommendations(&filter).await;
    let (items, next) = page(found.map_err(JobError::from)?, limit, |item| &item.id);
    Ok(Json(RecommendationList { items, next }))
}

/// Get a recommendation.
#[utoipa::path(get, path = "/v1/recommendations/{id}", tag = "recommendations",
    params(("id" = String, Path, description = "The recommendation's id")),
    responses(
        (status = 200, body = StoredRecommendation, description = "The recommendation"),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "There is no such recommendation"),
        (status = 500, body = Problem, content_type = "application/problem+json", description = "A fault of ours")))]
pub(super) async fn get_recommendation(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<StoredRecommendation>, Problem> {
    let found = app.jobs.db().recommendation(&id).await;
    let found = found.map_err(JobError::from)?;
    found
        .map(Json)
        .ok_or_else(|| Problem::no_such("recommendation", &id))
}
