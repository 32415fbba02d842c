//! Which card is meant by what people call it, for `--on` and for `device`.

use crate::device::sim::{CARDS, Card, Instance, LOCAL, local};
use crate::limits::shorten;
use batchfit_models::RequestError;

use super::device::unknown_machine;
use super::device::{absent, same, unknown as unknown_card};
use super::words::{Name, Word, is_sold_with, plain};

/// What `--on` asks for.
#[derive(Debug, PartialEq)]
pub struct On {
    /// The card.
    pub card: &'static Card,
    /// How many of them, where it says so.
    pub count: Option<u64>,
    /// What to tell where the name stands for several cards.
    pub note: Option<String>,
}

/// How much less memory a member of a family has that counts as less, as a part of the smallest: drivers differ by this much.
const ALIKE: u64 = 100;

/// Most of the other cards that a note names.
const MOST_OTHERS: usize = 8;

/// Reads `h100-80g`, `RTX 4090`, `8xH100`, a family such as `a100`, or a cloud's machine such as `p5.48xlarge`.
pub fn parse(text: &str) -> Result<On, RequestError> {
    let text = text.trim();
    let whole = named(text, None);
    match counted(text)? {
        // A name with a number in front or behind may be that of a card: `7900xtx`.
        Some((_, name)) if plain(name).is_empty() => Err(nameless(text)),
        Some((count, name)) if whole.is_err() => match named(name, Some(count))
            .or_else(|problem| counted_twice(count, name).ok_or(problem))
        {
            Err(problem) if text.starts_with(char::is_numeric) && absent("", text).is_none() => {
                Err(problem)
            }
            named => named.or(whole),
        },
        _ => whole,
    }
}

/// `3090x2`, whose first number is a card, and `2x8xh100`, with the nodes in front.
fn counted_twice(first: u64, rest: &str) -> Option<On> {
    let (on, times) = match rest.parse::<u64>() {
        Ok(count) => (named(&first.to_string(), None).ok()?, count),
        Err(_) => (parse(rest).ok().filter(|on| on.count.is_some())?, first),
    };
    let count = times
        .checked_mul(on.count.unwrap_or(1))
        .filter(|count| *count > 0)?;
    Some(On {
        count: Some(count),
        ..on
    })
}

fn named(name: &str, count: Option<u64>) -> Result<On, RequestError> {
    let wanted = plain(name);
    if wanted.is_empty() {
        return Err(nameless(name));
    }
    if ["auto", "cpu", "gpu", "cuda"]
        .iter()
        .any(|word| wanted.trim_end_matches(|c: char| c.is_ascii_digit()) == *word)
    {
        let problem = format!(
            "{name:?} is no card; --on simulates one, such as h100, and --device auto or --device cuda:0 take a GPU of \
             this machine"
        );
        return Err(RequestError::at("", problem));
    }
    if let Some(on) = machines(name, count) {
        return Ok(on);
    }
    if wanted == LOCAL {
        let problem = "no card was calibrated on this machine; `batchfit calibrate` does that, and --on local then simulates it";
        let card = local().ok_or_else(|| RequestError::at("", problem))?;
        let note = None;
        return Ok(On { card, count, note });
    }
    let mut found = called(name);
    if let (true, Some((one, size))) = (found.is_empty(), name.rsplit_once(['s', 'S'])) {
        let supers = called(&format!("{one} super {size}"));
        found = match count {
            Some(2..) if supers.is_empty() => called(&format!("{one} {size}")), // `2x3090s`
            Some(2..) => found, // of several `4080s` nobody knows whether they are the Super
            _ => supers,
        };
    }
    let bare = Name::read(name).without_aside();
    if let (true, Some((of, note))) = (found.is_empty(), same(name).or_else(|| same(&bare))) {
        let on = parse(of)?;
        if !Name::read(name).has_sizes_of(on.card) {
            return Err(unknown(name));
        }
        let count = count.map_or(on.count, |count| {
            Some(count.saturating_mul(on.count.unwrap_or(1)))
        });
        return Ok(On {
            count,
            note: Some(note.to_owned()),
            ..on
        });
    }
    if found.is_empty() {
        found = described(name);
    }
    let least = found.iter().map(|card| card.total_memory.0).min();
    let least = least.unwrap_or_default();
    // Of those with as little memory as any, the one that is listed first is the usual one.
    let usual = |card: &&Card| card.total_memory.0 <= least + least / ALIKE;
    match found.iter().copied().find(usual) {
        None => Err(unknown(name)),
        Some(card) if found.len() == 1 => Ok(On {
            card,
            count,
            note: None,
        }),
        Some(card) => {
            let others = found.iter().filter(|other| other.name != card.name);
            let others: Vec<&str> = others.map(|card| card.name).collect();
            let more = match others.len().saturating_sub(MOST_OTHERS) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let note = format!(
                "{name} means {}, the usual one with the least memory; others are {}{more}",
                card.name,
                others[..others.len().min(MOST_OTHERS)].join(", ")
            );
            Ok(On {
                card,
                count,
                note: Some(note),
            })
        }
    }
}

