//! Which device a request asks for, and what to say of a card by a name that is none of the catalogue's. A card of another name has another
//! amount of memory: it is offered only where a name is misspelt, never in the place of another card.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::nicknames::{self, On};
use crate::device::sim::{self, Card, Instance, LOCAL};
use crate::limits::shorten;
use batchfit_models::{Fields, RequestError, nearest, wrong};

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
            return Err(unknown_card(name, text, pointer));
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

/// A simulated card that is not there, with those whose name begins alike: `a100` is a family.
fn unknown_card(name: &str, text: &str, pointer: &str) -> RequestError {
    if let Some(absent) = absent(pointer, name) {
        return absent;
    }
    if let Some(invalid) = unknown_machine(pointer, name) {
        return RequestError {
            nearest: invalid.nearest.map(|nearest| format!("sim:{nearest}")),
            ..invalid
        }
        .with_text(text);
    }
    let family = family(name);
    let mut invalid = unknown(pointer, "simulated device", name, &sim::names());
    if let [_, _, ..] = family.as_slice() {
        let members: Vec<String> = family.iter().map(|name| format!("sim:{name}")).collect();
        invalid.problem = format!(
            "unknown simulated device {:?}; of this family there are {}",
            shorten(name),
            members.join(", ")
        );
    }
    let nearest = family.first().copied().or(invalid.nearest.as_deref());
    invalid.nearest = nearest.map(|name| format!("sim:{name}"));
    invalid.with_text(text)
}

/// A machine of a cloud that is not there, with those of its kind or those most like it; `None` where a name is more like a card's.
pub fn unknown_machine(pointer: &str, name: &str) -> Option<RequestError> {
    let family = Instance::family(name);
    let (which, machines, nearest) = if family.is_empty() {
        ("most like it are", Instance::alike(name), None)
    } else {
        let nearest = nearest(name, family.iter().copied());
        ("of its kind there are", family, nearest)
    };
    let nearest = nearest.or_else(|| machines.first().copied())?;
    let machines = machines.join(", ");
    let problem = format!("unknown machine {:?}; {which} {machines}", shorten(name));
    Some(RequestError {
        nearest: Some(nearest.to_owned()),
        ..RequestError::at(pointer, problem).with_text(name)
    })
}

/// The cards whose name begins with what was written, or else with its first part: `h100-pcie` is an `h100`.
fn family(written: &str) -> Vec<&'static str> {
    let written = written.to_lowercase();
    let first_part = written.split(['-', '_', ' ']).next().unwrap_or_default();
    if written.is_empty() || first_part.is_empty() {
        return Vec::new();
    }
    // `rtx4070ti` is no rtx4070tisuper.
    let mut family = sim::names();
    family.retain(|name| name.split('-').next() == Some(first_part));
    family
}

fn meant(text: &str) -> Option<String> {
    if ["cuda", "gpu", "gpu:0"].contains(&text.to_lowercase().as_str()) {
        return Some("cuda:0".to_owned());
    }
    if let [first, ..] = family(text).as_slice() {
        return Some(format!("sim:{first}"));
    }
    let known = ["auto", "cuda:0"];
    let card = || misspelt(text, &sim::names()).map(|card| format!("sim:{card}"));
    nearest(text, known).map(str::to_owned).or_else(card)
}

/// What is called a card and is not simulated, and what to do instead.
const ABSENT: &str = include_str!("cards.txt");

/// A name without what people write differently: case, dashes, spaces.
fn plain(name: &str) -> String {
    let kept = shorten(name).to_lowercase();
    let kept = kept.strip_prefix("sim:").unwrap_or(&kept);
    kept.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// What the table has of a name, and the card that is the same where there is one.
fn row(name: &str) -> Option<(Option<&'static str>, &'static str)> {
    let plain = plain(name);
    let plain = ["nvidia", "geforce", "tesla"]
        .iter()
        .fold(&*plain, |name, maker| {
            name.strip_prefix(maker).unwrap_or(name)
        });
    let is = |word: &str| match (word.strip_prefix('*'), word.strip_suffix('*')) {
        (Some(middle), Some(_)) => plain.contains(middle.trim_end_matches('*')),
        (None, Some(beginning)) => plain.starts_with(beginning),
        _ => plain == word,
    };
    let mut rows = ABSENT.lines().filter_map(|line| line.split_once(" | "));
    let found = rows.find(|(words, _)| {
        words
            .split(" = ")
            .next()
            .is_some_and(|words| words.split(' ').any(is))
    });
    found.map(|(words, said)| (words.split_once(" = ").map(|(_, card)| card), said))
}

/// The card that is the same as one of another name, and what to say of it.
pub(super) fn same(name: &str) -> Option<(&'static str, &'static str)> {
    row(name).and_then(|(card, said)| Some((card?, said)))
}

/// What to say of a card that is known not to be simulated.
pub fn absent(pointer: &str, name: &str) -> Option<RequestError> {
    let (_, advice) = row(name).filter(|(card, _)| card.is_none())?;
    let problem = format!("unknown card {:?}; {advice}", shorten(name));
    Some(RequestError::at(pointer, problem).with_text(name))
}

/// The card that a name is a misspelling of: with the same numbers but for a digit too many, and letters that differ in one where there
/// are several.
pub(crate) fn misspelt<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let parts = |name: &str| {
        let plain = plain(name);
        let start = plain.find(|c: char| c.is_ascii_digit())?;
        let rest = &plain[start..];
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        Some((
            plain[..start].to_owned(),
            rest[..end].to_owned(),
            rest[end..].to_owned(),
        ))
    };
    let (letters, digits, suffix) = parts(name)?;
    let is_meant = |known: &&&str| {
        let Some((of, number, after)) = parts(known) else {
            return false;
        };
        let same_letters =
            letters == of || of.len() > 1 && strsim::damerau_levenshtein(&letters, &of) == 1;
        let one_too_many =
            digits.len() == number.len() + 1 && strsim::levenshtein(&digits, &number) == 1;
        same_letters && suffix == after && (digits == number || one_too_many)
    };
    known.iter().find(is_meant).copied()
}

/// An unknown card.
pub fn unknown(pointer: &str, what: &str, name: &str, known: &[&str]) -> RequestError {
    if let Some(absent) = absent(pointer, name) {
        return absent;
    }
    let nearest = misspelt(name, known);
    let mut said = format!("unknown {what} {:?}", shorten(name));
    if nearest.is_none() {
        said += "; `batchfit cards` lists those that there are";
    }
    RequestError {
        nearest: nearest.map(str::to_owned),
        ..RequestError::at(pointer, said).with_text(name)
    }
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
