//! What agents and the service say to each other.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::device::sim::Card;
use crate::jobs::document::VERSION;
use crate::jobs::{FitError, FitResult, Progress};
use crate::limits::{clause, is_hidden, shorten};
use crate::model::{ENGINE_DIGEST, HeadroomCalibration, RequestError, is_host_name};
use crate::store::{Assignment, FitState, Time};

/// Changes whenever what is said does.
pub const PROTOCOL: u32 = 1;

/// Most cards of a machine: the largest have sixteen, each of which may be split into seven.
pub const MOST_CARDS: usize = 128;

/// Longest text in what an agent says of itself, in bytes.
const LONGEST_TEXT: usize = 200;

/// How long a name of a process is, at least and at most.
const INSTANCE: std::ops::RangeInclusive<usize> = 16..=64;

/// What an agent says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Registration {
    /// The machine: what requests say before `/cuda:0`. Letters, digits, dots, dashes and underscores.
    #[schema(example = "node7", min_length = 1, max_length = 64)]
    pub name: String,
    /// The process, by chance of its own: 16 to 64 hexadecimal digits. Sent again, it says that the agent is there still.
    #[schema(
        example = "9f0c3e8b1c4f3a9a552f1f3b7f7a1000",
        min_length = 16,
        max_length = 64
    )]
    pub instance: String,
    /// Its version, which has to be that of the service.
    #[schema(example = "0.1.0")]
    pub version: String,
    /// The version of what is said here, which has to be that of the service too.
    pub protocol: u32,
    /// By which rules it answers: a digest that has to be that of the service.
    pub rules: String,
    /// Whether it takes no more, and ends when it has finished what it works on; false by default.
    #[serde(default)]
    pub draining: bool,
    /// Its cards.
    #[schema(min_items = 1, max_items = 128)]
    pub cards: Vec<AgentCard>,
}

/// A card of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AgentCard {
    /// Its name on its machine.
    #[schema(example = "cuda:0")]
    pub device: String,
    /// Its name in the catalogue of cards; null for one that is not there, such as a part of a card (MIG).
    #[schema(example = "h100-80g")]
    pub kind: Option<String>,
    /// What the driver calls it.
    #[schema(example = "NVIDIA H100 80GB HBM3")]
    pub gpu: String,
    /// All of its memory.
    pub memory_bytes: u64,
    /// What of it was free when the agent looked, less the framework's own context.
    pub usable_bytes: Option<u64>,
    /// Its compute capability.
    #[schema(example = "9.0")]
    pub compute_capability: Option<String>,
    /// Streaming multiprocessors.
    pub multiprocessors: Option<u32>,
    /// Driver version; null for a simulated card.
    pub driver: Option<String>,
    /// cuDNN version; null for a simulated card.
    pub cudnn: Option<String>,
    /// Which part of a card it is, where it is one: the profile.
    #[schema(example = "1g.10gb")]
    pub mig: Option<String>,
    /// Whether it is simulated: then so is all that the agent answers on it.
    pub simulated: bool,
}

impl Registration {
    /// Says what is wrong with it, but for its version.
    pub fn check(&self) -> Result<(), RequestError> {
        if !is_host_name(&self.name) {
            let problem = format!(
                "{:?} cannot be the name of an agent: a name has 1 to 64 letters, digits, dots, dashes and underscores of ASCII, and \
                 begins with a letter or a digit",
                shorten(&self.name)
            );
            return Err(RequestError::at("/name", problem));
        }
        let is_hex = self.instance.chars().all(|c| c.is_ascii_hexdigit());
        if !INSTANCE.contains(&self.instance.len()) || !is_hex {
            let problem = "`instance` has 16 to 64 hexadecimal digits";
            return Err(RequestError::at("/instance", problem));
        }
        if self.cards.is_empty() || self.cards.len() > MOST_CARDS {
            let problem = format!(
                "an agent has 1 to {MOST_CARDS} cards, and this one {}",
                self.cards.len()
            );
            return Err(RequestError::at("/cards", problem));
        }
        for (index, card) in self.cards.iter().enumerate() {
            let at = format!("/cards/{index}");
            card.check()
                .map_err(|problem| RequestError::at(&at, problem))?;
            let is_twice = self.cards[..index]
                .iter()
                .any(|before| before.device == card.device);
            if is_twice {
                let problem = format!("{} is there twice", card.device);
                return Err(RequestError::at(&at, problem));
            }
        }
        Ok(())
    }

