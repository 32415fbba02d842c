//! Recommendations: what has been found so far?

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use tokio::task::yield_now;

use crate::http::App;
use crate::http::request::body::RequestBody;
use crate::http::request::headers::preferred_wait;
use crate::http::request::parameters::{Parameters, no_cursor};
use crate::http::request::uploads::BufferedBody;
use crate::http::resources::fits::sent;
use crate::http::response::problem::{Code, Problem};
use crate::http::server::keys::Client;
use crate::jobs::{EnqueueOptions, FitDocument, NearDocument};
use crate::model::{Objective, Optimizer, Precision, RequestDocument};
use crate::probe::Evidence;
use crate::store::{
    Db, FilterColumn, RecommendationFilter, RecommendationPage, StoredRecommendation,
};

/// About as long as a recommendation is, in bytes.
const DOCUMENT: usize = 800;

/// How many recommendations are written before others are served: a fraction of a millisecond.
const AT_A_TIME: usize = 100;

/// List recommendations, newest first.
///
/// Every variant of every finished fit is one; those of rank 1 are the answers.
#[utoipa::path(get, path = "/v1/recommendations", tag = "recommendations",
    params(("model" = Option<String>, Query, description = "A preset's name, or a model's as listed", example = "resnet50"),
        ("device" = Option<String>, Query, description = "As resolved", example = "sim:h200"),
        ("precision" = Option<String>, Query, description = "As in a request", pattern = "^(fp32|amp_fp16|amp_bf16|bf16|fp16)$"),
        ("optimizer" = Option<String>, Query, description = "As in a request", pattern = "^(sgd|sgd_momentum|adam|adamw|adamw_8bit|adamw_bnb_8bit|paged_adamw_8bit|adamw_8bit_torchao|adafactor|adafactor_transformers)$"),
        ("checkpointing" = Option<String>, Query, description = "Which modules recompute their activations", pattern = "^(none|per_block|modules)$"),
        ("evidence" = Option<String>, Query, description = "Where the numbers come from", pattern = "^(simulated|recorded|probed|trained)$"),
        ("gpu" = Option<String>, Query, description = "The card's name, as listed", example = "NVIDIA H200"),
        ("limit_bytes" = Option<String>, Query, description = "What the allocator may reserve: bytes, or a size such as 12GiB", pattern = "^[1-9][0-9]{0,2}([KMGT]iB)$|^[1-9][0-9]{0,17}$", example = "12GiB"),
        ("world_size" = Option<u64>, Query, description = "Over how many GPUs to train", minimum = 1),
        ("objective" = Option<String>, Query, description = "Which batch was looked for", pattern = "^(largest_batch|throughput)$"),
        ("limit" = Option<u32>, Query, description = "How many, from 1 to 500; 50 by default", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "`next` of the page before")),
    responses((status = 200, body = ref("#/components/schemas/RecommendationList"), description = "A page")))]
pub(in crate::http) async fn list_recommendations(
    State(app): State<App>,
    client: Client,
    parameters: Parameters,
) -> Result<Response, Problem> {
    let facets = [
        (FilterColumn::Model, parameters.text("model")),
        (FilterColumn::Device, parameters.text("device")),
        (FilterColumn::Gpu, parameters.text("gpu")),
        (
            FilterColumn::Precision,
            parameters.one_of("precision", &Precision::ALL.map(Precision::name))?,
        ),
        (
            FilterColumn::Optimizer,
            parameters.one_of("optimizer", &Optimizer::ALL.map(Optimizer::name))?,
        ),
        (
            FilterColumn::Checkpointing,
            parameters.one_of("checkpointing", &["none", "per_block", "modules"])?,
        ),
        (
            FilterColumn::Evidence,
            parameters.one_of("evidence", &Evidence::ALL.map(Evidence::name))?,
        ),
        (FilterColumn::LimitBytes, parameters.bytes("limit_bytes")?),
        (FilterColumn::WorldSize, parameters.whole("world_size")?),
        (
            FilterColumn::Objective,
            parameters.one_of("objective", &Objective::ALL.map(Objective::name))?,
        ),
    ];
    let filter = RecommendationFilter {
        facets: facets
            .into_iter()
            .filter_map(|(facet, word)| Some((facet, word?)))
            .collect(),
        before: parameters.text("cursor"),
        limit: usize::try_from(parameters.limit()?).unwrap_or(usize::MAX),
    };
    match app.jobs.db().recommendations(&filter).await? {
        Some(page) => Ok(render(page, app.jobs.db(), &client.id).await),
        None => Err(no_cursor(filter.before.as_deref().unwrap_or_default())),
    }
}

