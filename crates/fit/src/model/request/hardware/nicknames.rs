//! Which card is meant by what people call it, for `--on` and for `device`.

use crate::device::sim::{CARDS, Card, Instance, LOCAL, local};
use crate::limits::shorten;
use batchfit_models::RequestError;

use super::device::unknown_machine;
use super::device::{absent, same, unknown as unknown_card};

/// Words in front of a card's name that say who made it.
const MAKERS: [&str; 4] = ["nvidia", "geforce", "tesla", "sim"];

/// Words beside a card's name that choose no other: how it is plugged in, and what people say around it.
const ASIDE: &str = "sxm sxm2 sxm4 sxm5 nvlink gpu gpus card cards vram memory desktop edition";

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
    let mut found = called(&wanted);
    if let (true, Some(2..), Some(one)) = (found.is_empty(), count, wanted.strip_suffix('s'))
        && called(&format!("{one}super")).is_empty()
    {
        found = called(one); // `2x3090s`; of a `4080s` nobody knows whether it is the Super
    }
    // `RTX 4090 24GB` says what it has as well.
    if let (true, Some((own, size))) = (found.is_empty(), name.trim().rsplit_once(' ')) {
        let is_so = described(size);
        found = called(&plain(own));
        found.retain(|card| is_so.iter().any(|one| one.name == card.name));
    }
    if let (true, Some((of, note))) = (found.is_empty(), same(name)) {
        let on = parse(of)?;
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
    if let (true, Some(words)) = (found.is_empty(), without_aside(name)) {
        let on = named(&words.join(" "), count);
        let words = |card: &&Card| {
            let own = plain_words(&format!("{} {}", card.name, card.product));
            words.iter().all(|word| own.contains(word))
        };
        found = CARDS.iter().filter(words).collect();
        if on.is_ok() {
            return on;
        }
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
            let note = format!(
                "{name} means {}, the usual one with the least memory; others are {}",
                card.name,
                others.join(", ")
            );
            Ok(On {
                card,
                count,
                note: Some(note),
            })
        }
    }
}

/// The cards of this plain name, or of this family.
fn called(wanted: &str) -> Vec<&'static Card> {
    let called_so = |card: &&Card| is_called(card, wanted);
    let of_family = |card: &&Card| family(card) == wanted || family(card) == format!("rtx{wanted}");
    let found: Vec<&Card> = CARDS.iter().filter(called_so).collect();
    if found.is_empty() {
        return CARDS.iter().filter(of_family).collect();
    }
    found
}

