//! Where the device of a request leads: to this machine, or to agents.
//!
//! A fit that agents are to take waits in a lane that its name is told by: `agent KIND xN` for N cards of a kind, `agent sim KIND xN`
//! where only simulated ones are registered, `agent HOST/cuda:N` for a card of a machine. So an agent that knows which of its cards
//! are free knows which lanes it can serve.

use std::collections::HashMap;

use crate::device::sim::Card;
use crate::jobs::{Engine, EngineError};
use crate::model::{DeviceChoice, Request};
use crate::store::AGENT_LANE;
use batchfit_fit::card_name;

use super::{AgentCard, AgentDocument, AgentState};

/// How many agents an error names.
pub(super) const MOST_NAMED: u8 = 20;

/// Where a request is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::jobs) enum Executor {
    /// By the engine of this process.
    Here,
    /// By an agent.
    Agents {
        /// In which lane it waits.
        lane: String,
        /// The card as fingerprints name it.
        card: String,
        /// Whether it is simulated.
        is_simulated: bool,
    },
}

impl Executor {
    /// The card as fingerprints name it, whether it is simulated, and the lane of agents; an error where it is to be here and is not.
    pub(in crate::jobs) fn card(
        self,
        engine: &dyn Engine,
        request: &Request,
    ) -> Result<(Option<String>, bool, Option<String>), EngineError> {
        match self {
            Executor::Here => {
                let card = engine.catalogue().card(request)?;
                let is_simulated = card.is_none();
                Ok((card, is_simulated, None))
            }
            Executor::Agents {
                lane,
                card,
                is_simulated,
            } => Ok((Some(card), is_simulated, Some(lane))),
        }
    }
}

/// How many cards a request takes.
pub(super) fn cards_for(request: &Request) -> u64 {
    if request.is_parallel() {
        request.world_size
    } else {
        1
    }
}

/// To agents that have so many such cards.
pub(super) fn of_kind(kind: &str, count: u64, is_simulated: bool) -> Executor {
    let product = Card::find(kind).map_or(kind, |card| card.product);
    Executor::Agents {
        lane: lane_of_kind(kind, is_simulated, count),
        // Of whichever machine: their drivers may differ.
        card: card_name(product, None),
        is_simulated,
    }
}

/// To the agent of this name, or an error where these are the first ones of those that there are.
pub(super) fn of_host(
    host: &str,
    number: u32,
    agents: &[AgentDocument],
) -> Result<Executor, EngineError> {
    let device = DeviceChoice::Host(host.to_owned(), number).to_string();
    let unavailable = |missing: String| EngineError::unavailable(&device, missing);
    let list = |names: Vec<&str>| names.join(", ");
    let Some(agent) = agents.iter().find(|agent| agent.name == host) else {
        let known: Vec<&str> = agents.iter().map(|agent| agent.name.as_str()).collect();
        return Err(unavailable(if known.is_empty() {
            format!("there is no host {host}, because no agent is registered")
        } else {
            format!(
                "there is no host {host}; hosts with an agent are {}{}",
                list(known),
                if agents.len() < usize::from(MOST_NAMED) {
                    ""
                } else {
                    " and others"
                }
            )
        }));
    };
    match agent.state {
        AgentState::Ready | AgentState::Busy | AgentState::Cordoned => {}
        AgentState::Draining => {
            let missing = format!("the agent on {host} takes no more and is about to end");
            return Err(unavailable(missing));
        }
        AgentState::Lost => {
            let missing = format!("the agent on {host} has not been heard of for some time");
            return Err(unavailable(missing));
        }
    }
    let on = format!("cuda:{number}");
    let Some(card) = agent.cards.iter().find(|card| card.device == on) else {
        let here = agent
            .cards
            .iter()
            .map(|card| card.device.as_str())
            .collect();
        let missing = format!("{host} has no {on}; it has {}", list(here));
        return Err(unavailable(missing));
    };
    Ok(Executor::Agents {
        lane: lane_of_host(host, &on),
        card: card_name(
            card.product(),
            card.driver.as_deref().filter(|_| !card.simulated),
        ),
        is_simulated: card.simulated,
    })
}

/// The lane of so many cards of a kind.
fn lane_of_kind(kind: &str, simulated: bool, count: u64) -> String {
    let sim = if simulated { "sim " } else { "" };
    format!("{AGENT_LANE}{sim}{kind} x{count}")
}

/// The lane of a machine's card.
fn lane_of_host(host: &str, device: &str) -> String {
    format!("{AGENT_LANE}{host}/{device}")
}

/// What an agent works on in a lane: on which device, and how many cards it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CardRequest {
    pub(super) device: String,
    pub(super) cards: u64,
}

/// The cards that an agent of this name calls free, without those for what it works on in these lanes. Which ones of a kind it took it
/// alone knows: those that it does not call free, as far as there are as many.
pub(super) fn free_cards<'a>(
    name: &str,
    cards: &'a [AgentCard],
    free: &[String],
    mut works_on: Vec<&str>,
) -> Vec<&'a AgentCard> {
    let is_free = |card: &&AgentCard| free.contains(&card.device);
    let mut left: Vec<&AgentCard> = cards.iter().collect();
    left.sort_by_key(is_free);
    // A card that was asked for by its name is no other one.
    works_on.sort_by_key(|lane| !lane.contains('/'));
    for lane in works_on {
        let count = lane.rsplit_once(" x").map(|(_, count)| count.parse());
        let count = count.and_then(Result::ok).unwrap_or(1);
        let serves = |card: &&AgentCard| {
            let kind = card.kind.as_deref();
            lane == lane_of_host(name, &card.device)
                || kind.is_some_and(|kind| lane == lane_of_kind(kind, card.simulated, count))
        };
        for _ in 0..count {
            // Of cards that it has registered otherwise since, any.
            let taken = left.iter().position(serves).unwrap_or(0);
            if !left.is_empty() {
                left.remove(taken);
            }
        }
    }
    left.retain(is_free);
    left
}