/// A list of them, written a part at a time: others are served meanwhile.
async fn render(page: RecommendationPage, db: &Db, reader: &str) -> Response {
    let items = page.items();
    let mut list = Vec::with_capacity(items.len() * DOCUMENT + 64);
    list.extend_from_slice(br#"{"items":["#);
    for (number, item) in items.enumerate() {
        if number > 0 {
            list.push(b',');
        }
        write(&mut list, &db.as_read_by(reader, item));
        if number % AT_A_TIME == AT_A_TIME - 1 {
            yield_now().await;
        }
    }
    list.extend_from_slice(br#"],"next":"#);
    write(&mut list, &page.next);
    list.push(b'}');
    ([(CONTENT_TYPE, "application/json")], list).into_response()
}

fn write(list: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(list, value).expect("a row has string keys and finite numbers");
}

/// Get a recommendation.
#[utoipa::path(get, path = "/v1/recommendations/{id}", tag = "recommendations",
    params(("id" = String, Path, description = "The recommendation's id")),
    responses((status = 200, body = StoredRecommendation, description = "The recommendation")))]
pub(in crate::http) async fn get_recommendation(
    State(app): State<App>,
    client: Client,
    Path(id): Path<String>,
) -> Result<Json<StoredRecommendation>, Problem> {
    let db = app.jobs.db();
    let found = db.recommendation(&id).await?;
    let found = Problem::unless(found, "recommendation", &id)?;
    Ok(Json(db.as_read_by(&client.id, found)))
}

/// Make a recommendation again.
///
/// Asks the question of its fit again: with today's batchfit, driver and headroom. The answer is a fit, as of `POST /v1/fits`; the same
/// one as before where nothing has changed. The old recommendation stays as it is. The id of a fit stands for its first recommendation.
#[utoipa::path(post, path = "/v1/recommendations/{id}/refresh", tag = "recommendations",
    params(("id" = String, Path, description = "The recommendation's id, or its fit's"),
        ("Prefer" = Option<String>, Header, description = "`wait=N`: wait up to N seconds (at most 600) for the fit to end", example = "wait=30")),
    responses(
        (status = 200, body = FitDocument, description = "The fit has ended within the time to wait",
            headers(("Location" = String), ("Preference-Applied" = String))),
        (status = 202, body = FitDocument, description = "The fit is queued",
            headers(("Location" = String), ("Preference-Applied" = String)))))]
pub(in crate::http) async fn create_refresh(
    State(app): State<App>,
    client: Client,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let patience = preferred_wait(&headers);
    let now = app.jobs.db().now();
    let asking = EnqueueOptions {
        interactive: patience.is_some(),
        owner: client.id.clone(),
        key: None,
    };
    let fit = Problem::unless(
        app.jobs.refresh(&id, asking, now).await?,
        "recommendation",
        &id,
    )?;
    sent(&app, &client, fit, patience, |_| ()).await
}

/// Find the stored answer that is nearest to a question.
///
/// The answer to this very question where there is one (`exact`), or else one for the same model with another limit, card or variant;
/// `differs` says in what. Nothing is computed, and the device need not be here. Of several variants the first is looked for.
#[utoipa::path(post, path = "/v1/recommendations/nearest", tag = "recommendations", request_body = RequestDocument,
    responses((status = 200, body = NearDocument, description = "The nearest answer")))]
pub(in crate::http) async fn get_nearest_recommendation(
    State(app): State<App>,
    client: Client,
    body: RequestBody,
) -> Result<Json<NearDocument>, Problem> {
    let found = match body {
        RequestBody::Answered(answer) => app.jobs.answer_of(&answer.id).await?,
        RequestBody::New(asked) => {
            let BufferedBody { read, permit } = asked.held;
            app.jobs
                .nearest(read, Some(permit), client.id.clone())
                .await?
        }
    };
    let none = "no answer for this model is stored; POST /v1/fits makes one";
    let db = app.jobs.db();
    let read = |mut near: NearDocument| {
        near.recommendation = db.as_read_by(&client.id, near.recommendation);
        Json(near)
    };
    found
        .map(read)
        .ok_or_else(|| Problem::new(Code::NotFound, none))
}
