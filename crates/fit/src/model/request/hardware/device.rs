//! Which device a request asks for, and what of its memory is left free: said by itself, or by outcomes of earlier answers.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::nicknames::{self, On};
use super::unknown::{absent, meant, unknown_simulated};
use crate::alloc::MemoryLimit;
use crate::device::sim::{self, Card, Instance, LOCAL};
use crate::limits::shorten;
use crate::model::Parallel;
use crate::search::headroom::Halved;
use crate::units::{Bytes, Share};
use batchfit_models::{Fields, RequestError, wrong};

/// Most cards that a list names.
const MOST_CARDS: usize = 16;

/// Where to run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
pub enum DeviceChoice {
    /// A GPU that is free.
    #[default]
    Auto,
    /// The GPU with this index.
    Cuda(u32),
    /// A simulated card, by its name in the catalogue.
    Sim(String),
    /// Any real card of this kind, by its name in the catalogue; simulated where there is none.
    Kind(String),
    /// The GPU with this index of another machine, on which an agent works for the service.
    Host(String, u32),
}

/// Longest name of a machine with an agent, in characters: that of a host (RFC 1123).
const LONGEST_HOST: usize = 64;

/// Whether a machine with an agent may be called so: one to 64 letters, digits, dots, dashes and underscores of ASCII that
/// begin with a letter or a digit.
pub fn is_host_name(name: &str) -> bool {
    let is_ordinary = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (1..=LONGEST_HOST).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_ordinary)
}

/// The number in `cuda:N`.
fn cuda_index(text: &str) -> Option<u32> {
    let index = text.strip_prefix("cuda:").filter(|index| {
        index.chars().all(|c| c.is_ascii_digit()) && (1..=4).contains(&index.len())
    });
    index.and_then(|index| index.parse().ok())
}

impl DeviceChoice {
    /// Reads `auto`, `cuda:N`, `sim:NAME`, `NAME` or `HOST/cuda:N`. The name of a cloud's machine is its card.
    pub fn parse(text: &str, pointer: &str) -> Result<DeviceChoice, RequestError> {
        let cards = sim::names();
        if text == "auto" {
            return Ok(DeviceChoice::Auto);
        }
        if let Some(name) = text.strip_prefix("sim:") {
            if cards.contains(&name) {
                return Ok(DeviceChoice::Sim(name.to_owned()));
            }
            if let Some(machine) = Instance::find(name) {
                return Ok(DeviceChoice::Sim(machine.card.to_owned()));
            }
            return Err(unknown_simulated(name, text, pointer));
        }
        if cards.contains(&text) && text != LOCAL {
            return Ok(DeviceChoice::Kind(text.to_owned()));
        }
        let of_host = text.split_once('/').filter(|(host, _)| is_host_name(host));
        if let Some((host, index)) = of_host.and_then(|(host, on)| Some((host, cuda_index(on)?))) {
            return Ok(DeviceChoice::Host(host.to_owned(), index));
        }
        if let Some(index) = cuda_index(text) {
            return Ok(DeviceChoice::Cuda(index));
        }
        match nicknames::parse(text) {
            Ok(On { card, count: None, .. }) => Ok(DeviceChoice::Kind(card.name.to_owned())),
            Ok(On { card, count: Some(count), .. }) => {
                let problem = format!(
                    "{:?} is {count} cards; their number has a member of its own: \"device\": {:?}, \"world_size\": {count}",
                    shorten(text),
                    card.name
                );
                Err(RequestError::at(pointer, problem).with_text(text))
            }
            Err(_) => Err(absent(pointer, text).unwrap_or_else(|| RequestError {
                nearest: meant(text),
                ..RequestError::at(
                    pointer,
                    format!(
                        "unknown device {:?}; devices are \"auto\", \"cuda:N\", \"sim:NAME\", a kind of card such as \"h100-80g\", and \
                         \"HOST/cuda:N\"",
                        shorten(text)
                    ),
                )
                .with_text(text)
            })),
        }
    }
}