/// The card of this name, or those that every word of it is true of.
fn called(name: &str) -> Vec<&'static Card> {
    let wanted = plain(name);
    let words = Name::read(name);
    let found: Vec<&Card> = CARDS.iter().filter(|it| is_called(it, &wanted)).collect();
    if found.is_empty() {
        return CARDS.iter().filter(|card| words.means(card)).collect();
    }
    found
}

/// The cards that a description such as `24GB` or `sm_89,16GB,34sm` is true of: compute capability, memory as it is sold, multiprocessors.
fn described(text: &str) -> Vec<&'static Card> {
    let is_so = |card: &&Card, part: &str| {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let compute = part.strip_prefix("sm_").or_else(|| part.strip_prefix("sm"));
        if let Some(compute) = compute {
            let (major, minor) = card.capability.compute;
            number(compute) == Some(u64::from(major * 10 + minor))
        } else if let Some(size) = Name::read(part).size() {
            is_sold_with(card, size)
        } else {
            let count = part.strip_suffix("sms").or_else(|| part.strip_suffix("sm"));
            count.and_then(number) == Some(card.capability.multiprocessors)
        }
    };
    let text = text.to_lowercase();
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    CARDS
        .iter()
        .filter(|card| parts.iter().all(|part| is_so(card, part)))
        .collect()
}

fn nameless(text: &str) -> RequestError {
    let problem = format!("{text:?} lacks the name of a card, such as h100 or 8xh100");
    RequestError::at("", problem)
}

/// The cards of so many of a cloud's machines, one where the name says no number.
fn machines(name: &str, count: Option<u64>) -> Option<On> {
    let machine = Instance::find(name)?;
    let cards = count.unwrap_or(1).saturating_mul(machine.count);
    Some(On {
        card: machine.card()?,
        count: Some(cards),
        note: Some(machine.to_string()),
    })
}

/// The nearest to a name that is none: of the machines of clouds, or else of the cards.
fn unknown(name: &str) -> RequestError {
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
    let mut card = unknown_card("", "card", name, &names);
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

/// The number before `x` or a space, or behind `x`, a colon or a space and before `x`, and the rest.
fn counted(text: &str) -> Result<Option<(u64, &str)>, RequestError> {
    const TIMES: [char; 5] = ['x', 'X', '×', '*', ' '];
    let is_digit = |c: char| c.is_ascii_digit();
    let before = text.trim_start_matches(is_digit);
    let after = text.trim_end_matches(is_digit);
    let first = &text[..text.len() - before.len()];
    let in_front = before.strip_prefix(TIMES).filter(|name| {
        let is_spaced = before.starts_with(' ') && !name.trim_start().starts_with(&TIMES[..4]);
        let is_size = Name::read(name.trim_start_matches(TIMES)).size().is_some();
        let is_card = is_spaced && is_of_a_card(first, name) || is_size && is_a_card(first);
        !first.is_empty() && !is_card
    });
    let behind = after
        .trim_end()
        .strip_suffix(['x', 'X', '×', '*', ':'])
        .filter(|name| *name != "cuda" && after.len() < text.len());
    let behind = behind.map(|name| (&text[after.len()..], name)).or_else(|| {
        let front = text.strip_suffix(&TIMES[..4])?; // `a100 8x`
        let name = front.trim_end_matches(is_digit);
        let is_apart = name.len() < front.len() && name.ends_with([' ', ',', ':', '(']);
        is_apart.then(|| (&front[name.len()..], name))
    });
    let Some((number, name)) = in_front.map(|name| (first, name)).or(behind) else {
        return Ok(None);
    };
    let name = name.trim_start().trim_start_matches(['x', 'X', '×', '*']);
    if let Ok(count @ 1..) = number.parse() {
        return Ok(Some((count, name.trim())));
    }
    let problem = format!("{number} is no number of GPUs; at least one is needed, as in 8xh100");
    Err(RequestError::at("", problem))
}

/// Whether a number in front of these words is a card's, as in `3060 8gb` and `5080 super`, and counts none.
fn is_of_a_card(number: &str, behind: &str) -> bool {
    let tells_apart = |word: &Word| match word {
        Word::Size(_) => true,
        Word::Letters(letters) => APART.split(' ').any(|it| it == letters),
        Word::Number(_) => false,
    };
    let first = Name::read(behind).words.first().is_some_and(tells_apart);
    first || is_a_card(number)
}

fn is_a_card(name: &str) -> bool {
    CARDS.iter().any(|card| Name::read(name).means(card))
}

/// Words behind a card's number that make it another card.
const APART: &str = "ti super d laptop maxq blackwell";

/// Whether these words name this card: its name, its product, or the name without `rtx` in front or `g` behind.
fn is_called(card: &Card, wanted: &str) -> bool {
    let name = plain(card.name);
    let without_rtx = name.strip_prefix("rtx");
    // An `a10g` is no `a10`.
    let without_g = name.strip_suffix('g').filter(|_| card.name.contains('-'));
    [Some(&*name), without_rtx, without_g].contains(&Some(wanted)) || plain(card.product) == wanted
}

#[cfg(test)]
mod tests;
