//! Which cards the words of a name are true of.

use crate::device::sim::Card;

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
pub(super) fn plain(name: &str) -> String {
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