/// The lanes that an agent of this name can serve with cards that are free.
pub(super) fn lanes<'a>(
    name: &str,
    free: impl IntoIterator<Item = &'a AgentCard>,
) -> HashMap<String, CardRequest> {
    let mut lanes = HashMap::new();
    let mut kinds: HashMap<(&str, bool), Vec<&AgentCard>> = HashMap::new();
    for card in free {
        let one = CardRequest {
            device: card.device.clone(),
            cards: 1,
        };
        lanes.insert(lane_of_host(name, &card.device), one);
        if let Some(kind) = &card.kind {
            let alike = kinds.entry((kind, card.simulated)).or_default();
            alike.push(card);
        }
    }
    for ((kind, simulated), cards) in kinds {
        for count in 1..=cards.len() as u64 {
            let takes = CardRequest {
                device: if count == 1 {
                    cards[0].device.clone()
                } else {
                    kind.to_owned()
                },
                cards: count,
            };
            lanes.insert(lane_of_kind(kind, simulated, count), takes);
        }
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Time;

    fn card(device: &str, kind: Option<&str>, simulated: bool) -> AgentCard {
        AgentCard {
            device: device.to_owned(),
            kind: kind.map(str::to_owned),
            gpu: "NVIDIA H100 80GB HBM3".to_owned(),
            memory_bytes: 80 << 30,
            driver: Some("570.1".to_owned()),
            simulated,
            ..AgentCard::default()
        }
    }

    fn agent(name: &str, state: AgentState, cards: &[AgentCard]) -> AgentDocument {
        AgentDocument {
            id: name.to_owned(),
            name: name.to_owned(),
            state,
            version: String::new(),
            cards: cards.to_vec(),
            works_on: Vec::new(),
            registered_at: Time(0),
            seen_at: Time(0),
        }
    }

    fn on(host: &str, number: u32, agents: &[AgentDocument]) -> Result<String, String> {
        match of_host(host, number, agents) {
            Ok(Executor::Agents { lane, .. }) => Ok(lane),
            Ok(Executor::Here) => Err("here".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_host_that_is_not_there_is_answered_with_those_that_are() {
        let agents = [
            agent("node1", AgentState::Ready, &[card("cuda:0", None, false)]),
            agent("node2", AgentState::Lost, &[card("cuda:0", None, false)]),
        ];

        let found = on("node1", 0, &agents);
        assert_eq!(found.as_deref(), Ok("agent node1/cuda:0"));
        let unknown = on("node9", 0, &agents).unwrap_err();
        assert!(unknown.contains("node1, node2"), "{unknown}");
        let other = on("node1", 3, &agents).unwrap_err();
        assert!(other.contains("it has cuda:0"), "{other}");
        assert!(on("node2", 0, &agents).unwrap_err().contains("heard"));
        let none = on("node1", 0, &[]).unwrap_err();
        assert!(none.contains("no agent is registered"), "{none}");
    }

    #[test]
    fn cards_at_work_are_not_free_whatever_their_agent_says() {
        let cards = [0, 1, 2, 3].map(|n| card(&format!("cuda:{n}"), Some("h100-80g"), n == 3));
        let all = cards.each_ref().map(|card| card.device.clone());
        let free = |free: &[String], works_on: &[&str]| {
            let free = free_cards("node1", &cards, free, works_on.to_vec());
            let names = free.iter().map(|card| card.device.as_str());
            names.collect::<Vec<_>>().join(" ")
        };

        assert_eq!(free(&all, &[]), "cuda:0 cuda:1 cuda:2 cuda:3");
        let works_on = ["agent h100-80g x1", "agent node1/cuda:0"];
        assert_eq!(free(&all, &works_on), "cuda:2 cuda:3");
        assert_eq!(free(&all[1..], &works_on[..1]), "cuda:1 cuda:2 cuda:3");
        assert_eq!(free(&all, &["agent h100-80g x3"]), "cuda:3");
        // It registered other cards since it claimed these.
        let works_on = ["agent node1/cuda:9", "agent h200 x1", "agent sim h200 x1"];
        assert_eq!(free(&all, &works_on), "cuda:3");
        assert_eq!(free(&all, &["agent h200 x128"]), "");
        assert_eq!(
            free(&all, &["agent sim h100-80g x1"]),
            "cuda:0 cuda:1 cuda:2"
        );
    }

    #[test]
    fn an_agent_serves_the_lanes_of_its_free_cards() {
        let cards = [
            card("cuda:0", Some("h100-80g"), false),
            card("cuda:1", Some("h100-80g"), false),
            card("cuda:2", None, false),
        ];

        let served = lanes("node1", &cards);
        let mut names: Vec<&str> = served.keys().map(String::as_str).collect();
        names.sort_unstable();

        assert_eq!(
            names,
            [
                "agent h100-80g x1",
                "agent h100-80g x2",
                "agent node1/cuda:0",
                "agent node1/cuda:1",
                "agent node1/cuda:2",
            ]
        );
        assert_eq!(served["agent h100-80g x1"].device, "cuda:0");
        assert_eq!(served["agent h100-80g x2"].device, "h100-80g");
        assert!(lanes("node1", &cards[..0]).is_empty());
    }
}