/// The machines of clouds that a request's `device` names.
pub(crate) fn machines(fields: &Fields<'_>) -> Vec<&'static Instance> {
    let named = |value: &Value| Instance::find(value.as_str()?.strip_prefix("sim:")?);
    match fields.get("device") {
        Some(Value::Array(items)) if items.len() <= MOST_CARDS => {
            items.iter().filter_map(named).collect()
        }
        Some(value) => named(value).into_iter().collect(),
        None => Vec::new(),
    }
}

/// How many ranks there are where a request does not say it and names machines or a list: one for each card of a machine, and one for each
/// card that is named by itself.
pub(crate) fn ranks(fields: &Fields<'_>, machines: &[&Instance]) -> Option<u64> {
    let named = match fields.get("device") {
        Some(Value::Array(items)) => items.len(),
        _ => 1,
    };
    let alone = named.saturating_sub(machines.len()) as u64;
    let of_machines: u64 = machines.iter().map(|machine| machine.count).sum();
    (named > 1 || !machines.is_empty()).then_some(of_machines + alone)
}

/// The `device` of a request, and the cards of a list: the one that leaves PyTorch the least memory decides.
pub(crate) fn read(
    fields: &Fields<'_>,
    world_size: u64,
) -> Result<(DeviceChoice, Vec<String>), RequestError> {
    let pointer = fields.at("device");
    let Some(Value::Array(items)) = fields.get("device") else {
        let device = match fields.text("device")? {
            None => DeviceChoice::Auto,
            Some(text) => DeviceChoice::parse(text, &pointer)?,
        };
        return Ok((device, Vec::new()));
    };
    if items.is_empty() || items.len() > MOST_CARDS {
        let problem = format!(
            "a list of 1 to {MOST_CARDS} simulated cards is read, such as [\"sim:h100-80g\", \"sim:a100-40g\"], and this has {}",
            items.len()
        );
        return Err(RequestError::at(pointer, problem));
    }
    let mut cards: Vec<&'static Card> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let at = format!("{pointer}/{index}");
        let problem = "the cards of a job whose ranks have different ones are simulated: each must be a name such as \"sim:h100-80g\"";
        let Some(text) = item.as_str() else {
            return Err(wrong(&at, item, problem));
        };
        let DeviceChoice::Sim(name) = DeviceChoice::parse(text, &at)? else {
            return Err(wrong(&at, item, problem));
        };
        let card = Card::find(&name).ok_or_else(|| wrong(&at, item, problem))?;
        if !cards.contains(&card) {
            cards.push(card);
        }
    }
    let kinds = cards.len() as u64;
    if kinds > world_size {
        let problem = format!(
            "{kinds} kinds of cards are more than there are ranks: `world_size` is {world_size}"
        );
        return Err(RequestError::at(pointer, problem));
    }
    let least = cards.iter().min_by_key(|card| card.available());
    let device = least.map_or(DeviceChoice::Auto, |card| {
        DeviceChoice::Sim(card.name.to_owned())
    });
    let names = cards.iter().map(|card| card.name.to_owned());
    Ok((
        device,
        if kinds > 1 {
            names.collect()
        } else {
            Vec::new()
        },
    ))
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cuda(index) => write!(f, "cuda:{index}"),
            DeviceChoice::Sim(name) => write!(f, "sim:{name}"),
            DeviceChoice::Kind(name) => f.write_str(name),
            DeviceChoice::Host(host, index) => write!(f, "{host}/cuda:{index}"),
        }
    }
}

/// Refuses a limit above what the card has in all: it would not be the limit.
pub(crate) fn of_card(limit: Option<MemoryLimit>, total: Bytes) -> Result<(), RequestError> {
    match limit {
        Some(MemoryLimit::Bytes(asked)) if asked > total => Err(RequestError::at(
            "/memory_limit",
            format!(
                "{asked} is more than the card has, {total}; without a limit all of it is used, and a card with more takes more"
            ),
        )),
        Some(MemoryLimit::Bytes(_) | MemoryLimit::Fraction(_)) | None => Ok(()),
    }
}

/// What outcomes of earlier answers teach about one way to train.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadroomCalibration {
    /// How ranks train together: [`strategy`].
    pub strategy: String,
    /// How is trained: [`Request::training_digest`](crate::model::Request::training_digest); any way of the strategy where it is empty.
    #[serde(default)]
    pub training: String,
    /// Below which limit: its binary logarithm, rounded down. `None` for limits below which nothing was learnt.
    #[serde(default)]
    pub limit: Option<u32>,
    /// The least headroom.
    pub share: Share,
    /// What one other key alone asks for: it lowers a batch by a twentieth at most.
    #[serde(default)]
    pub unconfirmed: Share,
    /// How much less an answer leaves free by itself.
    #[serde(default)]
    pub halved: Halved,
    /// Whose outcomes they were.
    pub of: CalibrationSource,
    /// How many.
    pub outcomes: u64,
}