    /// Why an agent of another version cannot work for this service: its answers would be others.
    pub fn other_version(&self) -> Option<String> {
        if self.version != VERSION {
            return Some(format!(
                "this agent is batchfit {}, and the service batchfit {VERSION}; start the agent with batchfit {VERSION}",
                shorten(&self.version)
            ));
        }
        if self.protocol != PROTOCOL {
            return Some(format!(
                "this agent speaks version {} of the protocol, and the service version {PROTOCOL}; start the agent with the very \
                 batchfit {VERSION} of the service",
                self.protocol
            ));
        }
        (self.rules != ENGINE_DIGEST).then(|| {
            format!(
                "this agent is another build of batchfit {VERSION}, with other rules, and its answers would be others; start the agent \
                 with the file that the service was started with (rules {ENGINE_DIGEST})"
            )
        })
    }
}

impl AgentCard {
    /// Its name in answers.
    pub(super) fn product(&self) -> &str {
        let kind = self.kind.as_deref().filter(|_| self.simulated);
        kind.and_then(Card::find)
            .map_or(&self.gpu, |card| card.product)
    }

    fn check(&self) -> Result<(), String> {
        let number = self.device.strip_prefix("cuda:");
        let is_number = number.is_some_and(|number| {
            (1..=4).contains(&number.len()) && number.chars().all(|c| c.is_ascii_digit())
        });
        if !is_number {
            let device = shorten(&self.device);
            return Err(format!(
                "{device:?} is no card of a machine, as `cuda:0` is"
            ));
        }
        if let Some(kind) = &self.kind
            && Card::find(kind).is_none()
        {
            let kind = shorten(kind);
            return Err(format!("{kind:?} is no card of the catalogue"));
        }
        if self.simulated && self.kind.is_none() {
            return Err("a simulated card is one of the catalogue".to_owned());
        }
        let texts = [
            Some(&self.gpu),
            self.compute_capability.as_ref(),
            self.driver.as_ref(),
            self.cudnn.as_ref(),
            self.mig.as_ref(),
        ];
        let mut texts = texts.into_iter().flatten();
        if texts.any(|text| text.len() > LONGEST_TEXT || text.contains(is_hidden)) {
            return Err(format!(
                "a text is longer than {LONGEST_TEXT} bytes, or has control characters"
            ));
        }
        Ok(())
    }
}

batchfit_step::listed! {
    /// How an agent stands.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum AgentState {
        /// It takes what its cards can run, and works on nothing.
        Ready = "ready",
        /// It works on something, and takes more where it has cards left.
        Busy = "busy",
        /// It finishes what it works on, takes no more, and ends.
        Draining = "draining",
        /// It takes no more, and stays.
        Cordoned = "cordoned",
        /// It has said nothing for longer than a lease.
        Lost = "lost",
    }
}

/// An agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentDocument {
    /// Its name for programs; `/v1/agents/{id}` leads back to it. Another one whenever its process is another.
    #[schema(example = "1mk3v7q0h5c2d8xw")]
    pub id: String,
    /// The machine.
    #[schema(example = "node7")]
    pub name: String,
    /// How it stands.
    pub state: AgentState,
    /// Its version.
    pub version: String,
    /// Its cards.
    pub cards: Vec<AgentCard>,
    /// The fits that it works on.
    pub works_on: Vec<String>,
    /// When it registered.
    pub registered_at: Time,
    /// When it was last heard of.
    pub seen_at: Time,
}

/// What an agent is told that registers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegistrationResponse {
    /// The agent.
    #[serde(flatten)]
    pub agent: AgentDocument,
    /// What it is to do.
    pub duty: Assignment,
    /// How long it may say nothing before what it works on is given to another.
    pub lease_seconds: u64,
    /// The version of the service.
    pub server_version: String,
}

/// What an agent asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Claim {
    /// Those of its cards on which it does not work.
    pub free: Vec<String>,
    /// How long it waits for something to do; at most 20 s and half a lease, 0 by default.
    #[serde(default)]
    pub wait_seconds: u32,
}

/// What an agent gets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClaimDocument {
    /// What it is to do.
    pub duty: Assignment,
    /// What it is to work on; null where there is nothing.
    pub job: Option<JobDocument>,
}

