//! The tables: one row for each elementwise operator, in files, and how their texts read.
//!
//! What an operator takes and gives back is words: `like`, `mask`, `number`, `of1`, `mask_of1`, `float1` and `bytes8` take memory
//! ([`Temporary`] says which), `g0` makes the gradient of the first operand (going forward, the result), `-2` gives back what was
//! taken third, results among it.
//!
//! A gradient is `none`, `pass`, `converted`, `zeros` with what is saved for it, `by` and the name of a function in [`formulas`],
//! or what is read (operands by their positions, `r` for the result), a colon and such words. Where none of these begins with `-`, the
//! gradient comes after them, or at `g` between them, and they all go once it is made, the last first; `, read` or `, contiguous`
//! before the colon says how it is laid out then.

mod choices;
mod formulas;

use std::sync::LazyLock;

use super::row::{Formula, Forward, Gradient, Order, Read, Row, SharedFormula, Step, Temporary};

pub(super) use choices::Rule;
pub(super) use formulas::Together;

/// All of them.
pub(super) static TABLE: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let files = [
        include_str!("activation.json"),
        include_str!("arithmetic.json"),
        include_str!("comparison.json"),
        include_str!("fill.json"),
        include_str!("unary.json"),
        #[cfg(test)]
        super::tests::ROWS,
    ];
    let rows = |file| serde_json::from_str::<Vec<Row>>(file).expect("a test reads the tables");
    files.into_iter().flat_map(rows).collect()
});

/// What has a name.
fn named<T: Copy>(name: &str, known: &[(&str, T)]) -> Result<T, String> {
    let found = known.iter().find(|(known, _)| *known == name);
    found
        .map(|(_, it)| *it)
        .ok_or_else(|| format!("nothing is called {name:?}"))
}

/// The words of a text. Tables are there as long as the process.
fn words<T>(text: &str, read: fn(&str) -> Result<T, String>) -> Result<&'static [T], String> {
    let words = text.split_whitespace().map(read);
    Ok(words.collect::<Result<Vec<T>, String>>()?.leak())
}

/// The number that a word ends in.
fn numbered<T: std::str::FromStr>(word: &str, head: &str) -> Option<T> {
    word.strip_prefix(head)?.parse().ok()
}

fn temporary(word: &str) -> Result<Temporary, String> {
    let operand = |head| numbered(word, head);
    let bytes = numbered(word, "bytes");
    Ok(match word {
        "like" => Temporary::Like,
        "mask" => Temporary::Mask,
        "number" => Temporary::Number,
        _ => {
            let found = (operand("of").map(Temporary::Of))
                .or_else(|| operand("mask_of").map(Temporary::MaskOf))
                .or_else(|| operand("float").map(Temporary::Float))
                .or_else(|| bytes.map(Temporary::Bytes));
            found.ok_or_else(|| format!("{word:?} takes nothing"))?
        }
    })
}

fn step(word: &str) -> Result<Step, String> {
    let given = numbered(word, "g").map(Step::Give);
    let given = given.or_else(|| numbered(word, "-").map(Step::Free));
    given.map_or_else(|| temporary(word).map(Step::Make), Ok)
}

fn read(word: &str) -> Result<Read, String> {
    match word.parse() {
        Ok(position) => Ok(Read::Operand(position)),
        Err(_) if word == "r" => Ok(Read::Result),
        Err(_) => Err(format!("{word:?} is nothing that is read")),
    }
}

impl TryFrom<String> for Gradient {
    type Error = String;

    fn try_from(text: String) -> Result<Gradient, String> {
        let Some((reads, made)) = text.split_once(':') else {
            return match text.split_once(' ').unwrap_or((&text, "")) {
                ("none", "") => Ok(Gradient::None),
                ("pass", "") => Ok(Gradient::Pass),
                ("converted", "") => Ok(Gradient::Converted),
                ("zeros", saved) => Ok(Gradient::Zeros(words(saved, read)?)),
                ("by", name) => Ok(Gradient::By(named(name, formulas::GRADIENTS)?)),
                _ => Err(format!("{text:?} is no gradient")),
            };
        };
        let (reads, order) = reads.split_once(", ").unwrap_or((reads, "gradient"));
        let reads = words(reads, read)?;
        if made.contains('-') {
            let steps = words(made, step)?;
            return Ok(Gradient::Steps { reads, steps });
        }
        let (before, after) = made.split_once(" g ").unwrap_or((made, ""));
        let orders = [
            ("gradient", Order::Gradient),
            ("read", Order::Read),
            ("contiguous", Order::Contiguous),
        ];
        Ok(Gradient::Made {
            reads,
            before: words(before, temporary)?,
            after: words(after, temporary)?,
            order: named(order, &orders)?,
        })
    }
}

impl TryFrom<String> for Forward {
    type Error = String;

    fn try_from(text: String) -> Result<Forward, String> {
        Ok(match text.split_once(": ") {
            Some(("fractions", steps)) => Forward::OfFractions(words(steps, step)?),
            _ if text == "where" => Forward::Where,
            _ if text == "prelu" => Forward::Prelu,
            _ => Forward::Steps(words(&text, step)?),
        })
    }
}

impl TryFrom<String> for SharedFormula {
    type Error = String;

    fn try_from(text: String) -> Result<SharedFormula, String> {
        let (name, reads) = text.split_once(": ").ok_or("it reads nothing")?;
        Ok(SharedFormula {
            reads: words(reads, read)?,
            steps: named(name, formulas::TOGETHER)?,
        })
    }
}

impl TryFrom<String> for Formula {
    type Error = String;

    fn try_from(text: String) -> Result<Formula, String> {
        Ok(match text.strip_prefix('@') {
            Some(name) => Formula::By(named(name, choices::RULES)?),
            None => Formula::Text(text.leak()),
        })
    }
}
