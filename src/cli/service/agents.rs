//! `batchfit agents`: who works for a service, and what they are to do.

use axum::http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::agent::{Server, ServerError, ServerRequest};
use crate::cli::arguments::{Agents, AgentsCommand};
use crate::cli::error::CliError;
use crate::cli::service::agent::server;
use crate::cli::terminal::output;
use crate::cli::{Outcome, storage};
use crate::jobs::AgentDocument;
use crate::limits::shorten;
use crate::report;

/// Most agents that a service keeps, which makes no more pages.
const MOST_AGENTS: usize = 10_000;

pub(in crate::cli) fn run(arguments: &Agents) -> Result<Outcome, CliError> {
    let server = server(&arguments.server)?;
    let runtime = storage::runtime()?;
    runtime.block_on(answer(&server, arguments))
}

/// Some of the agents.
#[derive(Deserialize)]
struct Page {
    items: Vec<AgentDocument>,
    next: Option<String>,
}

async fn answer(server: &Server, arguments: &Agents) -> Result<Outcome, CliError> {
    let mut agents: Vec<AgentDocument> = Vec::new();
    let mut path = "/v1/agents?limit=500".to_owned();
    // More pages than agents may register are those of a service that has gone mad.
    while agents.len() <= MOST_AGENTS {
        let page: Page = server
            .ask_json(ServerRequest::get(&path))
            .await
            .map_err(|error| refused(server, error))?;
        let is_empty = page.items.is_empty();
        agents.extend(page.items);
        match page.next {
            Some(next) if !is_empty => path = format!("/v1/agents?limit=500&cursor={next}"),
            Some(_) | None => break,
        }
    }
    let Some(command) = &arguments.command else {
        return output::list(arguments.json, &agents, || {
            report::agents(&agents, &output::style(false))
        });
    };
    let (one, change) = match command {
        AgentsCommand::Drain(one) => (one, Some("draining")),
        AgentsCommand::Cordon(one) => (one, Some("cordoned")),
        AgentsCommand::Uncordon(one) => (one, Some("ready")),
        AgentsCommand::Forget(one) => (one, None),
    };
    let named = agents
        .iter()
        .find(|agent| agent.name == one.agent || agent.id == one.agent);
    let Some(agent) = named else {
        let problem = format!(
            "there is no agent {:?}; `batchfit agents` lists those that there are",
            shorten(&one.agent)
        );
        return Err(CliError::flag("AGENT", problem));
    };
    let path = format!("/v1/agents/{}", agent.id);
    let asking = match change {
        Some(state) => ServerRequest::with(Method::PATCH, path, &json!({ "state": state })),
        None => ServerRequest {
            method: Method::DELETE,
            ..ServerRequest::get(path)
        },
    };
    if arguments.json && change.is_some() {
        let agent: Result<Value, ServerError> = server.ask_json(asking).await;
        output::json(&agent.map_err(|error| refused(server, error))?)?;
    } else {
        let answer = server.send(asking).await;
        answer.map_err(|error| refused(server, error))?;
    }
    Ok(Outcome::Answered)
}

fn refused(server: &Server, error: ServerError) -> CliError {
    CliError::Broken(anyhow::Error::new(error).context(format!("asking {}", server.url())))
}
