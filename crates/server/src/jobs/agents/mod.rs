//! Agents: processes on other machines with GPUs that work on fits for this service.
//!
//! The unit of work is a whole fit, because a fit opens a worker on a GPU and probes it many times. An agent registers its cards and asks
//! for something to do; what it gets is an attempt at a fit with a lease ([`crate::store::Lease`]), which it renews by telling how far
//! it is. One that says nothing loses the fit to another, and what it says of that attempt afterwards is refused. All that
//! counts is in the table, so agents may speak to any server on the same database.

mod check;
mod claims;
mod documents;
mod executor;
mod work;

use std::collections::HashMap;

pub use documents::{
    AgentCard, AgentDocument, AgentState, Claim, ClaimDocument, JobDocument, JobNews, JobOutcome,
    LeaseDocument, MOST_CARDS, PROTOCOL, Registration, RegistrationResponse,
};
pub(super) use executor::Executor;
pub use work::answer_job;

use super::clock::milliseconds;
use super::document::{VERSION, json};
use super::{DeviceKind, DeviceSummary, EngineError, JobError, Jobs};
use crate::model::{DeviceChoice, ENGINE_DIGEST, Request};
use crate::store::{AGENT_LANE, Assignment, JsonText, Registered, StoredAgent, Time};

/// Most cards of agents in one list of devices; the lists of agents have all.
const MOST_DEVICES: u16 = 500;

/// Whose agent it is: the API key under which it registered, empty where none is needed.
pub type Owner = str;

impl Jobs {
    /// Registers an agent, or notes that it is there still.
    pub async fn register_agent(
        &self,
        registration: &Registration,
        owner: &Owner,
    ) -> Result<RegistrationResponse, JobError> {
        let shared = &self.shared;
        if let Some(needed) = registration.other_version() {
            return Err(JobError::AgentVersion(needed));
        }
        registration.check()?;
        let now = self.now();
        let new = StoredAgent {
            id: shared.ids.next(now),
            name: registration.name.clone(),
            instance: registration.instance.clone(),
            owner: owner.to_owned(),
            version: registration.version.clone(),
            rules: registration.rules.clone(),
            duty: if registration.draining {
                Assignment::Draining
            } else {
                Assignment::Ready
            },
            cards: JsonText::from(json(&registration.cards).to_string().as_str()),
            registered_at: now,
            seen_at: now,
        };
        let lost = self.silent_since(now);
        match shared.db.register_agent(&new, lost).await? {
            Registered::As(agent) => {
                if registration.draining {
                    // It may be waiting for something to do.
                    shared.for_agents.send_replace(());
                }
                if agent.id == new.id {
                    tracing::info!(agent = %agent.name, "registered the agent {}", agent.name);
                }
                let duty = agent.duty;
                let works_on = self.works_on(&agent.id).await?;
                Ok(RegistrationResponse {
                    agent: document(*agent, works_on, lost),
                    duty,
                    lease_seconds: shared.limits.lease_of_agents.as_secs(),
                    server_version: VERSION.to_owned(),
                })
            }
            Registered::NameTaken(seen) => {
                let silent = now.0.saturating_sub(seen.0).max(0) / 1000;
                Err(JobError::AgentNameTaken {
                    name: registration.name.clone(),
                    silent: silent.unsigned_abs(),
                })
            }
            Registered::TooMany => Err(JobError::TooManyAgents),
        }
    }

    /// Agents by name, from behind `after` on.
    pub async fn agents(&self, after: &str, limit: i64) -> Result<Vec<AgentDocument>, JobError> {
        let agents = self.shared.db.agents(after, limit).await?;
        if agents.is_empty() {
            return Ok(Vec::new());
        }
        let lost = self.silent_since(self.now());
        let mut works_on = self.all_works().await?;
        let agents = agents.into_iter();
        Ok(agents
            .map(|agent| {
                let works_on = works_on.remove(&agent.id).unwrap_or_default();
                document(agent, works_on, lost)
            })
            .collect())
    }

    /// The agent of this id.
    pub async fn agent(&self, id: &str) -> Result<Option<AgentDocument>, JobError> {
        let Some(agent) = self.shared.db.agent(id).await? else {
            return Ok(None);
        };
        let works_on = self.works_on(id).await?;
        let lost = self.silent_since(self.now());
        Ok(Some(document(agent, works_on, lost)))
    }

    /// Says what an agent is to do; `None` where there is none.
    pub async fn set_duty(
        &self,
        id: &str,
        duty: Assignment,
    ) -> Result<Option<AgentDocument>, JobError> {
        if !self.shared.db.set_duty(id, duty).await? {
            return Ok(None);
        }
        tracing::info!(agent.id = id, "the agent {id} is {} now", duty.name());
        self.shared.for_agents.send_replace(());
        self.agent(id).await
    }

    /// Forgets an agent, of this owner where one is given, and queues again what it works on. An owner cannot forget that one is cordoned.
    /// False where there is none.
    pub async fn remove_agent(&self, id: &str, owner: Option<&Owner>) -> Result<bool, JobError> {
        let shared = &self.shared;
        if let Some(owner) = owner {
            let agent = shared.db.agent(id).await?;
            if agent.is_none_or(|agent| agent.owner != owner) {
                return Ok(false);
            }
        }
        let is_removed = shared
            .db
            .remove_agent(id, owner.is_none(), self.now())
            .await?;
        shared.for_agents.send_replace(());
        shared.wake.notify_one();
        Ok(is_removed)
    }

