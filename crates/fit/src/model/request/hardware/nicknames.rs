//! Which card is meant by what people call it, for `--on` and for `device`.

use crate::device::sim::{CARDS, Card, Instance, LOCAL, local};
use batchfit_models::RequestError;

use super::unknown::{absent, nameless, same, unknown_on};

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
    if found.is_empty()
        && let Some((of, note)) = same(name).or_else(|| same(&Name::read(name).without_aside()))
    {
        let on = parse(of)?;
        if !Name::read(name).has_sizes_of(on.card) {
            return Err(unknown_on(name));
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
        None => Err(unknown_on(name)),
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
pub(super) fn called(name: &str) -> Vec<&'static Card> {
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
        } else if let Some(mib) = part.strip_suffix("mib").and_then(number) {
            // As nvidia-smi says it, of which PyTorch has a little less.
            let total = card.total_memory.0 >> 20;
            total <= mib && total * 100 >= mib * 97
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

/// Words that tell no cards apart: who made it, how it is plugged in, and what people and nvidia-smi say around it.
const ASIDE: &str = "nvidia geforce tesla rtx gtx sim gpu gpus card cards vram memory desktop edition generation workstation \
                     blackwell nvlink sxm ac name total mib";

/// Words of a card's name that may be left out: no SXM has them.
const OPTIONAL: [&str; 2] = ["pcie", "nvl"];

/// Words in front of a card's name that say who made it.
const MAKERS: [&str; 4] = ["nvidia", "geforce", "tesla", "sim"];

/// Longest name that is read, and longest letters in it that may be several words, in bytes.
const LONGEST: usize = 128;
const LONGEST_LETTERS: usize = 24;

/// A word of a name, in small letters.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Word {
    Letters(String),
    Number(String),
    /// Memory in GB.
    Size(u64),
}

/// What a card is called, as words: `RTX4070Ti 12GB` is `rtx`, `4070`, `ti` and 12 GB.
#[derive(Debug)]
pub(super) struct Name {
    pub(super) words: Vec<Word>,
}

impl Name {
    pub(super) fn read(text: &str) -> Name {
        let text = if text.len() > LONGEST { "" } else { text };
        let lower = text
            .to_lowercase()
            .replace("pci-e", "pcie")
            .replace("max-q", "maxq")
            .replace("max q", "maxq");
        let mut words: Vec<Word> = Vec::new();
        for part in lower.split(|c: char| !c.is_alphanumeric()) {
            // `sxm4`, `hbm3`: of which generation they are tells no cards apart.
            let socket = part.strip_prefix("sxm");
            words.extend(socket.map(|_| Word::Letters("sxm".to_owned())));
            let generation = socket.or_else(|| part.strip_prefix("hbm"));
            // A size may be glued to it.
            if generation.is_none_or(|it| it.len() > 2) {
                read_part(generation.unwrap_or(part), &mut words);
            }
        }
        words.dedup_by(|next, word| next == word && matches!(word, Word::Letters(_)));
        Name { words }
    }

    /// Whether every word is true of a card, and all are there that tell it apart from others.
    pub(super) fn means(&self, card: &Card) -> bool {
        let own = Name::read(card.product);
        self.words.iter().all(|word| own.explains(word, card))
            // `4 t4` is four of them.
            && self.contains_all(&own, |times| times == 1)
    }

    /// Whether all words are there that tell a card apart from others, and others beside.
    pub(super) fn contains(&self, card: &Card) -> bool {
        self.contains_all(&Name::read(card.product), |times| times > 0)
    }

    fn contains_all(&self, own: &Name, is_said: fn(usize) -> bool) -> bool {
        let is_number = |word: &Word| matches!(word, Word::Number(_));
        let has_number = own.words.iter().any(is_number);
        let mut apart = own.words.iter().filter(|word| match word {
            Word::Letters(it) if it == "rtx" => !has_number,
            Word::Letters(it) if it == "pro" => !self.has("blackwell"),
            Word::Letters(it) => !is_aside(it) && !OPTIONAL.contains(&it.as_str()),
            Word::Number(_) => true,
            Word::Size(_) => false,
        });
        let typed = |word| self.words.iter().filter(move |it| is_part(it, word, own));
        apart.all(|word| is_said(typed(word).count()))
    }

    /// Whether a typed word is true of the card whose product these words are.
    fn explains(&self, typed: &Word, card: &Card) -> bool {
        match typed {
            Word::Size(size) => self.words.contains(typed) || is_sold_with(card, *size),
            Word::Number(_) => self.words.contains(typed),
            Word::Letters(it) if it == "pcie" => self.is_pcie(card),
            Word::Letters(it) if it == "sxm" => !self.is_pcie(card),
            Word::Letters(it) => self.parts(it).is_some(),
        }
    }

    /// Whether this card is plugged in as `PCIe` and is no SXM, which all have a bus of 4096 bits or more.
    fn is_pcie(&self, card: &Card) -> bool {
        card.sheet.bus < 4096 || OPTIONAL.iter().any(|word| self.has(word))
    }

    fn has(&self, word: &str) -> bool {
        let is_it = |own: &Word| matches!(own, Word::Letters(it) if it == word);
        self.words.iter().any(is_it)
    }

    /// The words that letters without a space between them are, of this name or of those that tell nothing: `tisuper`.
    fn parts<'t>(&self, letters: &'t str) -> Option<Vec<&'t str>> {
        if letters.is_empty() {
            return Some(Vec::new());
        }
        if letters.len() > LONGEST_LETTERS {
            return None;
        }
        (1..=letters.len()).rev().find_map(|end| {
            let (first, rest) = letters.split_at_checked(end)?;
            let is_known = self.has(first) || is_aside(first);
            let mut parts = is_known.then(|| self.parts(rest))??;
            parts.push(first);
            Some(parts)
        })
    }

    /// Whether a card is sold with each size that it says.
    pub(super) fn has_sizes_of(&self, card: &Card) -> bool {
        let is_so = |word: &Word| !matches!(word, Word::Size(size) if !is_sold_with(card, *size));
        self.words.iter().all(is_so)
    }

    /// How many GB it says, where it says nothing else.
    pub(super) fn size(&self) -> Option<u64> {
        let is_aside = |word: &&Word| matches!(word, Word::Letters(it) if is_aside(it));
        match self
            .words
            .iter()
            .filter(|it| !is_aside(it))
            .collect::<Vec<_>>()[..]
        {
            [Word::Size(size)] => Some(*size),
            _ => None,
        }
    }

    /// The name without the words that tell nothing.
    pub(super) fn without_aside(&self) -> String {
        let words = self.words.iter().filter_map(|word| match word {
            Word::Letters(it) if is_aside(it) => None,
            Word::Letters(it) | Word::Number(it) => Some(it.clone()),
            Word::Size(size) => Some(format!("{size}g")),
        });
        words.collect()
    }
}

