//! What to say of a card by a name that is none of the catalogue's. A card of another name has another amount of memory: it is offered
//! only where a name is misspelt, never in the place of another card.

use crate::bounded::shorten;
use batchfit_models::Invalid;

/// What is called a card and is not simulated, and what to do instead.
const ABSENT: &str = include_str!("cards.txt");

/// A name without what people write differently: case, dashes, spaces.
fn plain(name: &str) -> String {
    let kept = shorten(name).to_lowercase();
    let kept = kept.strip_prefix("sim:").unwrap_or(&kept);
    kept.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// What to say of a card that is known not to be simulated; a size such as `24GB` among them.
pub fn absent(pointer: &str, name: &str) -> Option<Invalid> {
    let plain = plain(name);
    let size = plain
        .strip_suffix("gb")
        .or_else(|| plain.strip_suffix("gib"));
    let is_size = size.is_some_and(|size| size.parse::<u64>().is_ok());
    let is = |word: &str| match word.strip_suffix('*') {
        Some(beginning) => plain.starts_with(beginning),
        None => plain == word,
    };
    let mut rows = ABSENT.lines().filter_map(|line| line.split_once(" | "));
    let found = rows.find(|(words, _)| words.split(' ').any(is));
    let advice = match found {
        _ if is_size => "a size is no card: name one, and a memory limit with it",
        found => found?.1,
    };
    Some(Invalid {
        value: Some(format!("{:?}", shorten(name))),
        ..Invalid::at(
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

/// A card that nobody knows.
pub fn unknown(pointer: &str, what: &str, name: &str, known: &[&str]) -> Invalid {
    if let Some(absent) = absent(pointer, name) {
        return absent;
    }
    let nearest = misspelt(name, known);
    let said = format!("unknown {what} {:?}", shorten(name));
    Invalid {
        value: Some(format!("{:?}", shorten(name))),
        problem: match nearest {
            Some(_) => said,
            None => format!("{said}; `batchfit cards` lists those that there are"),
        },
        nearest: nearest.map(str::to_owned),
        pointer: pointer.to_owned(),
    }
}