    /// The cards of agents, as devices that requests may name: the first [`MOST_DEVICES`].
    pub(super) async fn devices_of_agents(&self) -> Result<Vec<DeviceSummary>, JobError> {
        // Each has one at least.
        let agents = self.agents("", MOST_DEVICES.into()).await?;
        let cards = agents.iter().flat_map(|agent| {
            let summary = move |card: &AgentCard| summary(agent, card);
            agent.cards.iter().map(summary)
        });
        Ok(cards.take(MOST_DEVICES.into()).collect())
    }

    /// Where a request leads.
    pub(in crate::jobs) async fn executor(
        &self,
        request: &Request,
    ) -> Result<Result<Executor, EngineError>, JobError> {
        let (db, lost) = (&self.shared.db, self.silent_since(self.now()));
        match &request.device {
            DeviceChoice::Auto | DeviceChoice::Cuda(_) | DeviceChoice::Sim(_) => {}
            DeviceChoice::Kind(kind) => {
                let count = executor::cards_for(request);
                // Those with real ones first.
                for is_simulated in [false, true] {
                    if db.has_cards(kind, is_simulated, count, lost).await? {
                        return Ok(Ok(executor::of_kind(kind, count, is_simulated)));
                    }
                }
            }
            DeviceChoice::Host(host, number) => {
                let agents = match db.agent_named(host).await? {
                    Some(agent) => vec![agent],
                    None => db.agents("", executor::MOST_NAMED.into()).await?,
                };
                let known = |agent| document(agent, Vec::new(), lost);
                let agents: Vec<AgentDocument> = agents.into_iter().map(known).collect();
                return Ok(executor::of_host(host, *number, &agents));
            }
        }
        Ok(Ok(Executor::Here))
    }

    /// The agent of this id, if it is this owner's and answers by these rules. One that an earlier build registered is not known any more:
    /// it registers again, and is told.
    async fn own_agent(&self, id: &str, owner: &Owner) -> Result<Option<StoredAgent>, JobError> {
        let agent = self.shared.db.agent(id).await?;
        Ok(agent.filter(|agent| agent.owner == owner && agent.rules == ENGINE_DIGEST))
    }

    /// What time it is where leases are counted.
    fn now(&self) -> Time {
        self.shared.beats.time(self.shared.db.now())
    }

    /// Agents that were not heard of since then are lost.
    fn silent_since(&self, now: Time) -> Time {
        let lease = milliseconds(self.shared.limits.lease_of_agents);
        Time(now.0.saturating_sub(lease))
    }

    async fn works_on(&self, id: &str) -> Result<Vec<String>, JobError> {
        Ok(self.all_works().await?.remove(id).unwrap_or_default())
    }

    /// What each agent works on.
    async fn all_works(&self) -> Result<HashMap<String, Vec<String>>, JobError> {
        let mut works: HashMap<String, Vec<String>> = HashMap::new();
        for held in self.shared.db.running_fits(None).await? {
            let holder = held.holder.as_ref();
            let agent = holder.and_then(|holder| holder.name().strip_prefix(AGENT_LANE));
            if let Some(agent) = agent {
                works.entry(agent.to_owned()).or_default().push(held.id);
            }
        }
        Ok(works)
    }
}

/// The cards in a row.
fn cards(agent: &StoredAgent) -> Vec<AgentCard> {
    // Those of a version that wrote something else are not there.
    serde_json::from_str(agent.cards.as_str()).unwrap_or_default()
}

fn document(agent: StoredAgent, works_on: Vec<String>, lost: Time) -> AgentDocument {
    let state = match agent.duty {
        _ if agent.seen_at < lost => AgentState::Lost,
        Assignment::Draining => AgentState::Draining,
        Assignment::Cordoned => AgentState::Cordoned,
        Assignment::Ready if works_on.is_empty() => AgentState::Ready,
        Assignment::Ready => AgentState::Busy,
    };
    AgentDocument {
        cards: cards(&agent),
        id: agent.id,
        name: agent.name,
        state,
        version: agent.version,
        works_on,
        registered_at: agent.registered_at,
        seen_at: agent.seen_at,
    }
}

fn summary(agent: &AgentDocument, card: &AgentCard) -> DeviceSummary {
    let missing = match agent.state {
        AgentState::Ready | AgentState::Busy => None,
        AgentState::Draining | AgentState::Cordoned | AgentState::Lost => {
            Some(format!("its agent is {}", agent.state.name()))
        }
    };
    let source = if card.simulated {
        format!("simulated by the agent on {}", agent.name)
    } else {
        format!("the agent on {}", agent.name)
    };
    DeviceSummary {
        device: format!("{}/{}", agent.name, card.device),
        kind: if card.simulated {
            DeviceKind::Simulated
        } else {
            DeviceKind::Cuda
        },
        card: card.kind.clone(),
        gpu: Some(card.gpu.clone()),
        memory_bytes: Some(card.memory_bytes),
        usable_bytes: card.usable_bytes,
        compute_capability: card.compute_capability.clone(),
        multiprocessors: card.multiprocessors,
        driver: card.driver.clone(),
        cudnn: card.cudnn.clone(),
        available: missing.is_none(),
        missing,
        source,
    }
}