/// Reads what stands between two signs or spaces; a size may have its unit behind a space.
fn read_part(part: &str, words: &mut Vec<Word>) {
    let is_digit = |c: char| c.is_ascii_digit();
    let mut rest = part;
    while let Some(first) = rest.chars().next() {
        let ends = |c: char| is_digit(c) != is_digit(first);
        let (run, behind) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
        let is_whole = run.len() == rest.len();
        let size = match words.last() {
            Some(Word::Number(number)) if is_whole => {
                number.parse().ok().and_then(|number: u64| {
                    // An `a10g` has no 10 GB.
                    let is_size = match run {
                        "gb" | "gib" => true,
                        "g" => part.len() == run.len() + number.to_string().len(),
                        _ => false,
                    };
                    let of_mib = ["mb", "mib"]
                        .contains(&run)
                        .then_some(number.div_ceil(1024));
                    is_size.then_some(number).or(of_mib)
                })
            }
            _ => None,
        };
        if let Some(size) = size {
            words.pop();
            words.push(Word::Size(size));
        } else if is_digit(first) {
            words.push(Word::Number(run.to_owned()));
        } else {
            let is_of_laptop = matches!(run, "mobile" | "notebook" | "m");
            words.push(Word::Letters(
                if is_of_laptop { "laptop" } else { run }.to_owned(),
            ));
        }
        rest = behind;
    }
}

/// Whether a typed word is this one of a card's, or has it in itself.
fn is_part(typed: &Word, word: &Word, own: &Name) -> bool {
    match (typed, word) {
        (Word::Letters(typed), Word::Letters(word)) => {
            typed == word
                || own
                    .parts(typed)
                    .is_some_and(|parts| parts.contains(&word.as_str()))
        }
        _ => typed == word,
    }
}

fn is_aside(word: &str) -> bool {
    ASIDE.split(' ').any(|aside| aside == word)
}

/// Whether a card is sold as one of so many GB: the driver keeps a part, and error correction a sixteenth.
pub(super) fn is_sold_with(card: &Card, gb: u64) -> bool {
    let sold = u128::from(gb) << 30;
    let total = u128::from(card.total_memory.0);
    total <= sold && total * 100 >= sold * 91
}

/// A name without its maker, and without what people write differently: case, dashes, spaces, `GB` for `G`.
fn plain(name: &str) -> String {
    let lower = name.to_lowercase();
    let words = lower
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty());
    let words: Vec<&str> = words.skip_while(|word| MAKERS.contains(word)).collect();
    let together = words.concat();
    match together.strip_suffix("gb") {
        Some(size) => format!("{size}g"),
        None => together,
    }
}

#[cfg(test)]
mod tests;