/// Whose outcomes teach.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CalibrationSource {
    /// Those of this very model.
    #[default]
    Itself,
    /// Those of other models on the same card.
    Others,
}

/// The name of a strategy: `none`, `ddp`, `zero1` or `fsdp2`.
pub fn strategy(parallel: &Parallel) -> &'static str {
    parallel.name().unwrap_or("none")
}

/// The headroom that a request asks for.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most half a million"
)]
pub(crate) fn requested(fields: &Fields<'_>) -> Result<Option<Share>, RequestError> {
    let share = |refused: RequestError| RequestError {
        problem: format!(
            "{}; it is a share of the limit, 0.05 for a twentieth; bytes are left free by a `memory_limit` of so much less, and a headroom of 0",
            refused.problem
        ),
        ..refused
    };
    let fraction: Option<f64> = fields.read("headroom").map_err(share)?;
    Ok(fraction.map(|fraction| Share((fraction * f64::from(Share::ALL.0)).round() as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        DeviceChoice::parse(text, "/device")
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_family_is_answered_with_its_members() {
        assert_eq!(
            refused("sim:a100"),
            "at /device: unknown simulated device \"a100\"; of this family there are sim:a100-80g, sim:a100-40g, \
             sim:a100-pcie-80g, sim:a100-pcie-40g; \
             did you mean \"sim:a100-80g\"?"
        );
        assert!(refused("sim:A100-SXM4").contains("there are sim:a100-80g, sim:a100-40g"));
    }

    #[test]
    fn a_name_that_begins_alike_is_nearer_than_one_that_looks_alike() {
        let nearest = |text| {
            let invalid = DeviceChoice::parse(text, "/device").unwrap_err();
            invalid.nearest.unwrap()
        };

        assert_eq!(nearest("sim:h100"), "sim:h100-80g");
        assert_eq!(nearest("sim:h200-141g"), "sim:h200");
        assert_eq!(nearest("sim:l44"), "sim:l4");
        let of_family = DeviceChoice::parse("a100", "/device").unwrap();
        assert_eq!(of_family, DeviceChoice::Kind("a100-40g".to_owned()));
    }

    #[test]
    fn the_machine_of_a_cloud_is_its_card() {
        let card = |text| DeviceChoice::parse(text, "/device").unwrap();

        assert_eq!(
            card("sim:p4d.24xlarge"),
            DeviceChoice::Sim("a100-40g".to_owned())
        );
        assert_eq!(
            card("sim:standard_nd96isr_h200_v5"),
            DeviceChoice::Sim("h200".to_owned())
        );
        assert_eq!(
            refused("sim:p5.24xlarge"),
            "at /device: unknown machine \"p5.24xlarge\"; of its kind there are p5.4xlarge, p5.48xlarge; \
             did you mean \"sim:p5.4xlarge\"?"
        );
    }

    #[test]
    fn a_card_without_sim_is_any_real_one_and_a_host_has_numbered_ones() {
        let read = |text| DeviceChoice::parse(text, "/device");

        assert_eq!(
            read("h100-80g"),
            Ok(DeviceChoice::Kind("h100-80g".to_owned()))
        );
        assert_eq!(
            read("node7/cuda:12"),
            Ok(DeviceChoice::Host("node7".to_owned(), 12))
        );
        for text in ["h100-80g", "gpu-3.lan/cuda:0"] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        for odd in [
            "/cuda:0",
            "node7/",
            "node7/cuda:",
            "node7/cuda:-1",
            "node7/cuda:99999",
            "-n/cuda:0",
            "a b/cuda:0",
            "a/b/cuda:0",
            "../cuda:0",
            "local",
        ] {
            assert!(read(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn several_cards_are_a_card_and_how_many_train() {
        assert_eq!(
            refused("2x3090"),
            "at /device: \"2x3090\" is 2 cards; their number has a member of its own: \"device\": \"rtx3090\", \"world_size\": 2"
        );
    }

    #[test]
    fn a_name_like_no_other_is_answered_with_those_there_are() {
        assert!(refused("sim:").ends_with("`batchfit cards` lists those that there are"));
        // Another card is not offered, nor is a machine of a cloud.
        for text in ["sim:mi300x", "mi300x", "sim:a2", "7900xtx", "sim:24GB"] {
            assert!(!refused(text).contains("did you mean"), "{}", refused(text));
        }
    }
}