/// A fit to be worked on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobDocument {
    /// The name of this attempt: `/v1/agents/{id}/jobs/{attempt}/request` is what is asked.
    #[schema(example = "1mk3v7q0h5c2d8xw.1")]
    pub attempt: String,
    /// The fit.
    #[schema(example = "1mk3v7q0h5c2d8xw")]
    pub fit: String,
    /// On which card: one of those that were free, or a kind of card of which it takes several.
    #[schema(example = "cuda:0")]
    pub device: String,
    /// How many cards it takes.
    pub cards: u64,
    /// Whether it is to run in a process of its own, because it ended another one, perhaps.
    pub apart: bool,
    /// For how many seconds it may be worked on.
    pub timeout_seconds: Option<i64>,
    /// What outcomes had taught about the headroom of its answer.
    #[schema(value_type = Vec<Object>)]
    pub taught: Vec<HeadroomCalibration>,
    /// How long nothing may be said of it before it is given to another.
    pub lease_seconds: u64,
}

impl JobDocument {
    /// Whether its names are as a service gives them: they go into paths and logs.
    pub fn is_named(&self) -> bool {
        let is_id = |id: &str| {
            (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let number = self.attempt.strip_prefix(&self.fit);
        let number = number.and_then(|rest| rest.strip_prefix('.'));
        is_id(&self.fit)
            && number.is_some_and(|number| number.parse::<u32>().is_ok() && is_id(number))
    }
}

/// How far a job is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobNews {
    /// How far; null where there is nothing new, and the lease is to be renewed alone.
    #[serde(default)]
    pub progress: Option<Progress>,
}

/// How a job stands, as an agent is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseDocument {
    /// `running`; or `cancelled`, and then it is to be stopped.
    pub state: FitState,
    /// For how many seconds it may be worked on: others may ask for more.
    pub timeout_seconds: Option<i64>,
    /// How long nothing may be said of it from now on.
    pub lease_seconds: u64,
}

/// What came of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum JobOutcome {
    /// There is an answer.
    Answered {
        /// The answer.
        #[serde(deserialize_with = "answer")]
        result: Box<FitResult>,
    },
    /// There is none.
    Failed {
        /// Why.
        error: FitError,
    },
    /// The agent ends, or its card is gone: another agent is to work on it, as if this attempt had not been.
    Released,
}

/// Reads an answer by way of its text: see [`FitResult::from_json`].
fn answer<'de, D: Deserializer<'de>>(from: D) -> Result<Box<FitResult>, D::Error> {
    let text = Value::deserialize(from)?.to_string();
    FitResult::from_json(&text).map_err(|error| D::Error::custom(clause(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(device: &str) -> AgentCard {
        AgentCard {
            device: device.to_owned(),
            kind: Some("h100-80g".to_owned()),
            gpu: "NVIDIA H100 80GB HBM3".to_owned(),
            memory_bytes: 80 << 30,
            ..AgentCard::default()
        }
    }

    fn registration() -> Registration {
        Registration {
            name: "node7".to_owned(),
            instance: "0123456789abcdef".to_owned(),
            version: VERSION.to_owned(),
            protocol: PROTOCOL,
            rules: ENGINE_DIGEST.to_owned(),
            draining: false,
            cards: vec![card("cuda:0"), card("cuda:1")],
        }
    }

    #[test]
    fn another_version_is_told_which_one_is_needed() {
        assert_eq!(registration().other_version(), None);
        let version = Registration {
            version: "0.0.9".to_owned(),
            ..registration()
        };
        let protocol = Registration {
            protocol: 7,
            ..registration()
        };
        let rules = Registration {
            rules: "others".to_owned(),
            ..registration()
        };
        for other in [version, protocol, rules] {
            let said = other.other_version().unwrap();
            assert!(said.contains(&format!("batchfit {VERSION}")), "{said}");
        }
    }

    #[test]
    fn what_no_agent_can_be_is_refused_where_it_is_wrong() {
        registration().check().unwrap();
        #[rustfmt::skip] // A row a line.
        let cases = [
            ("/name", Registration { name: "a/b".to_owned(), ..registration() }),
            ("/instance", Registration { instance: "x".repeat(16), ..registration() }),
            ("/cards", Registration { cards: Vec::new(), ..registration() }),
            ("/cards/1", Registration { cards: vec![card("cuda:0"), card("cuda:0")], ..registration() }),
            ("/cards/0", Registration { cards: vec![card("gpu0")], ..registration() }),
            ("/cards/0", Registration { cards: vec![AgentCard { gpu: "a\u{1b}[31m".to_owned(), ..card("cuda:0") }], ..registration() }),
            ("/cards/0", Registration { cards: vec![AgentCard { mig: Some("\u{202e}".to_owned()), ..card("cuda:0") }], ..registration() }),
        ];
        for (pointer, wrong) in cases {
            assert_eq!(wrong.check().unwrap_err().pointer, pointer);
        }
    }
}