/// The cards that a description such as `24GB` or `sm_89,16GB,34sm` is true of: compute capability, memory as it is sold, multiprocessors.
fn described(text: &str) -> Vec<&'static Card> {
    let is_so = |card: &&Card, part: &str| {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let compute = part.strip_prefix("sm_").or_else(|| part.strip_prefix("sm"));
        let size = ["gib", "gb", "g"]
            .iter()
            .find_map(|unit| part.strip_suffix(unit));
        if let Some(compute) = compute {
            let (major, minor) = card.capability.compute;
            number(compute) == Some(u64::from(major * 10 + minor))
        } else if let Some(size) = size.and_then(number) {
            // The driver keeps a part, and error correction a sixteenth.
            let sold = u128::from(size) << 30;
            let total = u128::from(card.total_memory.0);
            total <= sold && total * 100 >= sold * 91
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

/// The words of a name such as `RTX 3090 (24GB) NVLink`, without those that stand beside it; nothing where there are none.
fn without_aside(name: &str) -> Option<Vec<String>> {
    let mut words = plain_words(name);
    let all = words.len();
    words.retain(|word| !ASIDE.split(' ').any(|aside| aside == word));
    let has_others = words.len() < all || name.contains([' ', '(']);
    (!words.is_empty() && has_others && words.join(" ") != name).then_some(words)
}

/// Each word of a name by itself.
fn plain_words(name: &str) -> Vec<String> {
    let words = name.split(|c: char| !c.is_alphanumeric()).map(plain);
    words.filter(|word| !word.is_empty()).collect()
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
    let names: Vec<&str> = CARDS.iter().map(|card| card.name).collect();
    let card = unknown_card("", "card", name, &names);
    let machine = absent("", name)
        .is_none()
        .then(|| unknown_machine("", name));
    machine.flatten().unwrap_or(card)
}

/// The number before `x` or a space, or behind `x` or a colon, and the rest.
fn counted(text: &str) -> Result<Option<(u64, &str)>, RequestError> {
    const TIMES: [char; 4] = ['x', 'X', '×', ' '];
    let is_digit = |c: char| c.is_ascii_digit();
    let before = text.trim_start_matches(is_digit);
    let after = text.trim_end_matches(is_digit);
    let (number, name) =
        if let (true, Some(name)) = (before.len() < text.len(), before.strip_prefix(TIMES)) {
            (&text[..text.len() - before.len()], name)
        } else if let (true, Some(name)) = (
            after.len() < text.len(),
            after
                .trim_end()
                .strip_suffix(['x', 'X', '×', ':'])
                .filter(|name| *name != "cuda"),
        ) {
            (&text[after.len()..], name)
        } else {
            return Ok(None);
        };
    let name = name.trim_start().trim_start_matches(['x', 'X', '×']);
    if let Ok(count @ 1..) = number.parse() {
        return Ok(Some((count, name.trim())));
    }
    let problem = format!("{number} is no number of GPUs; at least one is needed, as in 8xh100");
    Err(RequestError::at("", problem))
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

/// Whether these words name this card: its name, its product, or the name without `rtx` in front or `g` behind.
fn is_called(card: &Card, wanted: &str) -> bool {
    let name = plain(card.name);
    let without_rtx = name.strip_prefix("rtx");
    let without_g = name.strip_suffix('g');
    [Some(&*name), without_rtx, without_g].contains(&Some(wanted)) || plain(card.product) == wanted
}

/// What a card has in common with those that differ in memory.
fn family(card: &Card) -> String {
    plain(card.name.split('-').next().unwrap_or(card.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card_and_count(text: &str) -> (&'static str, Option<u64>) {
        let on = parse(text).unwrap();
        (on.card.name, on.count)
    }

    #[test]
    fn case_and_dashes_and_makers_are_forgiven() {
        for (text, card) in [
            ("h200", "h200"),
            ("sim:h200", "h200"),
            ("RTX-4090", "rtx4090"),
            ("rtx 4090", "rtx4090"),
            ("4090", "rtx4090"),
            ("NVIDIA GeForce RTX 4090", "rtx4090"),
            ("A100_80GB", "a100-80g"),
            ("a100-80", "a100-80g"),
            ("NVIDIA A100-SXM4-40GB", "a100-40g"),
            ("nvidia h100 80gb hbm3", "h100-80g"),
            (" T4 ", "t4"),
        ] {
            assert_eq!(card_and_count(text), (card, None), "{text}");
        }
    }

    #[test]
    fn every_card_answers_to_its_name_and_its_product() {
        for card in CARDS {
            assert_eq!(card_and_count(card.name).0, card.name);
            let by_product = Card::find(card_and_count(card.product).0).unwrap();
            assert_eq!(by_product.product, card.product);
        }
    }

    #[test]
    fn a_family_is_its_member_with_the_least_memory() {
        let on = parse("A100").unwrap();

        assert_eq!(on.card.name, "a100-40g");
        let note = on.note.unwrap();
        assert!(
            note.contains("A100 means a100-40g") && note.contains("a100-80g"),
            "{note}"
        );
        assert_eq!(parse("h100").unwrap().card.name, "h100-80g");
    }

    #[test]
    fn of_members_with_as_much_memory_the_first_is_the_usual_one() {
        assert_eq!(card_and_count("h100").0, "h100-80g");
        assert_eq!(card_and_count("gh200").0, "gh200-96g");
        assert_eq!(card_and_count("RTX 3080").0, "rtx3080-10g");
        assert_eq!(
            card_and_count("NVIDIA GeForce RTX 4060 Ti").0,
            "rtx4060ti-8g"
        );
        assert!(
            parse("h100")
                .unwrap()
                .note
                .unwrap()
                .ends_with("others are h100-pcie, h100-nvl")
        );
    }

    #[test]
    fn common_spellings_of_workstation_cards_are_known() {
        for (text, card) in [
            ("a6000", "rtxa6000"),
            ("RTX A6000", "rtxa6000"),
            ("6000ada", "rtx6000ada"),
            ("RTX 6000 Ada", "rtx6000ada"),
            ("RTX PRO 6000", "rtxpro6000"),
            ("TITAN RTX", "titanrtx"),
            ("5070 Ti", "rtx5070ti"),
            ("rtx 4080 super", "rtx4080super"),
            ("H100 PCIe", "h100-pcie"),
            ("RTX 3060", "rtx3060-12g"),
            ("rtx-3080-12gb", "rtx3080-12g"),
        ] {
            assert_eq!(card_and_count(text), (card, None), "{text}");
        }
    }

    #[test]
    fn machines_of_clouds_are_their_cards() {
        assert_eq!(card_and_count("p5.48xlarge"), ("h100-80g", Some(8)));
        assert_eq!(card_and_count("2xp4d.24xlarge"), ("a100-40g", Some(16)));
        assert_eq!(
            card_and_count("Standard_NC80adis_H100_v5"),
            ("h100-nvl", Some(2))
        );
        let note = parse("g5.12xlarge").unwrap().note;
        assert_eq!(note.unwrap(), "g5.12xlarge: 4 x NVIDIA A10G");
        let refused = parse("p5.24xlarge").unwrap_err().to_string();
        assert!(
            refused.contains("of its kind there are p5.4xlarge, p5.48xlarge"),
            "{refused}"
        );
    }

    #[test]
    fn a_number_before_it_counts_gpus() {
        assert_eq!(card_and_count("8xH100"), ("h100-80g", Some(8)));
        assert_eq!(card_and_count("2 x rtx-4090"), ("rtx4090", Some(2)));
        assert_eq!(card_and_count("4×t4"), ("t4", Some(4)));
        for text in [
            "8 h100",
            "h100x8",
            "H100 x8",
            "H100:8",
            "2x4xh100",
            "4 x 2 h100",
        ] {
            assert_eq!(card_and_count(text), ("h100-80g", Some(8)), "{text}");
        }
        for text in ["3090x2", "2x3090", "rtx 3090 x2"] {
            assert_eq!(card_and_count(text), ("rtx3090", Some(2)), "{text}");
        }
        for (text, card, count) in [
            ("2x RTX 3090 NVLink", "rtx3090", 2),
            ("4 x a100 80gb sxm", "a100-80g", 4),
            ("A100-SXM4-80GB x 8", "a100-80g", 8),
            ("8x H100 SXM5 (80GB)", "h100-80g", 8),
            ("4xA100 PCIe", "a100-pcie-40g", 4),
            ("4 3090s", "rtx3090", 4),
            ("8xL40S", "l40s", 8),
            ("2x RTX A6000s", "rtxa6000", 2),
        ] {
            assert_eq!(card_and_count(text), (card, Some(count)), "{text}");
        }
    }

    #[test]
    fn what_is_no_card_is_refused() {
        for (text, expected) in [
            ("", "lacks the name of a card"),
            ("8x", "lacks the name of a card"),
            ("--", "lacks the name of a card"),
            ("0xH100", "0 is no number of GPUs"),
            ("99999999999999999999xh100", "is no number of GPUs"),
            ("h2000", "did you mean \"h200\"?"),
            ("rxt4090", "did you mean \"rtx4090\"?"),
            ("cuda:0", "--device cuda:0"),
            ("auto", "--device auto"),
            ("ä100", "unknown card"),
            ("-8xh100", "unknown card"),
            ("8", "unknown card"),
            ("2x4080s", "unknown card"),
            ("💥", "lacks the name of a card"),
        ] {
            let refused = parse(text).unwrap_err().to_string();
            assert!(refused.contains(expected), "{text:?}: {refused}");
        }
    }
}
