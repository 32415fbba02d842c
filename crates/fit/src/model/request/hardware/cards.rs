//! What to say of a card by a name that is none of the catalogue's. A card of another name has another amount of memory: it is offered
//! only where a name is misspelt, never in the place of another card.

use crate::limits::shorten;
use batchfit_models::RequestError;

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
    let plain = ["nvidia", "geforce"].iter().fold(&*plain, |name, maker| {
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
    Some(RequestError {
        value: Some(format!("{:?}", shorten(name))),
        ..RequestError::at(
            pointer,
            format!("unknown card {:?}; {advice}", shorten(name)),
        )
    })
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
    let said = format!("unknown {what} {:?}", shorten(name));
    RequestError {
        value: Some(format!("{:?}", shorten(name))),
        problem: match nearest {
            Some(_) => said,
            None => format!("{said}; `batchfit cards` lists those that there are"),
        },
        nearest: nearest.map(str::to_owned),
        pointer: pointer.to_owned(),
    }
}
