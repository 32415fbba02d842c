//! Agents: who works on other machines?

mod body;
pub(in crate::http) mod jobs;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::http::App;
use crate::http::request::parameters::{Page, Parameters, no_cursor};
use crate::http::response::problem::Problem;
use crate::http::server::keys::Client;
use crate::jobs::{AgentDocument, Registration, RegistrationResponse};
use crate::model::is_host_name;
use crate::store::{Assignment, Scope};
use body::JsonBody;

/// Cards with which a page of agents ends, however many were asked for: so that it has some 500 KiB at most.
const CARDS_OF_A_PAGE: usize = 500;

/// What an agent is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct AgentChange {
    /// `draining`: finish what it works on, take no more, and end. `cordoned`: take no more, and stay. `ready`: take more again.
    state: Assignment,
}

/// List agents.
///
/// An agent is a process, `batchfit agent`, on a machine with GPUs: it takes the fits that its cards can run, and brings their answers.
#[utoipa::path(get, path = "/v1/agents", tag = "agents",
    params(("limit" = Option<u32>, Query, description = "How many, from 1 to 500; 50 by default. A page ends with its 500th card", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "`next` of the page before")),
    responses((status = 200, body = ref("#/components/schemas/AgentList"), description = "A page of all agents, also of those that were not heard of for up to a day")))]
pub(in crate::http) async fn list_agents(
    State(app): State<App>,
    parameters: Parameters,
) -> Result<Json<Page<AgentDocument>>, Problem> {
    let limit = parameters.limit()?;
    let after = parameters.text("cursor");
    if let Some(cursor) = after.as_deref().filter(|name| !is_host_name(name)) {
        return Err(no_cursor(cursor));
    }
    let _look = app.looks.acquire().await.expect("it is never closed");
    let agents = app
        .jobs
        .agents(after.as_deref().unwrap_or(""), limit + 1)
        .await?;
    let mut cards = 0;
    let whole = agents.iter().take_while(|agent| {
        let is_full = cards >= CARDS_OF_A_PAGE;
        cards += agent.cards.len();
        !is_full
    });
    let limit = limit.min(i64::try_from(whole.count()).unwrap_or(limit));
    Ok(Json(Page::of(agents, limit, |agent| agent.name.clone())))
}

/// Register an agent, or say that it is there still.
///
/// Sent again by the same process (`instance`) it changes what is known of the cards and nothing else; send it at least three times in a
/// lease. Needs a key for `agent`, where keys are needed.
#[utoipa::path(post, path = "/v1/agents", tag = "agents", request_body = Registration,
    responses((status = 200, body = RegistrationResponse, description = "The agent, and how long it may say nothing", headers(("Location" = String)))))]
pub(in crate::http) async fn create_agent(
    State(app): State<App>,
    client: Client,
    JsonBody(registration): JsonBody<Registration>,
) -> Result<Response, Problem> {
    let welcome: RegistrationResponse = app.jobs.register_agent(&registration, &client.id).await?;
    let location = [(LOCATION, format!("/v1/agents/{}", welcome.agent.id))];
    Ok((location, Json(welcome)).into_response())
}

/// Get an agent.
#[utoipa::path(get, path = "/v1/agents/{id}", tag = "agents",
    params(("id" = String, Path, description = "The agent's id")),
    responses((status = 200, body = AgentDocument, description = "The agent")))]
pub(in crate::http) async fn get_agent(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<AgentDocument>, Problem> {
    Problem::unless(app.jobs.agent(&id).await?, "agent", &id).map(Json)
}

/// Drain or cordon an agent, or have it take more again.
///
/// Needs a key for `admin`, where keys are needed.
#[utoipa::path(patch, path = "/v1/agents/{id}", tag = "agents", request_body = AgentChange,
    params(("id" = String, Path, description = "The agent's id")),
    responses((status = 200, body = AgentDocument, description = "The agent; it hears of this within seconds")))]
pub(in crate::http) async fn change_agent(
    State(app): State<App>,
    Path(id): Path<String>,
    JsonBody(change): JsonBody<AgentChange>,
) -> Result<Json<AgentDocument>, Problem> {
    Problem::unless(app.jobs.set_duty(&id, change.state).await?, "agent", &id).map(Json)
}

/// Forget an agent.
///
/// What it works on goes back into the queue. One that is alive registers again when it next asks: drain it instead. One that is cordoned
/// stays so unless a key of scope `admin` forgets it.
#[utoipa::path(delete, path = "/v1/agents/{id}", tag = "agents",
    params(("id" = String, Path, description = "The agent's id")),
    responses(
        (status = 200, body = AgentDocument, description = "It is cordoned, and stays; what it worked on is in the queue again"),
        (status = 204, description = "It is forgotten")))]
pub(in crate::http) async fn delete_agent(
    State(app): State<App>,
    Path(id): Path<String>,
    client: Client,
) -> Result<Response, Problem> {
    let owner = (client.scope != Scope::Admin).then_some(client.id.as_str());
    if !app.jobs.remove_agent(&id, owner).await? {
        return Err(Problem::no_such("agent", &id));
    }
    let stays = app.jobs.agent(&id).await?.map(Json);
    Ok(stays.map_or_else(
        || StatusCode::NO_CONTENT.into_response(),
        IntoResponse::into_response,
    ))
}
