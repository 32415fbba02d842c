//! What to say of a name that no device, card or machine has. A card of another name has another amount of memory: it is offered only where
//! a name is misspelt, never in the place of another card.

use super::nicknames::{Name, called, is_sold_with};
use crate::device::sim::{self, CARDS, Card, Instance};
use crate::limits::shorten;
use batchfit_models::{RequestError, nearest};

/// A simulated card that is not there, with those whose name begins alike: `a100` is a family.
pub(super) fn unknown_simulated(name: &str, text: &str, pointer: &str) -> RequestError {
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
pub(super) fn unknown_machine(pointer: &str, name: &str) -> Option<RequestError> {
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

pub(super) fn meant(text: &str) -> Option<String> {
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

/// What to say of a MIG slice such as `3g.20gb` of a card: which card has as much in all its 8 parts, of an A30 4.
fn slice(name: &str) -> Option<String> {
    let lower = shorten(name).to_lowercase();
    let (before, gb) = lower.strip_suffix("gb")?.rsplit_once("g.")?;
    let gb: u64 = gb.parse().ok()?;
    let parts = match before.chars().next_back()? {
        '1' => 1,
        '2' => 2,
        '3' | '4' => 4,
        '7' => 8,
        _ => return None,
    };
    let of = before[..before.len() - 1].trim_end_matches(['-', ' ', ':', '_']);
    let of = of.strip_suffix("mig").unwrap_or(of);
    let is_whole = |card: &&&Card| {
        [8, 4]
            .iter()
            .any(|all| is_sold_with(card, gb * all / parts))
    };
    let cards = called(of.trim_end_matches(['-', ' ', ':', '_']));
    let card = cards.iter().find(is_whole)?.name;
    Some(format!(
        "a MIG slice is its card under a limit, that of the slice less 1 GiB: `--on {card} --memory-limit {}GiB`",
        gb.saturating_sub(1)
    ))
}

/// What to say of a card that is known not to be simulated.
pub(super) fn absent(pointer: &str, name: &str) -> Option<RequestError> {
    let (_, advice) = row(name).filter(|(card, _)| card.is_none())?;
    let advice = slice(name).unwrap_or_else(|| advice.to_owned());
    let problem = format!("unknown card {:?}; {advice}", shorten(name));
    Some(RequestError::at(pointer, problem).with_text(name))
}

/// The card that a name is a misspelling of: with the same numbers but for a digit too many, and letters that differ in one where there
/// are several.
fn misspelt<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
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
fn unknown(pointer: &str, what: &str, name: &str, known: &[&str]) -> RequestError {
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

/// The nearest to a name that is none: of the machines of clouds, or else of the cards.
pub(super) fn unknown_on(name: &str) -> RequestError {
    if name.contains(',') {
        let problem = format!(
            "{:?} is no card; one question is about one kind of card, or about a job on several, joined as in {:?}",
            shorten(name),
            shorten(&name.replace(',', "+"))
        );
        return RequestError::at("", problem);
    }
    let bare = Name::read(name).without_aside();
    if let Some(absent) = absent("", name).or_else(|| absent("", &bare)) {
        return absent;
    }
    let names: Vec<&str> = CARDS.iter().map(|card| card.name).collect();
    let mut card = unknown("", "card", name, &names);
    let after = name.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_glued = after.len() < name.len() && !after.starts_with(' ');
    if is_glued && !called(after).is_empty() {
        let count = &name[..name.len() - after.len()];
        card.nearest = Some(format!("{count}x{after}"));
        return card;
    }
    if let Some(machine) = unknown_machine("", name) {
        return machine;
    }
    if let (None, Some(near)) = (&card.nearest, near(name)) {
        card.problem = format!("unknown card {:?}; {near}", shorten(name));
    }
    card
}

/// The cards that a part of a name is true of, or a limit on one with more memory than it says.
fn near(name: &str) -> Option<String> {
    let words = Name::read(name);
    let close: Vec<&str> = CARDS
        .iter()
        .filter(|card| words.contains(card))
        .map(|card| card.name)
        .collect();
    if !close.is_empty() {
        let only = if close.len() == 1 {
            "there is"
        } else {
            "there are"
        };
        return Some(format!("of that number {only} {}", close.join(", ")));
    }
    let size = words.size().filter(|size| *size > 1)?;
    let holds = |card: &&Card| card.total_memory.0 >> 30 >= size;
    let least = CARDS
        .iter()
        .filter(holds)
        .min_by_key(|it| it.total_memory)?;
    Some(format!(
        "none is sold with {size} GB; nearest: `--on {} --memory-limit {}GiB`",
        least.name,
        size - 1
    ))
}

pub(super) fn nameless(text: &str) -> RequestError {
    let problem = format!("{text:?} lacks the name of a card, such as h100 or 8xh100");
    RequestError::at("", problem)
}
